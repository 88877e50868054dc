"""Plant slips in the code, one at a time, and see whether the tests notice.

    python -m benchmarks.faults [NAME ...] [--jobs 2] [--check]

benchmarks/faults.toml says of each fault what text it replaces and which tests ought to fail. A fault is planted in a
copy of the tree, and is caught where a test fails with it that passes without it. The results are in
benchmarks/results/faults.json, each with the commit it was planted in; runs of some faults by name leave the others.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "faults.json"
COPIED = ("src", "tests", "benchmarks", "docs", "examples", "pyproject.toml", "README.md", "CHANGELOG.md", "mkdocs.yml")
LONGEST, ENDLESS = 1_800, "the tests did not end"  # seconds of one run of them
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def read_faults(names: list[str]) -> list[dict[str, Any]]:
    """The faults of these names, or all; every one is checked, whichever are asked for."""
    faults = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["fault"]
    known = [fault["name"] for fault in faults]
    wrong = [f"{name}: named more than once" for name in sorted(set(known)) if known.count(name) > 1]
    wrong += [f"{name}: no such fault" for name in names if name not in known]
    for fault in faults:
        file = ROOT / fault["file"]
        found = file.read_text(encoding="utf-8").count(fault["old"]) if file.is_file() else 0
        if found != 1:
            wrong.append(f"{fault['name']}: its text stands {found} times in {fault['file']}, not once")
        wrong += [f"{fault['name']}: no {path}" for path in fault["tests"] if not (ROOT / path).exists()]
    if wrong:
        sys.exit("\n".join(wrong))
    return [fault for fault in faults if not names or fault["name"] in names]


def copied(place: Path) -> Path:
    """The tree in `place`, and what was compiled of it, which holds for all files that are not changed then."""
    for path in (ROOT / name for name in COPIED):
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, place / path.name)
    return place


def failing(tree: Path, tests: list[str], *options: str) -> list[str]:
    """The tests that fail in `tree`."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    given = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "1000"}
    try:
        run = subprocess.run(command, cwd=tree, env=given, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return [ENDLESS]
    if run.returncode and not FAILED.search(run.stdout):
        raise RuntimeError(f"pytest ended with {run.returncode} and named no test: {run.stdout[-2_000:]}{run.stderr}")
    return FAILED.findall(run.stdout) if run.returncode else []


def tried(fault: dict[str, Any]) -> dict[str, Any]:
    """The first test that notices the fault, None where none does, and how long that took."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        file = copied(Path(folder)) / fault["file"]
        file.write_text(file.read_text(encoding="utf-8").replace(fault["old"], fault["new"]), encoding="utf-8")
        runs = (failing(Path(folder), [path], "-x") for path in fault["tests"])  # a call each: pytest has its own order
        caught_by = next((found[0] for found in runs if found), None)
    print(f"{'caught ' if caught_by else 'SLIPPED'}  {fault['name']:32s}{caught_by or fault['what']}", flush=True)
    return {"name": fault["name"], "caught_by": caught_by, "seconds": round(time.perf_counter() - began, 1)}


def failing_anyway(each: list[dict[str, Any]]) -> list[str]:
    """Of the tests that noticed faults those that fail without any: they say nothing."""
    noticed = sorted({one["caught_by"] for one in each} - {None, ENDLESS})
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        return failing(copied(Path(folder)), noticed) if noticed else []


def main(names: list[str], jobs: int) -> None:
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    each = json.loads(RESULTS.read_text(encoding="utf-8"))["each"] if names and RESULTS.is_file() else []
    known, planted = {one["name"]: one for one in each}, []
    with ThreadPoolExecutor(jobs) as pool:
        for one in pool.map(tried, read_faults(names)):
            planted.append(one)
            known[one["name"]] = {**one, "commit": git.stdout.strip()}
            written(known)
    for name in failing_anyway(planted):
        print(f"SLIPPED  {name} fails without a fault too, so it notices nothing", flush=True)
        known |= {one["name"]: {**known[one["name"]], "caught_by": None} for one in planted if one["caught_by"] == name}
    told = written(known)
    print({name: value for name, value in told.items() if name != "each"})


def written(known: dict[str, Any]) -> dict[str, Any]:
    """Counts and what became of each fault, as they are kept."""
    each = [known[fault["name"]] for fault in read_faults([]) if fault["name"] in known]
    slipped = [one["name"] for one in each if one["caught_by"] is None]
    told = {"faults": len(each), "caught": len(each) - len(slipped), "slipped": len(slipped)}
    told |= {"seconds": round(sum(one["seconds"] for one in each)), "names_slipped": slipped, "each": each}
    RESULTS.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant; default all")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--check", action="store_true", help="only look whether every text stands once in its file")
    options = parser.parse_args()
    print(f"{len(read_faults(options.names))} faults, each text once in its file", flush=True)
    if not options.check:
        main(options.names, options.jobs)
