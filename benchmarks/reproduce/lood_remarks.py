"""What stands under the LOOD table: why printed and ours differ, further correlations, pictures, all from results."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.reproduce.claims import Results


def differences(results: Results) -> list[str]:
    """A sentence for each place where printed and ours are not the same experiment."""
    lines = [
        "Where they differ: the paper's curves carry no numbers, so “printed” is what its text says. Pictures and "
        "settings of Figures 1, 2b, 4, 5 (NNGP), 9 and 13 are on [their own page](lood.md#on-images), with 1,000 to "
        "2,000 records instead of 10,000. Recovered means a cosine of centred pixels above 0.9 there; the paper "
        "judges by eye.",
        "",
    ]
    found = results.get("lood_retrained")
    if found is not None:
        rounds, offsets = found["rounds"], len(found["mean_auc_along"]["offsets"])
        error = math.sqrt((2 * rounds + 1) / (12 * rounds**2))
        lines += [
            f"The offset of the largest AUC is that of {offsets} AUCs of {rounds} against {rounds} networks each, "
            f"whose standard error is up to {error:.2f}: where a record leaks little, its place is chance. The paper "
            f"does not say how its networks were trained; ours are trained {1 + found['chosen']} at a time, which "
            "makes the ratio of times smaller than one by one would.",
            "",
        ]
    return lines


def correlations(results: Results) -> list[str]:
    lines: list[str] = []
    found = results.get("lood_retrained")
    if found is not None:
        lines += [
            "Correlation with the networks' AUC, Pearson · Spearman (NTK is ours), and with their effect size, which "
            "has no ceiling: |mean with − mean without| over the deviation. The AUC of half the rounds with that of "
            f"the other half: {both(found['auc_of_half_the_rounds_with_the_other'])}. Networks' AUC: quarters at "
            f"{', '.join(f'{value:.2f}' for value in found['auc']['networks'][1:4])}; NNGP's: "
            f"{', '.join(f'{value:.2f}' for value in found['auc']['nngp'][1:4])}.",
            "",
            "| | AUC of the Gaussian process | KL | mean distance |",
            "|---|---|---|---|",
        ]
        for name, keys in (
            ("NNGP", ("nngp_auc", "lood_kl", "lood_mean")),
            ("NTK", ("ntk_auc", "ntk_lood_kl", "ntk_lood_mean")),
        ):
            for truth, said in (("auc", "AUC"), ("effect_size", "effect size")):
                told = found[f"correlation_with_{truth}"]
                lines.append(f"| {name}, with the {said} | {' | '.join(pair(told[key]) for key in keys)} |")
        by_noise = ", ".join(f"{pair(cell['nngp_auc'])} (σ² = {noise})" for noise, cell in found["by_noise"].items())
        lines += ["", f"The AUC of NNGP for other noises: {by_noise}.", ""]
    found = results.get("lood_influence")
    if found is not None:
        lines += [
            f"Influence and TracIn are means over {found['networks']} networks trained on everyone; λ is over the "
            "largest eigenvalue of the Gauss–Newton matrix. Pearson · Spearman with the change of the prediction, and "
            "of squares with its square:",
            "",
            "| | change | square |",
            "|---|---|---|",
        ]
        for name, cell in found["with_the_change"].items():
            lines.append(f"| {_title(name)} | {pair(cell)} | {pair(found['with_its_square'][name])} |")
        lines.append("")
    return lines


def _title(name: str) -> str:
    plain = {"lood_mean": "mean distance, NNGP", "ntk_lood_mean": "mean distance, NTK (ours)", "tracin": "TracIn"}
    if name in plain:
        return plain[name]
    score, damping = name.rsplit("_", 1)
    return f"{'influence' if score == 'influence' else 'Newton step (ours)'}, λ {damping}"


def pictures(results: Results) -> list[str]:
    drawn = {
        "lood_retrained": [
            ("The attack on networks and on NNGP", "lood_retrained"),
            ("AUC at the record and beside it", "lood_perturbed"),
        ],
        "lood_influence": [("Predicted and measured change of the prediction", "lood_influence")],
        "lood_activations": [("GELU and ReLU on networks and on NNGP", "lood_networks")],
        "lood_correlation": [("LOOD and the attack's AUC", "lood_correlation")],
    }
    found = [picture for name, pictures in drawn.items() if name in results for picture in pictures]
    return [line for title, file in found for line in (f"![{title}](images/{file}.png)", "")]


def plus(value: dict[str, Any], digits: int = 1) -> str:
    return f"{value['mean']:.{digits}f} ± {value['deviation']:.{digits}f}".replace("-", "−")


def both(value: dict[str, float]) -> str:
    text = f"Pearson {value['pearson']:.2f} (p = {value['p']:.1g}), Spearman {value['spearman']:.2f}"
    return text.replace(" -", " −")


def pair(value: dict[str, float]) -> str:
    return f"{value['pearson']:.2f} · {value['spearman']:.2f}".replace("-", "−")


def between(shares: list[float]) -> str:
    return f"{min(shares):.4f} to {max(shares):.4f} in {len(shares)} records"
