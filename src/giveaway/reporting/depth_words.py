"""What pages say of scores through more of a network than its last layer."""

from __future__ import annotations

from collections.abc import Callable

from giveaway.auditing.depth_options import suffix
from giveaway.records import ScoreTable

CURVATURE = {"hessian": "the exact Hessian", "ekfac": "Kronecker factors, an approximation"}
SAID = 1 / 3  # of the error by chance, from which the bound on what solves leave is said
LAYERS = {"head": "the last linear layer", "all": "all layers", "last:1": "the last layer"}


def layers_of(depth: str) -> str:
    """The layers of a depth, in words."""
    return LAYERS.get(depth, f"the last {depth.removeprefix('last:')} layers")


def about_depths(table: ScoreTable, told: Callable[[int], str]) -> list[str]:
    """What the columns of each depth are, how far they are off, and where they stand."""
    said = []
    for depth, done in table.meta["depths"].items():
        name = f"Columns ending in {suffix(depth)} are scores through {layers_of(depth)} of the network"
        if table.meta.get("unit") == "person":
            name += ", of single records: they stand in scores.csv and are not added up for people"
        how = f"{CURVATURE.get(done['curvature'], 'Gauss–Newton curvature')}, damping {done['damping']:.4g}"
        errors = done.get("sketch_error")
        if errors:
            error = errors.get("newton", next(iter(errors.values())))
            how += f", estimates from {done['probes']} random probes, off by about {100 * error:.2g} % each"
            how += _left_by_solves(done.get("solve_error", 0.0), error)
        if done.get("unsolved"):
            how += f"; {told(done['unsolved'])} solves did not get to their tolerance, as was allowed"
        capped = table.attributes.get(f"newton_capped{suffix(depth)}")
        if capped is not None and capped.any():
            how += f"; newton{suffix(depth)} of {told(int(capped.sum()))} rows is capped"
        said.append(f"{name}: {how}.")
    return said


def _left_by_solves(bound: float, chance: float) -> str:
    """What is said of solves that ended where they may matter."""
    if bound < SAID * chance:
        return ""
    if bound >= 1:
        return " and, as solves ended early, by more than can be said: at best the order of records counts"
    return (
        f" and by what solves leave, at most {100 * bound:.2g} % of the projections that scores are squares of, over "
        "all records together"
    )
