"""LiRA, the likelihood-ratio attack (Carlini et al. 2022): is a model's φ on a record more like that of models trained
with it, or without it? (docs/derivations.md has the variants)"""

import numpy as np
from scipy.special import log_ndtr

from giveaway.attacks.thresholds import AttackScores, check_same_records
from giveaway.checks import check_choice, fail
from giveaway.records import Signals

MODES = ("online", "offline_onesided", "offline_twosided")
VARIANCES = ("per_record", "global_residual", "global_total")
CENTRES = ("median", "mean")
FLOOR = 1e-30  # added to every standard deviation, as in the reference implementation
EPS = float(np.finfo(np.float64).eps)


def lira(
    targets: Signals, references: Signals, *, mode: str = "online", variance: str = "per_record", centre: str = "median"
) -> AttackScores:
    """Attack every record of every target model, by reference models that are none of the targets.

    Scores of mode "online" are log-likelihood ratios: above 0 means that "member" is the likelier.

    >>> phi = np.array([[4.0], [5.0], [0.0], [1.0]])
    >>> seen = Signals(phi, members=phi > 3, kind="phi")
    >>> lira(Signals(np.array([[5.5]]), np.array([[True]]), kind="phi"), seen, centre="mean").scores
    array([[48.]])
    """
    _check(references, mode, variance, centre, least=2)
    check_same_records(targets, references)
    pooled = None if variance == "per_record" else _pooled_deviations(references, variance, centre)
    scores = np.empty(targets.members.shape)
    larger = max(targets, references, key=lambda signals: signals.models)
    for part in larger.blocks():
        phi = references.statistic(part)
        sides = []
        for side, mask in enumerate((references.members[:, part], ~references.members[:, part])):
            deviation = np.sqrt(moments(phi, mask)[2]) if pooled is None else pooled[side]
            sides.append((_centre(phi, mask, centre), deviation + FLOOR))
        scores[:, part] = _score(targets.statistic(part), sides, mode).mean(axis=2)
    return AttackScores("lira", scores, targets.members, {"mode": mode, "variance": variance, "centre": centre})


def lira_within(models: Signals, *, variance: str = "per_record") -> AttackScores:
    """Attack each of the models with the others as its references, online, by a mean for each record. A variance for
    each takes many models; "global_residual" is one for all records.

    A model's own signals among its references, as in `lira(models, models)`, would flatter the attack: records without
    any effect then have a success of .62 with 16 models and .54 with 128, in place of .50.
    """
    options = {"mode": "online", "variance": variance, "centre": "mean"}
    _check(models, least=3, **options)
    pooled = None if variance == "per_record" else _deviations_of_others(models)
    scores = np.empty(models.members.shape)
    for part in models.blocks():
        scores[:, part] = scores_within(models.statistic(part), models.members[:, part], pooled).mean(axis=2)
    return AttackScores("lira", scores, models.members, options)


