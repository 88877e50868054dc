"""What theory predicts of an attack from one trained model, against the same attack measured over many real refits.

housing  California Housing, standardized, ridge regression (alpha = 1, intercept not penalized), refitted by its normal
         equations. Predicted: TPR at 5 % FPR of the best test of the signed residual, with the plug-ins of
         `predicted_tpr`, from one audited model. Measured, on refits that the test was not fitted on (two halves of the
         refits, each measured with the test of the other):
           tied   accuse where |residual − c/(1 + c)·mean| is small: the theory's test, with mean and spread of the
                  refits without the record and c = sd_in/sd_out (at most 1)
           free   likelihood ratio of two normals with means and spreads of their own
         Thresholds are the 5 % quantile of the refits without the record. Three settings:
           halves  refits on random halves of all 20,640 records, one half audited
           small   103 audited models share the records, 200 each; refits on 200 drawn records, or on 199 and the record
           normal  as small, but 20,600 records drawn from what the theory assumes, 8 normal features and normal noise
classes  success of the best test of φ as predicted from one model against measured. CIFAR-10 and BloodMNIST: the stored
         heads of two networks each and LiRA's success over 200 others (DIR, as in the truth files' README), l2 = 0.01.
         Adult: logistic regression (C = 1) on 2,000 drawn records, one-hot and standardized, refitted on random halves;
         LiRA's tests come from one half of the refits and are measured on the other.

Halves of N records vary less than new draws would: 1 − n/N = ½ of the variance. The library predicts new draws;
`predicted_halves` is the same prediction with that factor, known beforehand, on the spreads.
Standard errors are over pairs of refits, with the tests as they are. Slopes: least squares with an intercept through
the ten deciles of predicted risk.

    python -m benchmarks.theory_calibration --parts housing --data DIR
    python -m benchmarks.theory_calibration --parts classes --data DIR --truth DIR

--data holds california_housing.npz and adult.data.gz, --truth *_cnn_truth.npz and *_cnn_target_*.npz.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression

import giveaway as ga
from benchmarks import data as sets
from benchmarks.drawing import panels, publish
from benchmarks.measuring import ROOT, read_options, write_parts
from benchmarks.measuring import digits as number
from giveaway.attacks.lira import lira, lira_within
from giveaway.attacks.shadow_store import balanced_membership, model_membership
from giveaway.auditing.scoring import LoadedSpan, record_spans
from giveaway.curvature.dense import DenseCurvature
from giveaway.evaluation import effect_sizes, recall_at, spearman, success_rate
from giveaway.extract import from_file
from giveaway.linalg.processes import in_threads
from giveaway.records import Signals
from giveaway.reporting.picture import COLOURS, GREY, PALE
from giveaway.scores.formulas import newton as newton_score
from giveaway.scores.predicted import LARGEST_LEVERAGE, LEAST_SPREAD, ingredients, predict
from giveaway.theory.random_design import random_design
from giveaway.theory.tradeoff import best_success

FPR = 0.05
ALPHA = 1.0
FIRST_TARGET = 10_000  # halves that no refit has
SMALL = 200
BLOCK = 1_024
OUT, IN, NEITHER = 0, 1, 2
HALVES = 0.5  # 1 − n/N


@dataclass(frozen=True)
class Refits:
    """Residuals (models, records) with what each model was to each record; models come in pairs."""

    residual: np.ndarray
    role: np.ndarray


# --- California Housing


def housing(folder: Path, options: argparse.Namespace) -> tuple[dict, Figure]:
    x, y = sets.housing(folder)
    x = np.column_stack([standardized(x), np.ones(len(x))])
    results, drawn = {}, {}
    for name, part in (("halves", halves), ("small", small), ("normal", small)):
        records = (x, y) if name != "normal" else normal_records()
        refits, predicted, about = part(*records, options)
        if name == "normal":
            predicted["with_true_values"] = true_tpr(*records, predicted["record"])
        results[name], drawn[name] = calibrated(refits, predicted, about)
    return results, housing_figure(drawn)


def halves(x: np.ndarray, y: np.ndarray, options: argparse.Namespace) -> tuple[Refits, dict, dict]:
    n = len(x)
    audited = np.flatnonzero(model_membership(FIRST_TARGET, n, seed=0))
    members = balanced_membership(options.refits, n, seed=0)
    theta = np.stack([ridge(x[own], y[own]) for own in members])
    residual = y[audited] - theta @ x[audited].T
    refits = Refits(residual, np.where(members[:, audited], IN, OUT).astype(np.int8))
    predicted = predicted_tpr(x[audited], y[audited], share=HALVES)
    return refits, predicted, {"refits": options.refits, "trained_on": n // 2, "audited_models": 1}


def small(x: np.ndarray, y: np.ndarray, options: argparse.Namespace) -> tuple[Refits, dict, dict]:
    """Every record is audited once, in one of the models that share them; those left over are only drawn from."""
    rng = np.random.default_rng(1)
    groups = rng.permutation(len(x))[: len(x) // SMALL * SMALL].reshape(-1, SMALL)
    audits = [predicted_tpr(x[rows], y[rows], share=1.0) for rows in groups]
    order = groups.ravel()
    predicted = {name: np.concatenate([audit[name] for audit in audits]) for name in audits[0]} | {"record": order}
    points, values = x[order], y[order]
    where = np.full(len(x), -1)
    where[order] = np.arange(len(order))
    draws = 2 * options.pairs
    residual, role = np.empty((draws, len(order)), np.float32), np.empty((draws, len(order)), np.int8)
    for draw in range(draws):
        member = draw % 2 == 1
        rows = rng.choice(len(x), SMALL - member, replace=False)
        curvature = gram(x[rows])
        theta = np.linalg.solve(curvature, x[rows].T @ y[rows])
        error = values - points @ theta
        if member:  # the fit with the record added, exactly: e/(1 + xᵀA⁻¹x)
            error /= 1 + (points @ np.linalg.inv(curvature) * points).sum(1)
        residual[draw], role[draw] = error, IN if member else OUT
        role[draw, where[rows][where[rows] >= 0]] = NEITHER
    about = {"refits": draws, "trained_on": SMALL, "audited_models": len(groups)}
    return Refits(residual, role), predicted, about


def normal_records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x = np.column_stack([rng.standard_normal((20_600, 8)), np.ones(20_600)])
    return x, x.sum(1) + rng.standard_normal(len(x))


def true_tpr(x: np.ndarray, y: np.ndarray, record: np.ndarray) -> np.ndarray:
    """The prediction with h̄, ε and σ² as `normal_records` has them in place of plug-ins."""
    freedom = SMALL - x.shape[1]
    # the others' mean, which the intercept estimates, is one more feature of population leverage 1
    leverage = (x[record, :-1] ** 2).sum(1) + freedom / (SMALL - 1)
    design = random_design(leverage, y[record] - x[record].sum(1), freedom)
    return design.tradeoff("signed").tpr(FPR)


def gram(x: np.ndarray) -> np.ndarray:
    penalty = np.full(x.shape[1], ALPHA)
    penalty[-1] = 0.0
    return x.T @ x + np.diag(penalty)


def ridge(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.linalg.solve(gram(x), x.T @ y)


def predicted_tpr(x: np.ndarray, y: np.ndarray, *, share: float) -> dict[str, np.ndarray]:
    """TPR at FPR from one model trained on all of x, as `scores.predicted` has it, and checked against it at 1 %."""
    theta = ridge(x, y)
    head = ga.Head(x[:, :-1], x @ theta, y, "squared", l2=2 * ALPHA, penalize_intercept=False)
    table = ga.audit(head, scores=["leverage", "loss", "predicted_tpr"])
    h, residual = table["leverage"], np.sqrt(table["loss"])
    freedom = head.n - h.sum()
    variance = residual @ residual / freedom
    own = np.clip(h, 0, LARGEST_LEVERAGE)
    population = (freedom - 2) * own / (1 - own)
    error = np.sqrt(np.maximum((residual / (1 - h)) ** 2 - variance * own / (1 - own), 0))
    curve = random_design(population, error, freedom, variance=variance).tradeoff("signed")
    np.testing.assert_allclose(curve.tpr(0.01), table["predicted_tpr"], rtol=1e-9)
    fewer = random_design(population, error, freedom, variance=share * variance).tradeoff("signed")
    return {
        "predicted": curve.tpr(FPR),
        "predicted_halves": fewer.tpr(FPR),
        "spread": np.sqrt(variance * population / freedom),
        "leverage": h,
    }


def attack(refits: Refits, statistic: Callable[..., np.ndarray]) -> np.ndarray:
    """Accusations (models, records): the models of every other pair by the test of the rest, and the reverse."""
    pair = np.arange(len(refits.residual)) // 2 % 2
    hits = np.zeros(refits.role.shape, dtype=bool)
    for start in range(0, refits.role.shape[1], BLOCK):
        part = slice(start, start + BLOCK)
        for side in (0, 1):
            seen, role = (a[pair != side, part] for a in (refits.residual, refits.role))
            values = statistic(seen, role, refits.residual[pair == side, part])
            reference = statistic(seen, role, seen)
            hits[pair == side, part] = values <= low_quantile(reference, role == OUT)
    return hits


def low_quantile(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The FPR·(count + 1)-th smallest of each column's masked values: what a new one falls below at that rate."""
    ordered = np.sort(np.where(mask, values, np.inf), axis=0)
    place = FPR * (mask.sum(0) + 1) - 1
    assert (place >= 0).all()
    below = np.floor(place).astype(int)
    low, high = (np.take_along_axis(ordered, (below + step)[None], 0)[0] for step in (0, 1))
    return low + (place - below) * (high - low)


