"""From kept φ and leverage to the GLS paper's table and figures: rank correlations, costs, curves, extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.reproduce.gls import truth as shadows
from benchmarks.reproduce.gls.leverage import BESIDE, SUMMARIES
from benchmarks.reproduce.gls.training import CLASSES, DEPTHS, members_of
from benchmarks.reproduce.gls.truth import METRICS, ascending, spread, tradeoff
from benchmarks.reproduce.gls.work import Store
from benchmarks.reproduce.job import Arrays, Piece
from giveaway.attacks.lira import lira_within
from giveaway.attacks.thresholds import AttackScores
from giveaway.evaluation import effect_sizes, recall_at, spearman
from giveaway.records import Signals

FIRST = 128  # records of a target, as in the paper
ENDS = 10  # images of Figure 3
TOP = (0.01, 0.05)  # sought, kept

Known = tuple[Arrays, np.ndarray]  # of a target: each metric of every record, and which it trained on


def measure(kept: Store, labels: np.ndarray, models: int, targets: int, seed: int) -> tuple[dict[str, Any], Arrays]:
    """Return the result, and per-record summaries."""
    held = [kept.phi(number) for number in range(models)]
    members = np.stack([members_of(number, len(labels), seed) for number in range(models)])
    signals = Signals(np.stack([phi for phi, _ in held]), members, kind="phi")
    attack = lira_within(signals)
    told = [note for _, note in held]
    truth = [shadows.said_of_target(signals, attack, number) for number in range(targets)]
    effect = effect_sizes(signals)
    result: dict[str, Any] = {
        "records": len(labels),
        "models_trained": models,
        **of_training(told),
        "seconds_a_model": spread([note["seconds"] for note in told]),
        "attack": shadows.strength(attack),
        "lira_of_two_targets": shadows.between_targets(attack, targets),
        "two_halves_of_the_models": shadows.between_halves(signals),
        "depths": {},
        "not_to_be_had": {},
    }
    arrays = {name: getattr(effect, name) for name in shadows.MOMENTS}
    for depth in DEPTHS:
        have = [number for number in range(targets) if kept.has_piece(number, depth)]
        if reasons := kept.reasons(range(targets), depth):
            result["not_to_be_had"][depth] = reasons
        if not have:
            continue
        known = {number: (truth[number], members[number]) for number in have}
        result["depths"][depth] = at_depth(kept, depth, known)
        mean = mean_by_record([kept.piece(number, depth)[0]["gls_trace"] for number in have], members[have])
        result["depths"][depth]["tradeoff"], curves = tradeoff(mean, attack)
        place = DEPTHS.index(depth)
        arrays |= {f"gls_{place}": mean, f"tradeoff_{place}": curves}
    _beside(result, kept, members, truth, attack, targets)
    _checked(result, kept)
    if "gls_0" in arrays:  # rows of the images with the highest and lowest leverage of the last layer
        order = ascending(arrays["gls_0"])
        result["extremes"] = {"highest": order[::-1][:ENDS].tolist(), "lowest": order[:ENDS].tolist()}
    _drawn(result, arrays, kept, labels, members)
    return result, arrays


def of_training(notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return where models were trained, and how good they are."""
    return {
        "trained_on": sorted({note["environment"]["device"] for note in notes}),
        "accuracy": {name: spread([note[name] for note in notes]) for name in notes[0] if name.startswith("accuracy")},
    }


def at_depth(kept: Store, depth: str, known: Mapping[int, Known]) -> dict[str, Any]:
    """Return what this depth cost, and how its scores go with what is known of each of these targets."""
    scored = {number: kept.piece(number, depth) for number in known}
    columns = {number: own for number, (own, _) in scored.items()}
    last = {number: kept.piece(number, DEPTHS[0])[0]["gls_trace"] for number in known}
    return {
        "targets": len(known),
        **_cost([*scored.values()]),
        "all": _correlations(columns, known, None),
        "first": _correlations(columns, known, FIRST),
        "last layer of these targets": {
            metric: spread([spearman(last[number], truth[metric][own]) for number, (truth, own) in known.items()])
            for metric in ("lira", "effect_size")
        },
        "with the last layer": spread([spearman(columns[number]["gls_trace"], last[number]) for number in known]),
    }


def _correlations(columns: Mapping[int, Arrays], known: Mapping[int, Known], first: int | None) -> dict[str, Any]:
    """Correlate each score with each metric over a target's training records (or the first of them), over targets."""
    found: dict[str, Any] = {score: {} for score in SUMMARIES}
    told = [metric for metric in METRICS if all(metric in truth for truth, _ in known.values())]
    for score in SUMMARIES:
        for metric in told:
            values = []
            for number, (truth, members) in known.items():
                own = np.flatnonzero(members)[:first]
                values.append(spearman(columns[number][score][: len(own)], truth[metric][own]))
            found[score][metric] = spread(values)
    for score in SUMMARIES[1:]:
        pairs = [(own["gls_trace"][:first], own[score][:first]) for own in columns.values()]
        found[f"{score}_with_trace"] = spread([spearman(a, b) for a, b in pairs])
    return found


