"""Plant slips in the code, one at a time, and see whether the tests notice.

    python -m benchmarks.faults [NAME ...] [--jobs 2] [--check]

benchmarks/faults.toml says of each fault what text it replaces and which tests ought to fail. A fault is planted in a
copy of the tree, and is caught where a test fails with it that passes without it. The results are in
benchmarks/results/faults.json; runs of some faults by name add to what is there of the same commit.
"""

from __future__ import annotations

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
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "faults.json"
COPIED = ("src", "tests", "benchmarks", "docs", "examples", "pyproject.toml", "README.md", "CHANGELOG.md", "mkdocs.yml")
COMPILED = shutil.ignore_patterns("__pycache__")
LONGEST = 1_800  # seconds of one run of the tests
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


def copied(place: Path) -> None:
    """The tree, without what was compiled."""
    for path in (ROOT / name for name in COPIED):
        copy = partial(shutil.copytree, ignore=COMPILED) if path.is_dir() else shutil.copy
        copy(path, place / path.name)


def first_failing(tree: Path, tests: list[str], but: list[str]) -> str | None:
    """The first test that fails in `tree`; None where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    command += [f"--deselect={test}" for test in but]
    given = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "1000"}
    try:
        run = subprocess.run(command, cwd=tree, env=given, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return "the tests did not end"
    named = FAILED.search(run.stdout)
    if run.returncode and named is None:
        raise RuntimeError(f"pytest ended with {run.returncode} and named no test: {run.stdout[-2_000:]}{run.stderr}")
    return named.group(1) if run.returncode and named else None


def tried(fault: dict[str, Any]) -> dict[str, Any]:
    """Whether the tests notice the fault, by which of them, and how long that took."""
    began, caught_by, failing_anyway = time.perf_counter(), None, list[str]()
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        copied(Path(folder))
        file = Path(folder) / fault["file"]
        sound = file.read_text(encoding="utf-8")
        while caught_by is None:
            file.write_text(sound.replace(fault["old"], fault["new"]), encoding="utf-8")
            failing = first_failing(Path(folder), fault["tests"], failing_anyway)
            file.write_text(sound, encoding="utf-8")
            if failing is None:
                break
            if "::" in failing and first_failing(Path(folder), [failing], []) is not None:
                failing_anyway.append(failing)  # it says nothing of the fault
            else:
                caught_by = failing
    print(f"{'caught ' if caught_by else 'SLIPPED'}  {fault['name']:32s}{caught_by or fault['what']}", flush=True)
    found = {"caught": caught_by is not None, "first_failing_test": caught_by, "failing_without_it": failing_anyway}
    return {"name": fault["name"], **found, "seconds": round(time.perf_counter() - began, 1)}


def main(names: list[str], jobs: int) -> None:
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    earlier = json.loads(RESULTS.read_text(encoding="utf-8")) if names and RESULTS.is_file() else {"commit": None}
    known = {one["name"]: one for one in earlier["each"]} if earlier["commit"] == git.stdout.strip() else {}
    with ThreadPoolExecutor(jobs) as pool:
        for one in pool.map(tried, read_faults(names)):
            known[one["name"]] = one
            each = [known[fault["name"]] for fault in read_faults([]) if fault["name"] in known]
            slipped = [entry["name"] for entry in each if not entry["caught"]]
            told = {"faults": len(each), "caught": len(each) - len(slipped), "slipped": len(slipped)}
            told |= {"seconds": round(sum(entry["seconds"] for entry in each)), "names_slipped": slipped}
            found = {"commit": git.stdout.strip(), **told, "each": each}
            RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(told)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant; default all")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--check", action="store_true", help="only look whether every text stands once in its file")
    options = parser.parse_args()
    print(f"{len(read_faults(options.names))} faults, each text once in its file", flush=True)
    if not options.check:
        main(options.names, options.jobs)
