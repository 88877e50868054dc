"""Two writers at one folder: one is refused or comes second, and the folder is always one of theirs, whole."""

import os
import random
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.hunting.folders import quick_pages, run
from benchmarks.hunting.kills import AUDIT, child, do, write_whole
from giveaway.auditing.store import AuditFolder
from giveaway.records import ScoreTable
from giveaway.storage.files import file_digest

COUNT = 50
PAIRS = [("audit", "other"), ("audit", "audit"), ("other", "purge"), ("validate", "other"), ("report", "purge")]
PAIRS += [("gate", "validate"), ("purge", "purge"), ("shadows", "purge")]


def work_on(work: str, wait: float) -> int:
    time.sleep(wait)
    return run(*[{"0.5": "0.25"}.get(word, word) for word in AUDIT], "--out", "F")[0] if work == "other" else do(work)


def wrong_with(folder: Path) -> list[str]:
    """Say what is mixed in a folder after both have ended."""
    place = AuditFolder(folder)
    if not place.marked:
        left = [path.name for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
        return [f"without audit.json, but with {left}"] if left else []
    stored, table = place.read()["provenance"], ScoreTable.load(folder)
    found = [name for name, digest in place.listed().items() if file_digest(folder / name) != digest]
    if table.meta.provenance is None or table.meta.provenance.audit != stored["audit"]:
        found.append("scores of one audit, listing of another")
    if tomllib.loads((folder / "config.toml").read_text())["l2"] != stored["config"]["l2"]:
        found.append("options of one audit, listing of another")
    known = {*place.listed(), place.marker, "signals"}
    return found + [f"{path.name} is left" for path in folder.iterdir() if path.name not in known]


def hunt(count: int, seed: int) -> dict[str, Any]:
    rng, where = random.Random(seed), os.getcwd()
    ended, mixed = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="hunt-") as place, quick_pages():
        os.chdir(place)
        try:
            write_whole()
            for number in range(count):
                pair = PAIRS[number % len(PAIRS)]
                if pair[0] not in ("audit", "other"):
                    do("audit")
                both = [child(lambda work=work: work_on(work, 0.05 * rng.random())) for work in pair]  # type: ignore[misc]
                codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in both]
                ended[" and ".join(f"{work} {code}" for work, code in zip(pair, codes, strict=True))] += 1
                found = wrong_with(Path("F")) + [f"ended with {code}" for code in codes if code not in (0, 2, 3)]
                mixed += [f"{pair}: {words}" for words in found]
                if Path("F", "audit.json").exists():
                    do("purge")
        finally:
            os.chdir(where)
    return {"races": count, "mixed": len(mixed), "first": mixed[:10], "ended": dict(ended)}
