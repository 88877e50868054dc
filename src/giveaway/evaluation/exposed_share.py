"""Predict, from one model and no shadow model, what LiRA would achieve against it (docs/derivations.md)."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from giveaway.checks import fail
from giveaway.evaluation.ranking import Interval
from giveaway.records.meta import SHARE_WORDS

RATES = (0.001, 0.01)
EFFECT = 1.04  # above which a record counts: about 70 % balanced success
FEWEST = 500  # records on either side: with fewer, chance hides all but the largest gaps
CELLS, IN_END = 12, 20  # of the scores, and how many records the two at the ends hold
SHUFFLES, RESAMPLES = 40, 40
CHANCE = 0.9  # of the shuffles have smaller gaps than what is taken away
LEAST_RISE = 0.02
LEVELS = np.linspace(-4.2, 4.2, 127)  # of records, by the score that they have without training on them
WEIGHTS = np.exp(-(LEVELS**2) / 2) / np.exp(-(LEVELS**2) / 2).sum()
PLACES = np.linspace(-6.0, 6.0, 121)  # of φ around its mean, in standard deviations
DENSITY = np.exp(-(PLACES**2) / 2) / np.exp(-(PLACES**2) / 2).sum()
NOTHING = np.array([*RATES, 0.5, 0.0])  # the figures of a model that gives nothing away
UNIT = 0.005  # of a figure above that: errors are absolute below it and relative above
LARGEST = 1 - 1e-6  # of a share
WORDS = dict(zip(SHARE_WORDS, (0.0, 0.02, 0.2), strict=True))  # and the share of records from which on each is meant


@dataclass(frozen=True)
class Calibration:
    """What was fitted on models with measured attacks: both numbers of s; and for each of the four figures the weights
    of its estimates from `normals` and from `excluded` records, and the standard deviation of the prediction's error on
    its scale. Fitted on 92 kinds of models of seven data sets."""

    still: float = 0.20
    moving: float = 0.60
    normals: tuple[float, ...] = (0.268, 0.335, 0.76, 0.318)
    excluded: tuple[float, ...] = (0.532, 0.558, 0.238, 0.752)
    errors: tuple[float, ...] = (0.413, 0.493, 0.699, 0.4)


@dataclass(frozen=True)
class PredictedExposure:
    """LiRA's true-positive rates at 0.1 % and 1 % false positives, its balanced success, and the share of records with
    an effect size above 1.04 (a balanced success of about .7); each with its interval. Predicted, not measured."""

    tpr_low: Interval
    tpr: Interval
    success: Interval
    share: Interval

    @property
    def words(self) -> list[str]:
        """Those of `WORDS` that the interval of the share touches. On data sets that the numbers were not fitted on,
        they were right for 95 % of the models; the numbers themselves are often off by a third, so that no page shows
        them."""
        ends = np.searchsorted(list(WORDS.values()), (self.share.low, self.share.high), "right")
        return list(WORDS)[ends[0] - 1 : ends[1]]


def predict_exposure(
    members: ArrayLike,
    held_out: ArrayLike,
    *,
    coverage: float = 0.8,
    seed: int = 0,
    calibration: Calibration = Calibration(),  # noqa: B008
) -> PredictedExposure:
    """Predict from φ of records trained on, and of records held out, that come from one population.

    >>> rng = np.random.default_rng(0)
    >>> found = predict_exposure(rng.normal(size=2000), rng.normal(size=2000))
    >>> found.tpr.value < 0.012, found.share.value
    (True, 0.0)
    """
    inside, outside = (_checked(name, x) for name, x in (("members", members), ("held_out", held_out)))
    if not 0 < coverage < 1:
        raise fail("coverage", "a share between 0 and 1", f"{coverage}", "give one such as 0.8")
    rng = np.random.default_rng(seed)
    kept, chance = beyond_chance(inside, outside, rng), NOTHING[:2]

    def on_scale(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        s = within_share(1.0 - normal_scores_among(a, b).std(), calibration)
        level, gap = score_gaps(a, b)
        return combined(figures(level, kept * gap, s), chance + kept * (excluded(a, b) - chance), calibration)

    value = on_scale(inside, outside)
    drawn = [on_scale(*(rng.choice(side, len(side)) for side in (inside, outside))) for _ in range(RESAMPLES)]
    error = ndtri(0.5 + coverage / 2) * np.hypot(calibration.errors, np.std(drawn, axis=0))
    ends = (unscaled(y, NOTHING) for y in (value, value - error, value + error))
    found = (Interval(*(float(np.clip(end, 0.0, 1.0)) for end in one)) for one in zip(*ends, strict=True))
    return PredictedExposure(**dict(zip((field.name for field in fields(PredictedExposure)), found, strict=True)))


def within_share(statistic: float, calibration: Calibration) -> float:
    """Return s."""
    return float(np.clip(calibration.still + calibration.moving * max(0.0, statistic), 0.05, 0.95))


def combined(normals: np.ndarray, excluded: np.ndarray, calibration: Calibration) -> np.ndarray:
    """Return the prediction on its scale from the figures of normals and the shares of excluded records, at RATES."""
    by_rate = scaled(excluded, NOTHING[:2])[[0, 1, 1, 1]]
    return np.array(calibration.normals) * scaled(normals, NOTHING) + np.array(calibration.excluded) * by_rate


def scaled(values: np.ndarray, chance: np.ndarray) -> np.ndarray:
    p = np.minimum((values - chance) / (1 - chance), LARGEST)
    return np.arcsinh(p / (1 - p) / UNIT)


def unscaled(scale: np.ndarray, chance: np.ndarray) -> np.ndarray:
    odds = UNIT * np.sinh(scale)
    return chance + (1 - chance) * odds / (1 + np.maximum(odds, -LARGEST / 2))


def excluded(members: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Return the shares of held-out records that are lower than all but a share of the members, at RATES.

    >>> excluded(np.linspace(1, 2, 1000), np.linspace(0, 2, 1001)).round(3)
    array([0.5  , 0.504])
    """
    lowest = np.quantile(members, RATES, method="lower")
    return (held_out[:, None] < lowest).mean(0)


