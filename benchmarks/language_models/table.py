"""Every score of the targets' documents against the truth: recalls of the top 1 % and 5 % in the top 5 %, Spearman's
correlation; and for scores that tell members from others, the true-positive rates of that attack.

The truth of a target is the effect size by all other models. What LiRA with few models reaches stands in truth's own
file. Rules were chosen on SST-2; AG News is the check.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import giveaway as ga
from benchmarks.data import arrays
from benchmarks.language_models.texts import Documents
from benchmarks.language_models.tokens import ATTACKS, KEPT
from benchmarks.language_models.train import read_pretrained
from benchmarks.language_models.truth import RATES, settings, signals_of
from benchmarks.measuring import digits, environment, write_json
from giveaway.evaluation import effect_sizes, recall_at, spearman
from giveaway.records.texts import Texts

FIGURES = ("top 1 % in 5 %", "top 5 % in 5 %", "Spearman")
HIGH = ("base_gap", "error_gap")  # high for members; the others are low


def write_table(work: Path, out: Path, documents: Documents) -> None:
    """Measure every setting whose targets were asked, print a row a score, and write all to the file `out`."""
    results: dict[str, Any] = {"environment": environment()}
    for name, (kind, stage) in settings(work).items():
        file = work / f"{kind}_epoch_{stage}_tokens.npz"
        if not file.exists():
            continue
        results[name] = measure(work, file, kind, stage, documents)
        write_json(out, results)
        print(f"{name}, {results[name]['targets']} targets")
        for score, told in results[name]["scores"].items():
            figures = [f"{mean:.3f} ± {error:.3f}" for mean, error in (told[one] for one in FIGURES)]
            rates = [str(told[one]) for one in told if one.startswith("TPR")]
            print(" | ".join([score, *figures, *rates]), flush=True)


def measure(work: Path, file: Path, kind: str, stage: int, documents: Documents) -> dict[str, Any]:
    signals = signals_of(work, kind, stage)
    first = min(work.glob(f"{kind}_0_*.npz"))
    targets, seen = arrays(first, "targets", "losses_seen")
    figures: dict[str, list[list[float]]] = {}
    attacks: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {one: ([], []) for one in ATTACKS}
    for place, target in enumerate(targets.tolist()):
        rows = np.flatnonzero(signals.members[target])
        truth = effect_sizes(signals.of_models(np.delete(np.arange(signals.models), target))).effect_size[rows]
        with np.load(file) as held:
            columns = columns_of(work, held, target, documents, rows, seen[place, :stage][:, rows])
            for one in ATTACKS:
                sign = 1.0 if one in HIGH else -1.0
                attacks[one][0].append(sign * columns[one])
                attacks[one][1].append(sign * held[f"outside_{one}_{target}"])
            if "zlib_ratio" in columns:
                tokens, starts = tokens_of(documents, np.flatnonzero(~signals.members[target]))
                size = [len(zlib.compress(text.encode())) for text in contents_of(work, tokens, starts)]
                inside, outside = attacks.setdefault("zlib_ratio", ([], []))
                inside.append(-columns["zlib_ratio"])
                outside.append(-held[f"outside_loss_{target}"] * np.diff(starts) / size)
        for one, score in columns.items():
            figures.setdefault(one, []).append(
                [recall_at(score, truth, 0.01, 0.05), recall_at(score, truth, 0.05, 0.05), spearman(score, truth)]
            )
    told: dict[str, Any] = {}
    for one, values in figures.items():
        mean, error = np.mean(values, 0), np.std(values, 0, ddof=min(1, len(values) - 1)) / len(values) ** 0.5
        told[one] = {name: digits([mean[k], error[k]]) for k, name in enumerate(FIGURES)}
        told[one]["each target"] = digits([value[0] for value in values])
    for one, (inside, outside) in attacks.items():
        told[one] |= rates_of(np.concatenate(inside), np.concatenate(outside))
    return {"models": signals.models, "targets": len(targets), "scores": told}


def columns_of(
    work: Path, held: Any, target: int, documents: Documents, rows: np.ndarray, seen: np.ndarray
) -> dict[str, np.ndarray]:
    """Return every score of a target's documents, as `ga.audit` gives them."""
    tokens, starts = tokens_of(documents, rows)
    of_tokens: Any = {one: held[f"{one}_{target}"] for one in KEPT}
    of_tokens = {name: values if name == "best" else values.astype(np.float64) for name, values in of_tokens.items()}
    names = ("leverage", "influence", "newton", "newton_error")
    steps = {name: held[f"head_{name}_{target}"] for name in names}
    shape, _ = read_pretrained(work / "pretrained.npz")
    words = contents_of(work, tokens, starts) if (work / "tokenizer.json").exists() else None
    named: Any = {"contents": words, "ids": rows, "steps": steps}
    texts = Texts(starts, tokens, shape.vocabulary, **of_tokens, **named)
    trace = ga.LossTrace.from_losses(seen.astype(np.float64), ids=rows)
    table = ga.audit(texts, trace=trace)
    columns = {one: table[one] for one in table.columns}
    columns["fused without the trace"] = ga.audit(texts)["fused"]
    columns["fused without newton"] = ga.audit(replace(texts, steps=None), trace=trace)["fused"]
    if f"adapters_newton_{target}" in held:
        adapters = replace(texts, steps={name: held[f"adapters_{name}_{target}"] for name in names})
        table = ga.audit(adapters, trace=trace)
        columns |= {f"{one} (adapters)": table[one] for one in ("leverage", "newton", "fused")}
    return columns


def tokens_of(documents: Documents, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that some documents predict, one after the other, and where each begins and the last ends."""
    lengths = documents.lengths.numpy()[rows]
    there = np.arange(1, documents.tokens.shape[1]) < lengths[:, None]
    return documents.tokens.numpy()[rows, 1:][there], np.concatenate([[0], np.cumsum(lengths - 1)])


def rates_of(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """Return the share of members above all but these shares of the others."""
    return {f"TPR at {rate:.1%}": digits(float((inside > np.quantile(outside, 1 - rate)).mean())) for rate in RATES}


def contents_of(work: Path, tokens: np.ndarray, starts: np.ndarray) -> list[str]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    return tokenizer.decode_batch([part.tolist() for part in np.split(tokens, starts[1:-1])], skip_special_tokens=False)