def side_moments(values: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    count = mask.sum(0)
    mean = np.where(mask, values, 0).sum(0, dtype=np.float64) / count
    return mean, np.sqrt(np.where(mask, (values - mean) ** 2, 0).sum(0) / count)


def tied(seen: np.ndarray, role: np.ndarray, residual: np.ndarray) -> np.ndarray:
    (mean, sd), (_, sd_in) = side_moments(seen, role == OUT), side_moments(seen, role == IN)
    c = np.minimum(sd_in / sd, 1.0)
    return np.abs(residual - c / (1 + c) * mean)


def free(seen: np.ndarray, role: np.ndarray, residual: np.ndarray) -> np.ndarray:
    (mean, sd), (mean_in, sd_in) = side_moments(seen, role == OUT), side_moments(seen, role == IN)
    return 0.5 * ((residual - mean_in) / sd_in) ** 2 - 0.5 * ((residual - mean) / sd) ** 2


def calibrated(refits: Refits, predicted: dict, about: dict) -> tuple[dict, dict]:
    expected = predicted["predicted"]
    groups = risk_groups(expected)
    sd = side_moments(refits.residual, refits.role == OUT)[1]
    rows = [
        {
            "group": name,
            "records": len(which),
            "leverage": number(predicted["leverage"][which].mean()),
            "spread_measured_over_predicted_25_50_75": number(
                np.quantile(sd[which] / predicted["spread"][which], [0.25, 0.5, 0.75]).tolist()
            ),
            "predicted": number(expected[which].mean()),
            "predicted_halves": number(predicted["predicted_halves"][which].mean()),
        }
        for name, which in groups.items()
    ]
    result: dict[str, Any] = {**about, "alpha": ALPHA, "records": len(expected), "fpr": FPR, "groups": rows}
    for test in (tied, free):
        hits = attack(refits, test)
        tpr, fpr = rates(hits, refits.role, IN, groups), rates(hits, refits.role, OUT, groups)  # (pairs, groups)
        for place, row in enumerate(rows):
            means = {"tpr": number(tpr[:, place].mean()), "fpr": number(fpr[:, place].mean())}
            row[test.__name__] = means | {"tpr_less_fpr": with_error((tpr - fpr)[:, place])}
        slopes = {}
        for column in ("predicted", "predicted_halves"):
            weights = slope_weights([row[column] for row in rows[:10]])
            slopes[f"tpr_on_{column}"] = with_error(tpr[:, :10] @ weights)
            slopes[f"tpr_less_fpr_on_{column}"] = with_error((tpr - fpr)[:, :10] @ weights)
        if "with_true_values" in predicted:
            true = predicted["with_true_values"]
            deciles = dict(list(risk_groups(true).items())[:10])
            excess = rates(hits, refits.role, IN, deciles) - rates(hits, refits.role, OUT, deciles)
            weights = slope_weights([true[which].mean() for which in deciles.values()])
            slopes["tpr_less_fpr_on_prediction_with_true_values"] = with_error(excess @ weights)
        whole = per_record(hits, refits.role)
        result[test.__name__] = {
            "slopes_through_deciles": slopes,
            "spearman_of_deciles": number(spearman(np.arange(10), (tpr - fpr).mean(0)[:10])),
            "spearman_per_record": number(spearman(expected, whole)),
            "spearman_of_leverage_per_record": number(spearman(predicted["leverage"], whole)),
            "noise_ceiling": ceiling(refits, test),
        }
    return result, dict(zip(groups, rows, strict=True))


def slope_weights(at: Sequence[float]) -> np.ndarray:
    """The weights of values at these places in their least-squares slope with an intercept."""
    away = np.asarray(at) - np.mean(at)
    return away / (away @ away)


def per_record(hits: np.ndarray, role: np.ndarray) -> np.ndarray:
    """Each record's TPR less its FPR."""
    inside, outside = role == IN, role == OUT
    return (hits & inside).sum(0) / inside.sum(0) - (hits & outside).sum(0) / outside.sum(0)


def ceiling(refits: Refits, test: Callable[..., np.ndarray]) -> dict:
    """How well a prediction could correlate with what two halves of the refits say, each attacked by itself."""
    sides = []
    for models in half_pairs(len(refits.residual)):
        part = Refits(refits.residual[models], refits.role[models])
        sides.append(per_record(attack(part, test), part.role))
    return reliability(*sides)


def half_pairs(models: int) -> list[np.ndarray]:
    """The models of a random half of the pairs, and those of the others."""
    order = np.random.default_rng(0).permutation(models // 2)
    halves = (order[: models // 4], order[models // 4 :])
    return [np.column_stack([2 * own, 2 * own + 1]).ravel() for own in halves]


def reliability(one: np.ndarray, other: np.ndarray) -> dict:
    """Rank correlation r of two halves. Both together have reliability 2r/(1 + r) (Spearman and Brown), and no
    prediction correlates with them by more than its root."""
    r = spearman(one, other)
    return {"between_halves": number(r), "ceiling": number(np.sqrt(max(2 * r / (1 + r), 0.0)))}


def rates(hits: np.ndarray, role: np.ndarray, kind: int, groups: dict[str, np.ndarray]) -> np.ndarray:
    """Share accused (pairs, groups) among the records that the pair's models trained on, or left out."""
    result = np.empty((len(hits) // 2, len(groups)))
    for place, which in enumerate(groups.values()):
        counted = role[:, which] == kind
        accused = (hits[:, which] & counted).sum(1).reshape(-1, 2).sum(1)
        result[:, place] = accused / counted.sum(1).reshape(-1, 2).sum(1)
    return result


def risk_groups(expected: np.ndarray) -> dict[str, np.ndarray]:
    order = np.argsort(expected, kind="stable")
    groups = {f"decile {place + 1}": part for place, part in enumerate(np.array_split(order, 10))}
    n = len(order)
    return groups | {f"top {100 * share:g} %": order[n - max(1, round(share * n)) :] for share in (0.01, 0.001)}


# --- classes


def classes(folder: Path, options: argparse.Namespace) -> tuple[dict, Figure]:
    results, drawn = {}, {}
    for name in ("cifar10_cnn", "bloodmnist_cnn"):
        success, effect = sets.arrays(options.truth / f"{name}_truth.npz", "attack_success_rate", "effect_size")
        signals = next(options.truth.glob(f"{name}_signals*.npz"), None)
        for target in (200, 201):
            key, path = f"{name} {target}", options.truth / f"{name}_target_{target}.npz"
            (head, _), (index,) = from_file(path, l2=0.01), sets.arrays(path, "index")
            measured = {"success": success[index].astype(np.float64), "effect": effect[index].astype(np.float64)}
            results[key], drawn[key] = compared(head, measured)
            if signals is not None:
                results[key]["mean_success_with_own_and_with_other_references"] = left_out_success(signals, index)
    results["adult"], drawn["adult"] = adult(folder, options.refits)
    return results, classes_figure(drawn)


def compared(head: ga.Head, measured: dict[str, np.ndarray]) -> tuple[dict, tuple]:
    parts, newton = prediction_parts(head)
    gap, inside, outside = parts
    success = predict(head, parts).success
    fewer = best_success(gap, np.sqrt(HALVES) * inside, np.sqrt(HALVES) * outside)
    effect = np.abs(gap) / np.sqrt((inside**2 + outside**2) / 2)
    columns = {
        "predicted_success": success,
        "predicted_success_halves": fewer,
        "measured_success": measured["success"],
        "predicted_effect": effect,
        "predicted_effect_halves": effect / np.sqrt(HALVES),
        "measured_effect": measured["effect"],
    }
    over = {
        f"{side}_measured_over_predicted": measured[side] / own
        for side, own in (("gap", gap), ("sd_in", inside), ("sd_out", outside))
        if side in measured
    }
    rows = [
        {"group": name, "records": len(which)}
        | {column: number(values[which].mean()) for column, values in columns.items()}
        | {column: number(np.median(values[which])) for column, values in over.items()}
        for name, which in risk_groups(success).items()
    ]
    slopes = {}
    for kind in ("success", "effect"):
        at = [row[f"measured_{kind}"] for row in rows[:10]]
        for column in (f"predicted_{kind}", f"predicted_{kind}_halves"):
            slope = slope_weights([row[column] for row in rows[:10]]) @ at
            slopes[f"measured_{kind}_on_{column}"] = number(slope)
    ranks = {
        f"{name} with {kind}": number(spearman(values, measured[kind]))
        for name, values in (("predicted_success", success), ("predicted_effect", effect), ("newton", newton))
        for kind in ("success", "effect")
    }
    found = {
        name: [number(recall_at(values, measured["effect"], top, 0.05)) for top in (0.01, 0.05)]
        for name, values in (("predicted_success", success), ("newton", newton))
    }
    result = {
        "records": head.n,
        "l2": head.l2,
        "groups": rows,
        "slopes_through_deciles": slopes,
        "spearman_per_record": ranks,
        "recall_of_top_1_and_5_percent_by_effect_in_5_percent": found,
    }
    return result, (success, fewer, measured["success"], rows)


def prediction_parts(head: ga.Head) -> tuple[np.ndarray, np.ndarray]:
    """Predicted gap and spreads (3, n) of φ, and newton, as an audit gets them."""
    parts, steps, curvature = np.empty((3, head.n)), np.empty(head.n), DenseCurvature(head)

    def fill(portion: LoadedSpan) -> None:
        for where, batch in portion.batches():
            parts[:, where] = ingredients(batch).cpu().numpy()
            steps[where] = newton_score(batch).cpu().numpy()

    portions = (LoadedSpan(head, span, curvature, None) for span in record_spans(head, curvature))
    in_threads(fill, portions, head.device)
    parts[1:] = np.maximum(parts[1:], LEAST_SPREAD)
    return parts, steps


def left_out_success(file: Path, index: np.ndarray) -> list[float]:
    """Mean success of LiRA over the target's records, each model with all as its references and with all others."""
    phi, members = (values[:200] for values in sets.arrays(file, "phi", "members"))
    members = np.unpackbits(members, axis=1)[:, : phi.shape[1]].astype(bool)
    own = index[index < phi.shape[1]]
    signals = Signals(phi[:, own].astype(np.float64), members[:, own], kind="phi")
    attacks = (lira(signals, signals, centre="mean"), lira_within(signals))
    return [number(success_rate(attack).mean()) for attack in attacks]


def adult(folder: Path, refits: int) -> tuple[dict, tuple]:
    x, y = adult_records(folder, 2_000)
    n, l2 = len(x), 1.0
    members = balanced_membership(refits, n, seed=0)
    fits = [logistic(x[own], y[own], l2) for own in members]
    phi = np.stack([(2 * y - 1) * (x @ fit[:-1] + fit[-1]) for fit in fits])
    audited = np.flatnonzero(model_membership(FIRST_TARGET, n, seed=0))
    signals = Signals(phi[:, audited], members[:, audited], kind="phi")
    found = effect_sizes(signals)
    measured = {
        "success": crossed_success(signals, np.arange(refits) // 2 % 2 == 0),
        "effect": found.effect_size,
        "gap": found.mean_in - found.mean_out,
        "sd_in": found.deviation_in,
        "sd_out": found.deviation_out,
    }
    own = logistic(x[audited], y[audited], l2)
    outputs = x[audited] @ own[:-1] + own[-1]
    head = ga.Head(x[audited], outputs, y[audited], "cross_entropy", l2=l2, penalize_intercept=False)
    result, drawn = compared(head, measured)
    halves = [signals.of_models(own) for own in half_pairs(refits)]
    by_half = {
        "success": [crossed_success(half, np.arange(half.models) // 2 % 2 == 0) for half in halves],
        "effect": [effect_sizes(half).effect_size for half in halves],
    }
    result["noise_ceiling"] = {name: reliability(*sides) for name, sides in by_half.items()}
    about = {
        "refits": refits,
        "features": x.shape[1],
        "training_accuracy": number(((head.outputs[:, 0].numpy() > 0) == y[audited]).mean()),
    }
    return {**about, **result}, drawn


def crossed_success(signals: Signals, first: np.ndarray) -> np.ndarray:
    """LiRA's success at threshold 0, either half of the models attacked with the other as references."""
    sides = [
        success_rate(
            lira(signals.of_models(np.flatnonzero(one)), signals.of_models(np.flatnonzero(~one)), centre="mean")
        )
        for one in (first, ~first)
    ]
    return (sides[0] * first.sum() + sides[1] * (~first).sum()) / len(first)


def adult_records(folder: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` drawn records: numbers and one-hot categories, columns standardized over those drawn."""
    columns, labels = sets.adult(folder)
    drawn = np.random.default_rng(0).choice(len(labels), count, replace=False)
    return standardized(np.hstack(sets.adult_matrices(columns[drawn]))), labels[drawn]


def logistic(x: np.ndarray, y: np.ndarray, l2: float) -> np.ndarray:
    """Weights and then the bias, which is not penalized, of Σ loss + ½·l2·‖w‖² at its minimum."""
    model = LogisticRegression(C=1 / l2, solver="newton-cholesky", tol=1e-8, max_iter=1_000).fit(x, y)
    return np.append(model.coef_[0], model.intercept_)


def standardized(x: np.ndarray) -> np.ndarray:
    deviation = x.std(0)
    return ((x - x.mean(0)) / np.where(deviation > 0, deviation, 1))[:, deviation > 0]


# --- pictures and numbers


def housing_figure(drawn: dict[str, dict]) -> Figure:
    titles = {
        "halves": "Housing, halves of 20,640 records",
        "small": f"Housing, {SMALL} records",
        "normal": f"Normal records, {SMALL} of them",
    }
    figure, plots = panels((11.0, 7.0), [titles[name] for name in drawn] + [""] * len(drawn), len(drawn))
    for place, (name, rows) in enumerate(drawn.items()):
        column = "predicted_halves" if name == "halves" else "predicted"
        keys = list(rows)
        series = [("deciles", keys[:10], "o", COLOURS[0])]
        tops = [(keys[10], keys[10:11], "^", COLOURS[1]), (keys[11], keys[11:], "D", COLOURS[2])]
        for axes, shown in ((plots[place], series), (plots[place + len(drawn)], series + tops)):
            least, most = FPR, FPR
            for label, which, mark, colour in shown:
                at = np.array([rows[key][column] for key in which])
                value, error = np.array([rows[key]["tied"]["tpr_less_fpr"] for key in which]).T
                axes.errorbar(at, FPR + value, 2 * error, fmt=mark, color=colour, markersize=5, capsize=2, label=label)
                least, most = min(least, at.min()), max(most, at.max())
            axes.plot([least, most], [least, most], color=GREY, linestyle=":", linewidth=1.2, label="as predicted")
            axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("predicted TPR at 5 % FPR" + (", spread of halves" if name == "halves" else ""))
    for axes in plots[:: len(drawn)]:
        axes.set_ylabel("5 % + measured (TPR − FPR), ± 2 s.e.")
        axes.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def classes_figure(drawn: dict[str, tuple]) -> Figure:
    titles = {
        "cifar10_cnn 200": "CIFAR-10, network",
        "bloodmnist_cnn 200": "BloodMNIST, network",
        "adult": "Adult, logistic regression",
    }
    figure, plots = panels((11.0, 4.0), list(titles.values()))
    rng = np.random.default_rng(0)
    for axes, key in zip(plots, titles, strict=True):
        _, fewer, measured, rows = drawn[key]
        shown = rng.permutation(len(fewer))[:2_000]
        axes.scatter(fewer[shown], measured[shown], s=4, color=PALE, linewidths=0, label="records", rasterized=True)
        for label, part, mark, colour in (
            ("deciles", rows[:10], "o", COLOURS[0]),
            ("top 1 %", rows[10:11], "^", COLOURS[1]),
            ("top 0.1 %", rows[11:], "D", COLOURS[2]),
        ):
            at = [row["predicted_success_halves"] for row in part]
            axes.plot(at, [row["measured_success"] for row in part], mark, color=colour, markersize=6, label=label)
        axes.plot([0.5, 1], [0.5, 1], color=GREY, linestyle=":", linewidth=1.2, label="as predicted")
        axes.set(xlim=(0.48, 1.01), ylim=(0.38, 1.02), xlabel="predicted success, spread of halves")
    plots[0].set_ylabel("measured success")
    plots[-1].legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def with_error(values: np.ndarray) -> list[float]:
    """Mean over pairs of refits, and its standard error."""
    return [number(values.mean()), number(values.std(ddof=1) / np.sqrt(len(values)))]


PARTS: dict[str, Callable[[Path, argparse.Namespace], tuple[dict, Figure]]] = {"housing": housing, "classes": classes}


def main() -> None:
    options = read_options(
        __doc__,
        "theory_calibration.json",
        needs=("data",),
        parts=PARTS,
        data=Path,
        truth=Path,
        refits=400,  # on random halves
        pairs=800,  # of refits on 200 records, with and without each
        images=ROOT / "docs" / "images",
    )

    def measure(name: str) -> dict[str, Any]:
        found, figure = PARTS[name](options.data, options)
        publish(figure, options.images / f"theory_calibration_{name}.png")
        return found

    write_parts(options.out, options.parts, measure, "scipy")


if __name__ == "__main__":
    main()
