"""What the second paper claims, and what we claim for `fused`, judged by our results.

A sentence about every setting needs all of them; one that fails in a single setting fails. A sentence about most needs
more than half, and is judged as soon as what is missing cannot change the verdict.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from benchmarks.reproduce.claims import NO_DATA, NOT_RUN, Claim, Results, judged
from benchmarks.reproduce.printed_mia import FASTER, SHORT, TOP

TO_BE_HAD = tuple(name for name in TOP if name != "cifar100_resnet20")  # whose data there are
DEEP = tuple(name for name in TO_BE_HAD if name != "california_linear")
RESNET = "gls_resnet18"  # of the GLS paper: as deep as any, and judged by effect size
ONE_OUTPUT = ("energy_mlp", "california_linear", "california_mlp", "sst2_head", "sst2_transformer")  # or two classes
WHOLE_NETWORK = ("california_mlp", "cifar10_cnn")
ESTIMATES = ("newton", "influence")
RECALL = "top 1% in 5%"
CHANCE = 0.05
ALL_SHORT = {**SHORT, RESNET: "CIFAR-10, ResNet-18"}
ERRORS = 2  # standard errors
EXACT = 1e-6
# runs, known by the seconds of their scores, that found them while another setting was trained on the same GPU
SHARED = {"sst2_transformer": 13.5933}
Seen = dict[str, tuple[bool, str]]  # a setting: whether it is so there, and the numbers


def claims(results: Results) -> list[Claim]:
    """The paper's sentences with their verdicts, and ours last."""
    return [
        _most(
            "Newton step and influence find more of LiRA's top 1 % in 5 % than the loss, on most settings",
            {name: _above_loss(results[name], "lira") for name in _measured(results)},
        ),
        _every(
            "Newton step and influence find more of it than chance (5 %), by two standard errors, on every setting",
            {name: _above_chance(results[name]) for name in _measured(results)},
            TO_BE_HAD,
        ),
        _every(
            "the Newton step is the influence over 1 − h (one output or two classes)",
            {name: _ratio(results[name]) for name in _measured(results, ONE_OUTPUT)},
            ONE_OUTPUT,
        ),
        _every(
            "Newton step and influence find more of RMIA's top 1 % in 5 % than the loss, on every setting",
            {name: _above_loss(results[name], "rmia") for name in _measured(results)},
            TO_BE_HAD,
        ),
        _most(
            "the Newton step finds less of the top of RMIA and of Shokri's attack than of LiRA's, by two standard "
            "errors, on most settings",
            {name: _harder(results[name]) for name in _measured(results)},
        ),
        _every(
            "influence through the whole network finds less than that of the last layer, by two standard errors over "
            "the same targets, and takes longer",
            {name: _whole_network(results[name]) for name in _measured(results, WHOLE_NETWORK)},
            WHOLE_NETWORK,
        ),
        _times_faster(results),
        _every(
            "LiRA has the highest success rate of the three attacks, on every setting",
            {name: _strongest(results[name]) for name in _measured(results)},
            TO_BE_HAD,
        ),
        _every(
            "ours: fused finds more of LiRA's top 1 % in 5 % than the Newton step, on every deep setting",
            {name: _fused(results[name]) for name in _measured(results, DEEP)} | _fused_of_resnet(results.get(RESNET)),
            (*DEEP, RESNET),
        ),
    ]


def recall(found: dict[str, Any], score: str, truth: str = "lira") -> float:
    """Mean over the targets."""
    return found["agreement"][truth][score][RECALL][0]


def times_faster(found: dict[str, Any]) -> float:
    """Training of all references over the scores of one target."""
    return found["seconds"]["references"] / found["seconds"]["per_target"]["surrogates"]


def shared_gpu(found: dict[str, Any]) -> bool:
    return SHARED.get(found["setting"]) == found["seconds"]["surrogates"]


def missing(name: str) -> str:
    """What stands where there is no result."""
    return NOT_RUN if name in TO_BE_HAD else NO_DATA


def _above_loss(found: dict[str, Any], truth: str) -> tuple[bool, str]:
    loss, newton, influence = (recall(found, score, truth) for score in ("loss", *ESTIMATES))
    return min(newton, influence) > loss, f"{_percent(newton)} and {_percent(influence)}, loss {_percent(loss)}"


def _above_chance(found: dict[str, Any]) -> tuple[bool, str]:
    cells = [found["agreement"]["lira"][score] for score in ESTIMATES]
    lows = [cell[RECALL][0] - ERRORS * cell[RECALL][1] / math.sqrt(cell["targets"]) for cell in cells]
    return min(lows) > CHANCE, " and ".join(f"{_percent(cell[RECALL][0])}" for cell in cells)


def _ratio(found: dict[str, Any]) -> tuple[bool, str]:
    told = found["newton_over_influence"]
    why = f"off by {told['largest_error']:.0e} at most, h up to {told['largest_leverage']:.2f}"
    return told["largest_error"] < EXACT, why


