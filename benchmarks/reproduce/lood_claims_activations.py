"""What the LOOD paper claims of GELU and ReLU, judged."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Claim, Results, judged
from benchmarks.reproduce.printed_lood import ACTIVATIONS

ERRORS = 2  # standard errors
SPHERE, UNIT_PIXELS = "inputs on the sphere, K(x, x) = 1", "pixels from 0 to 1, σw² = 2"
CENTRED_PIXELS = "centred pixels (v/255 − ½)/¼, σw² = 2, as the networks begin"


def claims_of_activations(results: Results) -> list[Claim]:
    """`results` holds those of lood_figures."""
    found, studied = results.get("lood_activations"), results["lood_figures"]["activations"]["gelu_beside_relu"]
    return [
        _stronger_attack(found, "networks", "retrained networks leak more with GELU than with ReLU"),
        _stronger_attack(found, "nngp_sphere", f"the attack on NNGP is stronger with GELU than with ReLU: {SPHERE}"),
        _stronger_attack(
            found, "nngp_raw", f"the attack on NNGP is stronger with GELU than with ReLU: {CENTRED_PIXELS}"
        ),
        _higher_kl(studied["sphere"], SPHERE),
        _higher_kl(studied["raw"], UNIT_PIXELS),
        _relu_above(studied),
        _gap_grows(studied),
    ]


def _stronger_attack(found: dict[str, Any] | None, where: str, text: str) -> Claim:
    """By the AUC at the record: the mean difference has to be more than ERRORS standard errors above 0."""
    if found is None:
        return judged(text, None, NOT_RUN)
    told = found[where]
    why = (
        f"AUC higher for {told['gelu_higher']} of {found['chosen']} records, mean difference "
        f"{told['mean_difference']:+.3f} ± {told['standard_error']:.3f}".replace("-", "−")
    )
    return judged(text, told["mean_difference"] > ERRORS * told["standard_error"], why)


def _higher_kl(told: dict[str, Any], where: str) -> Claim:
    shares = [cell["kl_higher_than_relu"] for cell in told.values()]
    ratios = [cell["kl_median_of_ratios"] for cell in told.values()]
    text = f"NNGP with GELU has a higher LOOD than with ReLU for most records, at every depth: {where}"
    why = f"higher for {min(shares):.0%} to {max(shares):.0%}, median ratio {min(ratios):.2f} to {max(ratios):.2f}"
    return judged(text, min(shares) > 0.5, why)


def _relu_above(studied: dict[str, Any]) -> Claim:
    """What the text says against its Figure 5, in the setting that is kindest to it."""
    factor, share = ACTIVATIONS["factor"], ACTIVATIONS["share"]
    text = f"LOOD with ReLU is more than {factor:g} times that with GELU for {share:.0%} of records, at every depth"
    lower = {name: [cell[f"kl_lower_by_more_than_{factor:g}"] for cell in studied[name].values()] for name in studied}
    why = "; ".join(
        f"{min(lower[name]):.1%} to {max(lower[name]):.1%} ({where})"
        for name, where in (("raw", UNIT_PIXELS), ("sphere", SPHERE))
    )
    return judged(text, any(min(shares) >= share for shares in lower.values()), why)


def _gap_grows(studied: dict[str, Any]) -> Claim:
    """Away from 1 by a larger factor with every depth, in whichever direction the setting has it."""
    text = "the gap between GELU and ReLU grows with depth (median ratio of their LOOD, in every setting)"
    names = {"sphere": SPHERE, "critical": "on the sphere, critical variances", "raw": UNIT_PIXELS}
    grows, told = True, []
    for name, where in names.items():
        ratios = [cell["kl_median_of_ratios"] for cell in studied[name].values()]
        gaps = [max(ratio, 1 / ratio) for ratio in ratios]
        one_way = all(ratio > 1 for ratio in ratios) or all(ratio < 1 for ratio in ratios)
        grows = grows and one_way and all(b > a for a, b in pairwise(gaps))
        told.append(f"{ratios[0]:.2f} to {ratios[-1]:.2f} ({where})")
    return judged(text, grows, f"depths 2 to 10: {'; '.join(told)}")
