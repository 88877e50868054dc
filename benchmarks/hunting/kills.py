"""kill -9 at random moments of audit, validate, report, gate, purge and the training of shadow models: nothing is lost.

Half of the kills come after a random time, the others at a random rename, sync or removal. After each the folder must
hold the files of one state as its listing says, the old or the new; the user's own file and the finished shadow models
stay; the next run leaves neither a temporary file nor a lock, and a purge that was killed can be repeated.
"""

import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hunting.folders import RULES, quick_pages, run
from giveaway.attacks import Retraining, train_shadows
from giveaway.attacks.shadow_store import ShadowFolder
from giveaway.auditing.store import AuditFolder
from giveaway.records import ScoreTable
from giveaway.storage.files import file_digest

COUNT = 100
N, RECORDS, MODELS = 220, 20, 8
CALLS = ("replace", "fsync", "unlink", "open")
AUDIT = ("audit", "--features", "features.npz", "--l2", "0.5", "--scores", "loss,newton")
WORK = ("audit", "validate", "report", "gate", "purge", "shadows")


def do(work: str, out: str = "F") -> int:
    """Run one command on the folder; return its exit code."""
    if work == "shadows":
        train = Retraining(lambda rows, seed: np.full(RECORDS, float(seed % 7)), records=RECORDS, kind="phi", code="1")
        train_shadows(train, models=MODELS, folder=f"{out}/signals")
        return 0
    more = {"validate": ("--signals", "signals.npz"), "gate": ("rules.toml",)}
    code, said = run(*((*AUDIT, "--out", out) if work == "audit" else (work, out, *more.get(work, ()))))
    if code not in (0, 2, 3):
        Path("said.txt").write_text(said)
    return code


def write_whole() -> None:
    """Audit made-up records into the folder whole, and make signals that go with its scores."""
    rng = np.random.default_rng(0)
    arrays = {"features": rng.normal(size=(N, 4)), "weight": rng.normal(size=(3, 4)), "bias": rng.normal(size=3)}
    np.savez("features.npz", **arrays, targets=np.arange(N) % 3)
    Path("rules.toml").write_text(RULES)
    do("audit", "whole")
    members = np.stack([rng.permutation(np.arange(8) < 4) for _ in range(N)], axis=1)
    effect = 5 * (1 - ScoreTable.load("whole").rank() / N)
    np.savez("signals.npz", phi=rng.normal(size=members.shape) + effect * members, members=members)
    if do("validate", "whole"):
        raise RuntimeError("the signals do not go with the audit")


def child(work: Callable[[], int], at: int | None = None) -> int:
    """Fork a process that does the work, and kills itself at its at-th call that changes a folder."""
    process = os.fork()
    if process:
        return process
    left = [at]

    def counted(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1  # type: ignore[operator]
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    if at is not None:
        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
    try:
        os._exit(work())
    finally:
        os._exit(98)


def wrong_with(folder: Path) -> list[str]:
    """Say what is mixed or lost in an audit folder that a kill left, before and after the next run has held it."""
    place, found = AuditFolder(folder), []
    stored, audit = place.read()["provenance"]["audit"], ScoreTable.load(folder)
    if audit.meta.provenance is None or audit.meta.provenance.audit != stored:
        found.append("the scores of one audit and the listing of another")
    if not np.array_equal(audit["newton"], ScoreTable.load("whole")["newton"]):
        found.append("other scores")
    digests = {name: file_digest(place.verified(name)) for name in place.listed()}
    found += [f"{name} before" for name, digest in place.listed().items() if digests[name] != digest]
    with place.locked():
        pass
    found += [f"{name} after" for name, digest in place.listed().items() if file_digest(folder / name) != digest]
    known = {*place.listed(), place.marker, "notes.txt", "signals", "checkpoint"}
    return found + [f"{path.name} is left" for path in folder.iterdir() if path.name not in known]


def hunt(count: int, seed: int) -> dict[str, Any]:
    rng, where = random.Random(seed), os.getcwd()
    killed, losses, took = Counter[str](), list[str](), dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="hunt-") as place, quick_pages():
        os.chdir(place)
        try:
            write_whole()
            folder, notes = Path("F"), Path("F/notes.txt")
            for number in range(10 * count):
                if sum(killed.values()) == count:
                    break
                if not (folder / "audit.json").exists():
                    notes.unlink(missing_ok=True)  # an audit takes no folder with other files
                    if do("audit"):
                        losses.append(f"audit: refused in {sorted(folder.rglob('*'))}")
                        break
                    notes.write_text("mine")
                work, by_time = WORK[number % len(WORK)], rng.random() < 0.5
                models = len(list(folder.glob("signals/model-*"))) + 9 * (folder / "signals" / "values.npy").exists()
                began = time.perf_counter()
                process = child(lambda work=work: do(work), None if by_time else rng.randrange(1, 60))  # type: ignore[misc]
                if by_time and work in took:
                    time.sleep(rng.random() * took[work])
                    os.kill(process, signal.SIGKILL)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                if status == 0:
                    took.setdefault(work, time.perf_counter() - began)
                if status not in (0, 2, 3, -signal.SIGKILL):  # a folder that was not validated cannot be judged
                    losses.append(f"{work}: ended with {status}")
                killed[work] += status == -signal.SIGKILL
                if work == "purge":
                    do("purge")
                    left = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
                    losses += [f"purge: left {left}"] if left != ["notes.txt"] else []
                else:
                    losses += [f"{work}: {words}" for words in wrong_with(folder)]
                    kept = len(list(folder.glob("signals/model-*"))) + 9 * (folder / "signals" / "values.npy").exists()
                    if kept < models or (work != "shadows" and kept and not ShadowFolder(folder / "signals").marked):
                        losses.append(f"{work}: {models} shadow models then, {kept} now")
                if notes.read_text() != "mine":
                    losses.append(f"{work}: the user's file")
        finally:
            os.chdir(where)
    return {"kills": sum(killed.values()), "of": dict(killed), "losses": len(losses), "first": losses[:10]}
