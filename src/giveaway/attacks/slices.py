"""Slices: models of one plan that are trained apart, on any machine that sees the folder, and joined at the end."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from giveaway.attacks import shadow_store
from giveaway.attacks.shadow_store import SLICES, Folder, ShadowFolder, ShadowPlan, ShadowStore
from giveaway.checks import fail
from giveaway.records import Signals
from giveaway.records.signals import MARKER

OF_SLICE = ("only", "models", "about")  # what a slice's marker says besides the plan of all models


def slice_of(plan: ShadowPlan, only: range, folder: Folder, about: Mapping[str, Any]) -> tuple[ShadowPlan, Path]:
    """Return the plan of a slice and its folder, that of all models where they are joined already; refuse an overlap.
    `about` is for who collects the slices."""
    main = ShadowFolder(folder)
    if only.step != 1 or not 0 <= only.start < only.stop <= plan.models:
        expected, remedy = f"models in 0:{plan.models}", "count from 0; the second number is the first not to train"
        raise fail("only", expected, f"{only.start}:{only.stop}", remedy)
    joined = range(Signals.load(folder).models if (main.path / MARKER).is_file() else 0)
    if only.stop <= joined.stop:
        return replace(plan, models=only.stop), main.path
    for other in (joined, *main.slices()):
        if other != only and set(other) & set(only):
            got, remedy = f"some of {other.start}:{other.stop}", "name slices that do not overlap"
            raise fail("only", "models that no other slice has", got, remedy)
    stated = {**plan.provenance, "only": [only.start, only.stop], "models": plan.models, "about": dict(about)}
    place = main.path / SLICES / f"{only.start:06d}-{only.stop:06d}"
    return replace(plan, first=only.start, models=only.stop, provenance=stated), place


def collect_slices(folder: Folder) -> tuple[Signals, Mapping[str, Any]]:
    """Join the slices in a folder of signals; return the signals of all models, and what was told `about` the slices.

    A slice that is missing or unfinished is refused, and so is one of another recipe, seed or version than the first.
    """
    main = ShadowFolder(folder)
    if not (slices := {only: part for only, part in main.slices().items() if part.marked}):
        return Signals.load(folder), {}
    with ExitStack() as locks:
        for part in slices.values():
            locks.enter_context(part.locked())
        expected = {name: value for name, value in next(iter(slices.values())).read().items() if name != "files"}
        for part in slices.values():
            stated, remedy = part.read(), f"remove {part.path} with giveaway purge, and train it again"
            part.check(stated, {**expected, "only": stated["only"]}, "slices of one recipe and version", remedy)
        done = {only: Signals.load(part.path) for only, part in slices.items() if (part.path / MARKER).is_file()}
        plan = _plan_of_all(expected, next(iter(done.values()), None))
        if missing := set(plan.numbers).difference(ShadowStore(folder, plan).finished(), *done):
            got = f"{len(missing)} missing, the first of them number {min(missing)}"
            raise fail("collect", f"all {plan.models} models", got, "train the slices that hold them (--only)")
        with shadow_store.open_store(folder, plan) as store:
            for only, part in slices.items():
                rows = ShadowStore(part.path, replace(plan, first=only.start))
                seconds = shadow_store.seconds_in(part.path)
                for number in sorted(set(only) - store.finished()):
                    if refusal := store.put(number, rows.joined(number), seconds[number]):
                        remedy = f"remove {part.path} with giveaway purge, and train it as the others"
                        raise fail("collect", "signals of one kind and type", f"model {number}: {refusal}", remedy)
            signals = store.signals()
    signals = shadow_store.marked_with(signals, folder, next((some.digests for some in done.values()), None))
    for part in slices.values():
        part.remove()
    main.remove_if_empty()
    return signals, expected["about"]


def _plan_of_all(said: Mapping[str, Any], some: Signals | None) -> ShadowPlan:
    """Return the plan whose slices say this, and of which these are some of the signals."""
    known = () if some is None else (some.labels, said["population"], some.population_labels)
    kind = None if some is None else said["kind"]
    plan = shadow_store.plan_of_halves(said["records"], said["models"], kind, {}, said["seed"], *known)
    return replace(plan, provenance={name: value for name, value in said.items() if name not in OF_SLICE})