def normal_scores_among(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return Φ⁻¹ of the values' places among the others; a tie counts half.

    >>> normal_scores_among(np.array([0.0, 5.0]), np.array([-1.0, 1.0])).round(3)
    array([0.   , 0.967])
    """
    ordered = np.sort(others)
    below = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
    return ndtri((below + 0.5) / (len(others) + 1))


def score_gaps(members: np.ndarray, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for cells of records, from the hardest on, the mean score without and how much higher it is with it."""
    from sklearn.isotonic import isotonic_regression  # slow to import, and few audits have records held out

    scores, n = np.sort(normal_scores_among(members, held_out)), len(members)
    end = ndtri(min(0.25, IN_END / min(n, len(held_out))))
    inner = ndtr(np.linspace(end, -end, CELLS - 1))
    edge = np.round(np.concatenate([[0.0], inner, [1.0]]) * n).astype(int)
    at = edge[:-1]
    counts = np.diff(edge)
    expected = np.add.reduceat(ndtri((np.arange(n) + 0.5) / n), at) / counts
    raised = np.add.reduceat(scores, at) / counts - expected
    below = ndtr(expected)
    exact = np.exp(-(expected**2)) / (below * (1 - below))  # one over the variance of a quantile, up to a factor
    return expected, isotonic_regression(raised, sample_weight=counts * exact, increasing=False)  # gaps never rise


def beyond_chance(members: np.ndarray, held_out: np.ndarray, rng: np.random.Generator) -> float:
    """Return the share of the gaps' mean square that chance, members and others being shuffled, does not explain."""

    def energy(a: np.ndarray, b: np.ndarray) -> float:
        level, gap = score_gaps(a, b)
        return float(np.interp(LEVELS, level, gap**2) @ WEIGHTS)

    observed, together = energy(members, held_out), np.concatenate([members, held_out])
    shuffled = (rng.permutation(together) for _ in range(SHUFFLES))
    chance = float(np.quantile([energy(*np.split(each, [len(members)])) for each in shuffled], CHANCE))
    return max(0.0, 1.0 - chance / observed) if observed > 0 else 0.0


def figures(level: np.ndarray, gap: np.ndarray, s: float) -> np.ndarray:
    """Return the true-positive rates at RATES, the balanced success, and the share of records above EFFECT."""
    middle = (level[1:] + level[:-1]) / 2
    rise = np.maximum(np.interp(LEVELS, middle, 1 + np.diff(gap) / np.diff(level)), LEAST_RISE)
    scores = _integral(rise, LEVELS)
    scores += np.interp(0.0, level, level + gap) - np.interp(0.0, LEVELS, scores)
    between = 1 - s * s
    t = 2 * rise**2 / (s * s + np.sqrt(s**4 + 4 * between * rise**2))
    outside = np.sqrt(between) * LEVELS
    inside = _integral(t, outside)
    inside += WEIGHTS @ (scores - inside)
    narrow = s * np.sqrt(t)
    size = np.abs(inside - outside) / np.sqrt((narrow**2 + s * s) / 2)
    fine = np.linspace(LEVELS[0], LEVELS[-1], 4001)
    density = np.exp(-(fine**2) / 2)
    share = density[np.interp(fine, LEVELS, size) > EFFECT].sum() / density.sum()
    return np.array([*pooled_rates(inside, narrow, outside, np.full_like(narrow, s), WEIGHTS), share])


def pooled_rates(
    mean_in: np.ndarray, sd_in: np.ndarray, mean_out: np.ndarray, sd_out: np.ndarray, weights: np.ndarray
) -> list[float]:
    """Return what one threshold on the log-likelihood ratio achieves against records whose φ is normal with and without
    them: true-positive rates at RATES, and the balanced success at threshold 0. Ties are split."""
    mi, si, mo, so = (values[:, None] for values in (mean_in, sd_in, mean_out, sd_out))

    def ratio(phi: np.ndarray) -> np.ndarray:
        return (0.5 * ((phi - mo) / so) ** 2 - 0.5 * ((phi - mi) / si) ** 2 + np.log(so / si)).ravel().round(9)

    mass = (weights[:, None] * DENSITY).ravel()
    each, place = np.unique(-np.concatenate([ratio(mi + si * PLACES), ratio(mo + so * PLACES)]), return_inverse=True)
    true, false = (np.bincount(p, mass, len(each)) for p in np.split(place, 2))
    fpr, tpr = (np.concatenate([[0.0], side.cumsum()]) for side in (false, true))
    tied = 0.5 * (true - false)[each == 0].sum()
    success = 0.5 + ((true - false)[each < 0].sum() + tied) / 2
    return [*np.interp(RATES, fpr, tpr).tolist(), float(success)]


def _integral(heights: np.ndarray, places: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], ((heights[1:] + heights[:-1]) / 2 * np.diff(places)).cumsum()])


def _checked(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < FEWEST or np.isnan(array).any():
        got = "NaN" if array.ndim == 1 and np.isnan(array).any() else f"shape {array.shape}"
        raise fail(name, f"φ of at least {FEWEST} records, one number each", got, "hold more records out")
    return array