def _harder(found: dict[str, Any]) -> tuple[bool, str]:
    lira, *others = (found["agreement"][truth]["newton"][RECALL] for truth in ("lira", "rmia", "shokri"))
    far = [
        lira[0] - mean > ERRORS * math.sqrt((lira[1] ** 2 + spread**2) / found["targets"]) for mean, spread in others
    ]
    told = zip(("LiRA", "RMIA", "Shokri"), (lira, *others), strict=True)
    return all(far), ", ".join(f"{name} {_percent(mean)}" for name, (mean, _) in told)


def _whole_network(found: dict[str, Any]) -> tuple[bool, str]:
    spent, each = found["seconds"]["per_target"], found["top 1% in 5%, each target"]
    whole = each["whole_network"]
    last = each["influence"][: len(whole)]
    more, error = _more(whole, last)
    why = f"{_percent(mean(whole))} in {spent['whole_network']:.3g} s, last layer {_percent(mean(last))} in "
    why += f"{spent['surrogates']:.3g} s{_told_more(whole, last)}"
    return more < -ERRORS * error and spent["whole_network"] > spent["surrogates"], why


def _more(one: list[float], other: list[float]) -> tuple[float, float]:
    """How much more one score finds than another, target by target, and its standard error."""
    more = [100 * (a - b) for a, b in zip(one, other, strict=True)]
    return mean(more), stdev(more) / math.sqrt(len(more)) if len(more) > 1 else math.inf


def _told_more(one: list[float], other: list[float]) -> str:
    more, error = _more(one, other)
    if math.isinf(error):
        return ""
    return f"; {more:+.1f} ± {error:.1f} (standard error) over the same {len(one)} targets".replace("-", "−")


def _times_faster(results: Results) -> Claim:
    """Of the runs that had their machine to themselves."""
    text = (
        f"scores of a target are {FASTER[0]:,} times faster and more than training 200 references, on every setting, "
        "same machine and run"
    )
    shared = [name for name in _measured(results) if shared_gpu(results[name])]
    counted = tuple(name for name in TO_BE_HAD if name not in shared)
    seen = {name: times_faster(results[name]) for name in _measured(results, counted)}
    claim = _every(text, {name: (times >= FASTER[0], f"{times:,.0f} ×") for name, times in seen.items()}, counted)
    beside = [
        f"; not counted: {SHORT[name]} {times_faster(results[name]):,.0f} ×, its scores on a GPU that another training "
        "shared"
        for name in shared
    ]
    return replace(claim, why=claim.why + "".join(beside))


def _strongest(found: dict[str, Any]) -> tuple[bool, str]:
    """By balanced accuracy; RMIA's at its best threshold, which its rate has over LiRA's."""
    of = {name: found["attacks"][name]["balanced_accuracy"] for name in ("lira", "rmia", "shokri")}
    return of["lira"] == max(of.values()), ", ".join(f"{value:.3f}" for value in of.values())


def _fused(found: dict[str, Any]) -> tuple[bool, str]:
    fused, newton = recall(found, "fused"), recall(found, "newton")
    each = found["top 1% in 5%, each target"]
    same = found["agreement"]["lira"]["fused"] == found["agreement"]["lira"]["newton"]
    why = ", the same ranking, as features are not learned there" if same else _told_more(each["fused"], each["newton"])
    return fused > newton, f"{_percent(fused)} against {_percent(newton)}{why}"


def _fused_of_resnet(found: dict[str, Any] | None) -> Seen:
    """Of the targets for which there is fused; nothing where there is none."""
    if found is None or "fused" not in found["beside"]:
        return {}
    of_fused, of_newton = (found["beside"][score]["recall"] for score in ("fused", "newton"))
    fused, newton = list(of_fused.values()), [of_newton[target] for target in of_fused]
    why = f"{_percent(mean(fused))} against {_percent(mean(newton))} of the largest effect sizes"
    return {RESNET: (mean(fused) > mean(newton), why + _told_more(fused, newton))}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _measured(results: Results, names: tuple[str, ...] = TO_BE_HAD) -> list[str]:
    return [name for name in names if name in results]


def _every(text: str, seen: Seen, wanted: tuple[str, ...]) -> Claim:
    if not all(holds for holds, _ in seen.values()):
        return judged(text, False, _told(seen, len(wanted)))
    return judged(text, True if len(seen) == len(wanted) else None, _told(seen, len(wanted)))


def _most(text: str, seen: Seen) -> Claim:
    wanted = len(TO_BE_HAD)
    holding = sum(holds for holds, _ in seen.values())
    failing = len(seen) - holding
    verdict = True if 2 * holding > wanted else False if 2 * failing >= wanted else None
    return judged(text, verdict, _told(seen, wanted))


def _told(seen: Seen, wanted: int) -> str:
    if not seen:
        return NOT_RUN
    holding = sum(holds for holds, _ in seen.values())
    cells = [f"{ALL_SHORT[name]} {why}" + ("" if holds else " (not so)") for name, (holds, why) in seen.items()]
    missing = f", {wanted - len(seen)} not run yet" if len(seen) < wanted else ""
    return f"so in {holding} of {len(seen)}{missing}: {'; '.join(cells)}"
