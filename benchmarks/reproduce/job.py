"""What a setting is given, how it keeps finished work between commands, and how it leaves its results."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import environment, read_json, wait_for, write_json

RESULTS = Path(__file__).parent / "results"
LARGEST_SUMMARY = 5 * 10**6  # bytes of per-record summaries per setting
SETTINGS = {  # the module of each, which has it in its dict `RUNS`
    **dict.fromkeys(("energy_mlp", "california_linear", "california_mlp"), "per_sample.settings"),
    **dict.fromkeys(("california_splits", "bloodmnist_384", "glyphs_mlp"), "per_sample.settings"),
    **dict.fromkeys(("california_mlp_whole", "cifar10_cnn_whole"), "per_sample.settings"),
    **dict.fromkeys(("bloodmnist_head", "cifar10_cnn", "cifar100_resnet20"), "per_sample.settings"),
    **dict.fromkeys(("sst2_head", "sst2_transformer"), "per_sample.settings"),
    **dict.fromkeys(("gls_resnet18", "gls_resnet18_long", "gls_full_model"), "gls.run"),
    **dict.fromkeys(("gls_averaged", "gls_elsewhere"), "gls.run"),
    **dict.fromkeys(("lood_retrained", "lood_correlation"), "lood.attacks"),
    **{"lood_influence": "lood.influence", "lood_activations": "lood.attacks"},
    **{"lood_queries": "lood.searches", "lood_searches": "lood.searches", "lood_toys": "lood.toys"},
}
Arrays = dict[str, np.ndarray]
Piece = tuple[Arrays, dict[str, Any]]  # columns of a finished piece of work, and notes on it


class OutOfTime(Exception):
    """The seconds of --limit are over; finished work is kept in --work."""


@dataclass(frozen=True)
class Job:
    """The options of one command. Finished work is kept under `work`, and the next command continues from there.

    data : the folder of data sets, None where a small run makes its own. work : a folder of this setting's own.
    deadline : a time of `time.monotonic`, None for no end. small : few models and epochs, on the CPU in seconds.
    out : where results go: the repository's folder by default (those of a small run go to `work`).
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

    def run(self) -> None:
        """Train what is missing, measure, and save the results."""
        importlib.import_module(f"benchmarks.reproduce.{SETTINGS[self.setting]}").RUNS[self.setting](self)

    def stop_in_time(self) -> None:
        """Raise OutOfTime if the deadline has passed; call it after each model or batch that has been kept."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the phase `name`, over all commands that worked in this folder."""
        wait_for(self.device)
        began = time.perf_counter()
        try:
            yield
        finally:
            wait_for(self.device)
            spent = self.seconds()
            spent[name] = round(spent.get(name, 0.0) + time.perf_counter() - began, 4)
            write_json(self._clock, spent)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase so far."""
        return read_json(self._clock)

    def piece(self, file: str, phase: str, make: Callable[[], Piece]) -> Piece:
        """Return the piece of work kept in WORK/file, which is made now if no earlier command kept it."""
        path = self.work / file
        if not path.exists():
            self.stop_in_time()
            with self.phase(phase):
                columns, told = make()
            write_piece(path, columns, told)
        return read_piece(path)

    def save_pieces(self, makers: Mapping[str, Callable[[Job], Piece]], **told: Any) -> None:
        """Make the pieces that are not kept yet, and save all as one result: notes by name, columns as NAME_COLUMN."""
        arrays: Arrays = {}
        for name, make in makers.items():
            columns, told[name] = self.piece(f"{name}.npz", name, partial(make, self))
            arrays |= {f"{name}_{key}": column for key, column in columns.items()}
        self.save({**told, "seconds": self.seconds()}, arrays or None)

    def save(self, result: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> Path:
        """Write SETTING.json, and SETTING.npz with per-record summaries: floats as float16, 5 MB at most."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{self.setting}.json"
        if arrays is not None:
            columns = {key: np.asarray(value) for key, value in arrays.items()}
            small = {
                key: value.astype(np.float16) if value.dtype.kind == "f" else value for key, value in columns.items()
            }
            np.savez_compressed(path.with_suffix(".npz"), **small)
            size = path.with_suffix(".npz").stat().st_size
            if size > LARGEST_SUMMARY:
                raise ValueError(f"{path.stem}.npz has {size} bytes, more than {LARGEST_SUMMARY}: keep fewer summaries")
        asked = {"models": self.models, "targets": self.targets, "seed": self.seed, "small": self.small}
        write_json(path, {"setting": self.setting, "environment": environment(self.device), **asked, **result})
        return path

    @property
    def _clock(self) -> Path:
        return self.work / "seconds.json"


def read_result(results: Path, name: str) -> tuple[dict[str, Any], Arrays] | None:
    """Read what `Job.save` wrote, the summaries in float64; None if the setting has not been run."""
    path = results / f"{name}.json"
    if not path.exists():
        return None
    with np.load(path.with_suffix(".npz")) as held:
        return json.loads(path.read_text(encoding="utf-8")), {key: held[key].astype(np.float64) for key in held}


def references_of(job: Job, name: str) -> tuple[dict[str, Any], Arrays]:
    """Return the results of another setting that this one builds on; a small run's are beside it."""
    places = [job.work.parent / f"{name}-small"] if job.small else [job.out, RESULTS]
    for place in places:
        both = all((place / name).with_suffix(kind).exists() for kind in (".json", ".npz"))
        if both and (found := read_result(place, name)) is not None:
            return found
    raise SystemExit(f"{job.setting} needs {name}.json and .npz in {places[0]}: run {name} first")


def check_plan(marker: Path, plan: Mapping[str, Any]) -> None:
    """Refuse a folder of --work that belongs to another plan; one without a marker belongs to none yet."""
    was, now = read_json(marker), json.loads(json.dumps(dict(plan)))
    other = sorted(name for name in {*was, *now} if was.get(name) != now.get(name))
    if was and other:
        raise SystemExit(f"work: {marker.parent} is of another {', '.join(other)}: take another folder")


def keep_plan(marker: Path, plan: Mapping[str, Any]) -> None:
    """Note which plan a folder of --work belongs to, and refuse one that belongs to another."""
    check_plan(marker, plan)
    if not marker.exists():
        write_json(marker, dict(plan))


def write_piece(path: Path, columns: Mapping[str, np.ndarray], told: Mapping[str, Any]) -> None:
    """Write columns in the precision they have, and notes, at once: a killed command leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part.npz")
    np.savez(beside, told=np.array(json.dumps(told, default=str)), **columns)
    beside.replace(path)


def read_piece(path: Path) -> Piece:
    with np.load(path) as held:
        return {name: held[name] for name in held.files if name != "told"}, json.loads(str(held["told"]))
