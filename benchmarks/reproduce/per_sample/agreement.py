"""How well each score of the targets finds what the attacks find, and the summaries that figures are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.reproduce.job import Arrays
from benchmarks.reproduce.per_sample.attacks import GAMMA, Truth
from benchmarks.reproduce.per_sample.data import Data
from giveaway.evaluation import recall_at, recall_curve, spearman

SHARES = (0.001, 0.01, 0.05)
METRICS = ("top 1% in 5%", "0.1%", "1%", "5%", "spearman")
NOT_RANKED_BY = ("leverage",)
GRID = 40  # points of a recall curve
SHOWN = 10


def compare(
    truth: dict[str, Truth], halves: list[Truth], tables: list[Arrays], rows: list[np.ndarray], data: Data
) -> tuple[dict[str, Any], Arrays]:
    """Return what goes into the JSON, and what goes into the .npz."""
    orders = {name: each.ordered for name, each in truth.items()}
    orders |= {"lira_tied": truth["lira"].success, "effect_size": truth["lira"].effect}
    scores = list(dict.fromkeys(name for table in tables for name in table if name not in NOT_RANKED_BY))
    agreement: dict[str, Any] = {}
    each: dict[str, list[float]] = {}
    for against, order in orders.items():
        agreement[against] = {}
        for score in scores:
            found = np.array(
                [figures(table[score], order[own]) for table, own in zip(tables, rows, strict=True) if score in table]
            )
            spread = found.std(axis=0, ddof=1) if len(found) > 1 else np.full(found.shape[1], np.nan)
            agreement[against][score] = {
                metric: [round(float(mean), 5), None if np.isnan(std) else round(float(std), 5)]
                for metric, mean, std in zip(METRICS, found.mean(axis=0), spread, strict=True)
            }
            agreement[against][score]["targets"] = len(found)
            if against == "lira":
                each[score] = found[:, 0].round(4).tolist()
    success = truth["lira"].success
    result: dict[str, Any] = {
        "agreement": agreement,
        "top 1% in 5%, each target": each,
        "attacks": {
            name: {"balanced_accuracy": round(found.accuracy, 5), "threshold": found.threshold}
            for name, found in truth.items()
        },
        "lira_more_often_right": {name: more_often(success, truth[name].success) for name in ("rmia", "shokri")},
        "half_of_the_references_with_the_other": repeated(halves),
        "ties": {"largest_success": float(success.max()), "share_with_it": float((success == success.max()).mean())},
        "newton_over_influence": ratio_error(tables),
        "shown": shown(tables[0], rows[0], data),
    }
    result["attacks"]["rmia"]["gamma"] = GAMMA
    return result, summaries(truth, orders, tables, rows, scores)


def more_often(one: np.ndarray, other: np.ndarray) -> list[float]:
    """Return how much higher one success rate is than the other, and its standard error over the records."""
    more = one.astype(np.float64) - other
    return [round(float(value), 6) for value in (more.mean(), more.std(ddof=1) / np.sqrt(len(more)))]


def figures(score: np.ndarray, order: np.ndarray) -> list[float]:
    """Return the five numbers of one score on one target's records; at least one record is sought and kept."""
    n = len(order)
    shares = [max(share, 1 / n) for share in SHARES]
    recalls = [recall_at(score, order, share, share) for share in shares]
    return [recall_at(score, order, shares[1], shares[2]), *recalls, spearman(score, order)]


def repeated(halves: list[Truth]) -> dict[str, float] | None:
    """Return what the truth of one half of the references finds of the other's, over all records: how noisy a truth is.
    Here both sides have the noise of half of the models; beside a score, one side has that of all."""
    if len(halves) < 2:
        return None
    one, other = (half.ordered for half in halves)
    both = np.mean([figures(one, other), figures(other, one)], axis=0)
    return {metric: round(float(value), 5) for metric, value in zip(METRICS, both, strict=True)}


def ratio_error(tables: list[Arrays]) -> dict[str, float]:
    """Return the largest |newton/influence · (1 − h) − 1| over all records and targets; h at most and in the middle."""
    worst, highest = 0.0, 0.0
    for table in tables:
        usable = table["influence"] > np.finfo(np.float64).tiny
        ratio = table["newton"][usable] / table["influence"][usable]
        worst = max(worst, float(np.abs(ratio * (1 - table["leverage"][usable]) - 1).max()))
        highest = max(highest, float(table["leverage"].max()))
    middle = float(np.median(np.concatenate([table["leverage"] for table in tables])))
    return {"largest_error": worst, "largest_leverage": highest, "median_leverage": middle}


def shown(table: Arrays, rows: np.ndarray, data: Data) -> dict[str, Any]:
    """Return the records with the highest and lowest scores of the first target, by their rows in the file; for
    sentences, the highest themselves."""
    found: dict[str, dict[str, Any]] = {}
    for score in (name for name in ("newton", "influence", "fused") if name in table):
        order = np.argsort(-table[score], kind="stable")
        found[score] = {
            "highest": data.rows[rows[order[:SHOWN]]].tolist(),
            "lowest": data.rows[rows[order[::-1][:SHOWN]]].tolist(),
            "values": [float(f"{value:.5g}") for value in table[score][order[:SHOWN]]],
        }
        if isinstance(data.themselves, list):
            found[score]["sentences"] = data.of(rows[order[:SHOWN]])
    return found


def summaries(
    truth: dict[str, Truth], orders: Arrays, tables: list[Arrays], rows: list[np.ndarray], scores: list[str]
) -> Arrays:
    """Return success and effect of every record, the first target's scores, and recall of the top share in as many."""
    kept: Arrays = {}
    for name, found in truth.items():
        kept |= {f"success_{name}": found.success, f"effect_{name}": found.effect}
    n = min(len(own) for own in rows)
    shares = np.unique(np.rint(np.geomspace(1, n, GRID)).astype(np.int64)) / n
    kept |= {"shares": shares.astype(np.float64), "target_rows": rows[0].astype(np.int32)}
    for score in scores:
        if score in tables[0]:
            values = tables[0][score]
            positive = score not in ("fused", "fused_records")
            kept[f"target_{score}"] = np.log10(np.maximum(values, 1e-30)) if positive else values
        for against in ("lira", "rmia", "shokri"):
            curves = np.array(
                [
                    [recall_curve(table[score], orders[against][own], share, [share])[1][0] for share in shares]
                    for table, own in zip(tables, rows, strict=True)
                    if score in table
                ]
            )
            kept[f"curve_{against}_{score}"] = np.stack([curves.mean(0), curves.std(0), curves[0]])
    return kept
