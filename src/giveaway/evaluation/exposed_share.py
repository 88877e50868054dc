"""Predict, from one model and no shadow model, how many records LiRA would find exposed (docs/derivations.md)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import cumulative_trapezoid
from scipy.special import ndtr, ndtri

from giveaway.checks import fail
from giveaway.evaluation.ranking import Interval
from giveaway.records.meta import SHARE_WORDS

RATE = 0.01  # of the members, below all others of which a held-out record is excluded
EFFECT = 1.04  # above which a record counts: about 70 % balanced success
FEWEST = 500  # records on either side: with fewer, chance hides all but the largest gaps
CELLS, IN_END = 12, 20  # of the scores, and how many records the two at the ends hold
SHUFFLES, RESAMPLES = 40, 40
CHANCE = 0.9  # of the shuffles have smaller gaps than what is taken away
LEAST_RISE = 0.02
LEVELS = np.linspace(-4.2, 4.2, 127)  # of records, by the score that they have without training on them
WEIGHTS = np.exp(-(LEVELS**2) / 2) / np.exp(-(LEVELS**2) / 2).sum()
UNIT = 0.005  # of a share above that: errors are absolute below it and relative above
LARGEST = 1 - 1e-6  # of a share
WORDS = dict(zip(SHARE_WORDS, (0.0, 0.02, 0.2), strict=True))  # and the share of records from which on each is meant
# fitted on 92 kinds of models of seven data sets with measured attacks (benchmarks/exposed_share.py): both numbers of
# s, the weights of both estimates, and the standard deviation of the prediction's error on its scale
STILL, MOVING = 0.20, 0.60
BY_NORMALS, BY_EXCLUDED, ERROR = 0.318, 0.752, 0.4


@dataclass(frozen=True)
class PredictedExposure:
    """The share of records with an effect size above 1.04 (a balanced success of about .7), with its interval.
    Predicted, not measured."""

    share: Interval

    @property
    def words(self) -> list[str]:
        """Those of `WORDS` that the interval of the share touches. On data sets that the numbers were not fitted on,
        they were right for 95 % of the models; the numbers themselves are often off by a third, so that no page shows
        them."""
        ends = np.searchsorted(list(WORDS.values()), (self.share.low, self.share.high), "right")
        return list(WORDS)[ends[0] - 1 : ends[1]]


def predict_exposure(
    members: ArrayLike, held_out: ArrayLike, *, coverage: float = 0.8, seed: int = 0
) -> PredictedExposure:
    """Predict from φ of records trained on, and of records held out, that come from one population.

    >>> rng = np.random.default_rng(0)
    >>> predict_exposure(rng.normal(size=2000), rng.normal(size=2000)).share.value
    0.0
    """
    inside, outside = (_checked(name, x) for name, x in (("members", members), ("held_out", held_out)))
    if not 0 < coverage < 1:
        raise fail("coverage", "a share between 0 and 1", f"{coverage}", "give one such as 0.8")
    rng = np.random.default_rng(seed)
    kept = beyond_chance(inside, outside, rng)

    def on_scale(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        s = within_share(1.0 - normal_scores_among(a, b).std(), STILL, MOVING)
        level, gap = score_gaps(a, b)
        above, beyond = share_above(*normals_of(level, kept * gap, s)), kept * (excluded(a, b, RATE) - RATE)
        return BY_NORMALS * scaled(above) + BY_EXCLUDED * scaled(beyond / (1 - RATE))

    value = on_scale(inside, outside)
    drawn = [on_scale(*(rng.choice(side, len(side)) for side in (inside, outside))) for _ in range(RESAMPLES)]
    error = ndtri(0.5 + coverage / 2) * np.hypot(ERROR, np.std(drawn))
    ends = (float(np.clip(unscaled(y), 0.0, 1.0)) for y in (value, value - error, value + error))
    return PredictedExposure(Interval(*ends))


def within_share(statistic: float, still: float, moving: float) -> float:
    return float(np.clip(still + moving * max(0.0, statistic), 0.05, 0.95))


def scaled(share: ArrayLike) -> np.ndarray:
    """Return asinh(p/(1 − p)/UNIT) of the share p of the way from chance to 1."""
    p = np.minimum(share, LARGEST)
    return np.arcsinh(p / (1 - p) / UNIT)


def unscaled(scale: ArrayLike) -> np.ndarray:
    odds = UNIT * np.sinh(scale)
    return odds / (1 + np.maximum(odds, -LARGEST / 2))


def excluded(members: np.ndarray, held_out: np.ndarray, rate: float | Sequence[float]) -> np.ndarray:
    """Return the share of held-out records that are lower than all but a share `rate` of the members.

    >>> excluded(np.linspace(1, 2, 1000), np.linspace(0, 2, 1001), [0.001, 0.01]).round(3)
    array([0.5  , 0.504])
    """
    lowest = np.asarray(np.quantile(members, rate, method="lower"))
    return (held_out < lowest[..., None]).mean(-1)


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


def normals_of(level: np.ndarray, gap: np.ndarray, s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Return records' means and deviations of φ, with them and without, at LEVELS."""
    middle = (level[1:] + level[:-1]) / 2
    rise = np.maximum(np.interp(LEVELS, middle, 1 + np.diff(gap) / np.diff(level)), LEAST_RISE)
    scores = cumulative_trapezoid(rise, LEVELS, initial=0)
    scores += np.interp(0.0, level, level + gap) - np.interp(0.0, LEVELS, scores)
    between = 1 - s * s
    t = 2 * rise**2 / (s * s + np.sqrt(s**4 + 4 * between * rise**2))
    outside = np.sqrt(between) * LEVELS
    inside = cumulative_trapezoid(t, outside, initial=0)
    inside += WEIGHTS @ (scores - inside)
    return inside, s * np.sqrt(t), outside, s


def share_above(mean_in: np.ndarray, sd_in: np.ndarray, mean_out: np.ndarray, sd_out: float) -> float:
    """Return the share of records with an effect size above EFFECT."""
    size = np.abs(mean_in - mean_out) / np.sqrt((sd_in**2 + sd_out**2) / 2)
    fine = np.linspace(LEVELS[0], LEVELS[-1], 4001)
    density = np.exp(-(fine**2) / 2)
    return float(density[np.interp(fine, LEVELS, size) > EFFECT].sum() / density.sum())


def _checked(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < FEWEST or np.isnan(array).any():
        got = "NaN" if array.ndim == 1 and np.isnan(array).any() else f"shape {array.shape}"
        raise fail(name, f"φ of at least {FEWEST} records, one number each", got, "hold more records out")
    return array
