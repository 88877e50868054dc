"""What every setting of the papers' experiments is given, and how it leaves its results."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"
LARGEST_SUMMARY = 5 * 10**6  # bytes of per-record summaries a setting


class OutOfTime(Exception):
    """The seconds of --limit are over; what is finished is kept in --work."""


@dataclass(frozen=True)
class Setting:
    """One experiment: `run(job)` trains what is missing, measures, and calls `job.save`."""

    name: str
    title: str
    run: Callable[[Job], None]


@dataclass(frozen=True)
class Job:
    """One command's wishes. Everything that took time to make is kept under `work`, so that the next command goes on.

    data : the folder of data sets, None where a small run makes its own. work : a folder of this setting's own.
    deadline : of `time.monotonic`, None for no end. small : few models, few epochs, on the CPU in seconds.
    out : where results go, the repository's folder unless told (a small run's go to `work`).
    """

    setting: str
    data: Path | None
    work: Path
    models: int = 200
    targets: int = 16
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0
    small: bool = False
    deadline: float | None = None
    out: Path = RESULTS

    def has_time_for(self, seconds: float) -> bool:
        return self.deadline is None or time.monotonic() + seconds <= self.deadline

    def stop_in_time(self) -> None:
        """Raise OutOfTime where the deadline has passed; call it after each model or batch that has been kept."""
        if not self.has_time_for(0):
            raise OutOfTime

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the phase `name`, over all commands that worked in this folder."""
        self._wait()
        began = time.perf_counter()
        try:
            yield
        finally:
            self._wait()
            spent = self.seconds()
            spent[name] = round(spent.get(name, 0.0) + time.perf_counter() - began, 4)
            write_json(self._clock, spent)

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase so far."""
        return json.loads(self._clock.read_text()) if self._clock.exists() else {}

    def save(self, name: str, result: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> Path:
        """Write NAME.json, and NAME.npz with per-record summaries: floats as float16, 5 MB at most."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{name}.json"
        if arrays is not None:
            kept = {key: _small(np.asarray(value)) for key, value in arrays.items()}
            summary = path.with_suffix(".npz")
            np.savez_compressed(summary, **kept)
            if summary.stat().st_size > LARGEST_SUMMARY:
                size = summary.stat().st_size
                raise ValueError(f"{summary.name} has {size} bytes, more than {LARGEST_SUMMARY}: keep fewer summaries")
        write_json(path, {"setting": self.setting, "environment": environment(self.device), **asked(self), **result})
        return path

    @property
    def _clock(self) -> Path:
        return self.work / "seconds.json"

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def asked(job: Job) -> dict[str, Any]:
    """What was asked for, as it stands in the results."""
    return {"models": job.models, "targets": job.targets, "seed": job.seed, "small": job.small}


def environment(device: torch.device) -> dict[str, Any]:
    """Where a result was measured."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else f"cpu, {torch.get_num_threads()} threads",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def write_json(path: Path, value: Any) -> None:
    """In one go: a command that is killed leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def check_plan(marker: Path, plan: Mapping[str, Any]) -> None:
    """Refuse a folder of --work that is of something else; one without a marker is of nothing yet."""
    if not marker.exists():
        return
    was, now = json.loads(marker.read_text()), json.loads(json.dumps(dict(plan)))
    other = sorted(name for name in {*was, *now} if was.get(name) != now.get(name))
    if other:
        raise SystemExit(f"work: {marker.parent} is of another {', '.join(other)}: take another folder")


def keep_plan(marker: Path, plan: Mapping[str, Any]) -> None:
    """Note what a folder of --work is of, and refuse one that is of something else."""
    check_plan(marker, plan)
    if not marker.exists():
        write_json(marker, dict(plan))


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """The same for an .npz of --work, in the precision it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part.npz")
    np.savez(beside, **arrays)
    beside.replace(path)


def _small(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16) if values.dtype.kind == "f" else values