def moments(phi: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how many models (n, 1) are in mask (M, n), and mean and variance (n, Q) of their phi (M, n, Q)."""
    weight = mask[:, :, None].astype(np.float64)
    count, first = weight.sum(0), phi[0]  # from which φ is counted: where it never varies, the variance is 0
    mean = first + ((phi - first) * weight).sum(0) / np.maximum(count, 1)
    return count, mean, ((phi - mean) ** 2 * weight).sum(0) / np.maximum(count, 1)


def side_moments(models: Signals) -> np.ndarray:
    """Return count, mean and variance (3, 2, n) of φ, queries averaged, over models with and without each record."""
    found = np.empty((3, 2, models.records))
    for rows in models.blocks():
        phi, members = models.statistic(rows).mean(axis=2, keepdims=True), models.members[:, rows]
        found[:, :, rows] = np.stack([moments(phi, mask) for mask in (members, ~members)], axis=1)[..., 0]
    return found


def scores_within(phi: np.ndarray, members: np.ndarray, pooled: np.ndarray | None = None) -> np.ndarray:
    """Score each model's φ (M, n, Q) against the moments of the other models, which follow from those of all; `pooled`
    (2, M) are deviations of all records in the other models, IN and OUT."""
    sides = []
    for side, mask in enumerate((members, ~members)):
        count, mean, of_all = moments(phi, mask)
        own = mask[:, :, None]
        rest, away = count - own, phi - mean
        variance = count / rest * (of_all - own * away**2 / rest)
        if pooled is None:
            deviation = np.sqrt(np.where(own, np.maximum(variance, EPS * of_all), of_all))
        else:
            deviation = pooled[side][:, None, None]
        sides.append((mean - own * away / rest, deviation + FLOOR))
    return _score(phi, sides, "online")


def _score(phi: np.ndarray, sides: list[tuple[np.ndarray, np.ndarray]], mode: str) -> np.ndarray:
    """Score φ by the mean and the standard deviation of either side, IN and OUT."""
    inside, outside = sides
    away = (phi - outside[0]) / outside[1]
    if mode == "offline_onesided":
        return -log_ndtr(-away)
    unlike_outside = 0.5 * away**2 + np.log(outside[1])
    if mode == "offline_twosided":
        return unlike_outside + 0.5 * np.log(2 * np.pi)
    return unlike_outside - 0.5 * ((phi - inside[0]) / inside[1]) ** 2 - np.log(inside[1])


def _centre(phi: np.ndarray, mask: np.ndarray, centre: str) -> np.ndarray:
    if centre == "mean":
        return moments(phi, mask)[1]
    ordered = np.sort(np.where(mask[:, :, None], phi, np.inf), axis=0)
    count = mask.sum(0)[None, :, None]
    low, high = (np.take_along_axis(ordered, np.maximum(at, 0), axis=0)[0] for at in ((count - 1) // 2, count // 2))
    return 0.5 * (low + high)


def _deviations_of_others(models: Signals) -> np.ndarray:
    """Return one standard deviation for all records (2, M), IN and OUT, in the models other than each."""
    squares, count = np.zeros((2, models.models)), np.zeros((2, models.models))
    for part in models.blocks():
        phi, members = models.statistic(part), models.members[:, part]
        for side, mask in enumerate((members, ~members)):
            models_of, mean, variance = moments(phi, mask)
            taken = models_of / np.maximum(models_of - 1, 1) * (phi - mean) ** 2 * mask[:, :, None]
            squares[side] += (models_of * variance).sum() - taken.sum(axis=(1, 2))
            count[side] += phi.shape[2] * (mask.sum() - mask.sum(axis=1))
    return np.sqrt(np.maximum(squares, 0.0) / np.maximum(count, 1))


def _pooled_deviations(references: Signals, variance: str, centre: str) -> np.ndarray:
    """Return one standard deviation for all records, IN and OUT."""
    squares, total, count = np.zeros(2), np.zeros(2), np.zeros(2)
    first = references.statistic(slice(0, 1))[0, 0, 0]  # from which φ is counted, for the digits' sake
    for part in references.blocks():
        phi = references.statistic(part) - first
        for side, mask in enumerate((references.members[:, part], ~references.members[:, part])):
            away = (phi - _centre(phi, mask, centre) if variance == "global_residual" else phi)[mask]
            squares[side] += (away**2).sum()
            total[side] += away.sum()
            count[side] += away.size
    count = np.maximum(count, 1)
    return np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0.0))


def _check(references: Signals, mode: str, variance: str, centre: str, *, least: int) -> None:
    check_choice("mode", mode, MODES)
    check_choice("variance", variance, VARIANCES)
    check_choice("centre", centre, CENTRES)
    inside = references.members.sum(0)
    fewest, sides = references.models - inside, "without"
    if mode == "online":
        fewest, sides = np.minimum(fewest, inside), "with and without"
    row = int(fewest.argmin())
    if fewest[row] < least:
        expected = f"at least {least} models {sides} every record"
        raise fail("references", expected, f"{fewest[row]} at row {row}", "add models")