def _beside(
    result: dict[str, Any],
    kept: Store,
    members: np.ndarray,
    truth: Sequence[Arrays],
    attack: AttackScores,
    targets: int,
) -> None:
    """Measure scores of the head and ours, each over the targets that have it. How much of the 1 % with the largest
    effect size is in 5 % is told target by target; LiRA's AUC on the highest mean scores needs targets with all."""
    scored = {DEPTHS[0]: ("gls_trace", *BESIDE), "fused": ("fused",)}
    having = {piece: [number for number in range(targets) if kept.has_piece(number, piece)] for piece in scored}
    all_have = [number for number in range(targets) if all(number in have for have in having.values() if have)]
    found: dict[str, Any] = {}
    for piece, names in scored.items():
        for name in names if having[piece] else ():
            columns = {number: kept.piece(number, piece)[0][name] for number in having[piece]}
            known = [(columns[number], truth[number], members[number]) for number in columns]
            found[name] = {
                metric: spread([spearman(column, said[metric][own]) for column, said, own in known])
                for metric in METRICS
            }
            common = mean_by_record([columns[number] for number in all_have], members[all_have])
            found[name] |= {
                "targets": len(columns),
                "recall": {
                    number: round(recall_at(column, truth[number]["effect_size"][members[number]], *TOP), 4)
                    for number, column in columns.items()
                },
                "auc_of_the_highest": tradeoff(common, attack)[0]["highest"]["auc"],
                "targets_of_auc": len(all_have),
            }
    views = [kept.piece(number, "fused")[1].get("view") for number in having["fused"]]
    if views and all(views):
        names = ("memorized", "held_by_memory", "head_weight", "left_out_error")
        found["fused"]["view"] = {name: spread([view[name] for view in views]) for name in names}
    result["beside"] = found


def _checked(result: dict[str, Any], kept: Store) -> None:
    """Compare projections with right-hand sides of the records' own."""
    if not (kept.has_piece(0, "checked") and kept.has_piece(0, DEPTHS[1])):
        return
    columns, told = kept.piece(0, "checked")
    exact = columns["gls_trace"]
    sketched = kept.piece(0, DEPTHS[1])[0]["gls_trace"][: len(exact)]
    result["checked"] = {
        "depth": DEPTHS[1],
        "records": len(exact),
        "seconds": told["seconds"],
        "worst_residual": told["worst_residual"],
        "spearman": round(spearman(sketched, exact), 4) if len(exact) > 1 else None,
        "relative_error": round(float(np.sqrt(np.mean((10 ** (sketched - exact) - 1) ** 2))), 4),
    }


def _cost(pieces: Sequence[Piece]) -> dict[str, Any]:
    notes = [note for _, note in pieces]
    found: dict[str, Any] = {name: notes[0][name] for name in ("parameters", "damping", "probes") if name in notes[0]}
    found["seconds"] = spread([note["seconds"] for note in notes])
    for name in ("peak_gb", "worst_residual", "most_steps_taken", "column_passes"):
        if name in notes[0]:
            found[name] = max(note[name] for note in notes)
    if "sketch_error" in notes[0]:
        found["sketch_error"] = round(float(np.mean([note["sketch_error"]["gls_trace"] for note in notes])), 4)
        found["solve_error"] = round(max(note["solve_error"] for note in notes), 4)
        found["sum_of_traces"] = spread([(10 ** columns["gls_trace"]).sum() for columns, _ in pieces])
        found["right_sides"], found["unsolved"] = (
            sum(note[name] for note in notes) for name in ("right_sides", "unsolved")
        )
    return found


def mean_by_record(columns: Sequence[np.ndarray], members: np.ndarray) -> np.ndarray:
    """Return the mean logarithm over the targets trained on a record, from each target's mean; NaN if there is none."""
    total, count = np.zeros(members.shape[1]), members.sum(0)
    for column, own in zip(columns, members, strict=True):
        total[own] += column - column.mean()
    return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)


def _drawn(result: dict[str, Any], arrays: Arrays, kept: Store, labels: np.ndarray, members: np.ndarray) -> None:
    """Place one class's features of the first target by t-SNE."""
    if not kept.has_piece(0, "drawn"):
        return
    from sklearn.manifold import TSNE

    columns, told = kept.piece(0, "drawn")
    points = columns["pictured"]
    own = np.flatnonzero(members[0])
    rows = labels[own] == CLASSES.index(told["class"])
    leverage = kept.piece(0, DEPTHS[0])[0]["gls_trace"][rows]
    perplexity = min(30.0, max(1.0, (len(points) - 1) / 4))
    placed = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points)
    arrays |= {"drawn_at": placed, "drawn_leverage": leverage}
    away = np.linalg.norm(points - points.mean(0), axis=1)
    result["drawn"] = {
        "class": told["class"],
        "records": len(points),
        "spearman_distance_from_centre": round(spearman(away, leverage), 4),
    }
