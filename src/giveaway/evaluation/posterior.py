"""Every record's effect size as few shadow models and a score of the audit tell it together (docs/derivations.md)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln, ndtri, polygamma

from giveaway.attacks.lira import side_moments
from giveaway.checks import fail
from giveaway.evaluation.ranking import recall_at
from giveaway.evaluation.success import ShadowCurve
from giveaway.records import Signals
from giveaway.scores.fusion import normal_scores

LEAST_MODELS = 4
REACH = 2.0  # knots lie between these normal scores, beyond them curves are straight
FREEDOMS = (3.0, 500.0)  # between which d₀ is looked for
ROUNDS, TURNS = 8, 5  # of fitting variances, and gaps
TINY = 1e-30  # of a variance: φ that never changes
LOGS = (-70.0, 70.0)
TOP = 0.05
DRAWS = 4
SIZES = (2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class EffectPosterior:
    """Every record's effect size, its mean and the ends of its interval, from `models` shadow models and a score. LiRA
    alone would take `worth` models to find as much of the top 5 % (infinity above 256, NaN where that is no record):
    half to 2.3 times what was measured on sets of 5,000 records (benchmarks/few_models.py), too many on small ones."""

    effect_size: np.ndarray
    low: np.ndarray
    high: np.ndarray
    models: int
    worth: float
    confidence: float


def posterior(signals: Signals, score: ArrayLike, *, confidence: float = 0.9, seed: int = 0) -> EffectPosterior:
    """Measure effect sizes by few models, with a score of the audit (high for an exposed record) to help them.

    Only the order of the score matters, and not what kind it is. `seed` is of the simulation that gives the worth.

    >>> rng = np.random.default_rng(0)
    >>> effect = rng.normal(1.0, 1.0, 2000)
    >>> members = rng.random((8, 2000)) < 0.5
    >>> phi = rng.normal(size=(8, 2000)) + np.where(members, effect, 0.0)
    >>> found = posterior(Signals(phi, members, "phi"), score=effect + rng.normal(0.0, 0.5, 2000))
    >>> alone = np.where(members, phi, 0).sum(0) / members.sum(0).clip(1)
    >>> alone -= np.where(members, 0, phi).sum(0) / (~members).sum(0).clip(1)
    >>> bool(np.mean((found.effect_size - effect) ** 2) < 0.4 * np.mean((alone - effect) ** 2))
    True
    """
    known = np.asarray(score, dtype=np.float64)
    if known.shape != (signals.records,) or not np.isfinite(known).all():
        expected = f"a finite number for each of {signals.records} records"
        raise fail("score", expected, f"shape {known.shape}", "pass one column of the table of the same records")
    if signals.models < LEAST_MODELS:
        raise fail("signals", f"at least {LEAST_MODELS} models", f"{signals.models}", "train more of them")
    if not 0 < confidence < 1:
        raise fail("confidence", "a share between 0 and 1", f"{confidence}", "give one such as 0.9")
    count, mean, variance = side_moments(signals)
    both, freedom = (count > 0).all(0), np.maximum(count - 1, 0)
    variance = variance * count / np.maximum(freedom, 1)
    if not both.any():
        raise fail("signals", "records in some of the models and not in others", "none", "add models")
    columns = [known]
    for _ in range(2):
        basis = _curves(*columns)
        fitted = [_prior_variance(basis, freedom[side], variance[side]) for side in (0, 1)]
        prior_freedom = np.array([[fit[0]] for fit in fitted])
        total = prior_freedom + freedom
        spread = (prior_freedom * np.stack([fit[1] for fit in fitted]) + freedom * variance) / total
        noise = spread / np.maximum(count, 1)
        if len(columns) == 1:
            mean = _with_missing_sides(basis, count, mean, noise)
        columns = [known, (mean / noise).sum(0) / (1 / noise).sum(0)]
    unit, unsure = _pooled_deviation(spread, total)
    gap, noise = (mean[0] - mean[1]) / unit, noise.sum(0) / unit**2
    prior, residual = _regressed(_curves(*columns, *spread, together=True), gap, noise, unsure, both)
    trust = np.where(both, residual / np.maximum(residual + noise + unsure * (residual + prior**2), TINY), 0.0)
    effect = prior + trust * (gap - prior)
    left = (1 - trust) ** 2 * residual + trust**2 * (noise + unsure * effect**2)
    reach = ndtri((1 + confidence) / 2) * np.sqrt(left)
    worth = _worth(effect, left, spread / unit**2, total, np.random.default_rng(seed))
    return EffectPosterior(effect, effect - reach, effect + reach, signals.models, worth, confidence)


def _knots(records: int) -> np.ndarray:
    return np.linspace(-REACH, REACH, 2 + round(records**0.2))


def _curves(*columns: np.ndarray, together: bool = False) -> np.ndarray:
    """Return 1 and the natural cubic splines of the columns' normal scores; `together` adds their products."""
    scores = [normal_scores(column) for column in columns]
    knots = _knots(len(columns[0]))
    basis = [np.ones(len(columns[0]))]
    for z in scores:
        cubes = [(np.maximum(z - k, 0) ** 3 - np.maximum(z - REACH, 0) ** 3) / (REACH - k) for k in knots[:-1]]
        basis += [z, *(cube - cubes[-1] for cube in cubes[:-1])]
    if together:
        basis += [scores[j] * scores[i] for i in range(len(scores)) for j in range(i)]
    return np.stack(basis, axis=1)


def _fit(basis: np.ndarray, values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the weighted least-squares fit of `values` at every record."""
    root = np.sqrt(weight / weight.max())
    return basis @ np.linalg.lstsq(basis * root[:, None], values * root, rcond=1e-10)[0]


def _prior_variance(basis: np.ndarray, freedom: np.ndarray, variance: np.ndarray) -> tuple[float, np.ndarray]:
    """Fit s² ~ σ₀²·F(d, d₀) with log σ₀² on the basis by Fisher's scoring; return d₀ and every record's σ₀²."""
    used = freedom > 0
    curves, d, s2 = basis[used], freedom[used], np.maximum(variance[used], TINY)
    weights, prior = np.zeros(basis.shape[1]), 4.0
    if not used.any():
        return prior, np.ones(len(basis))
    weights[0] = np.log((d * s2).sum() / d.sum())
    for turn in range(ROUNDS):
        ratio = d * s2 * np.exp(-np.clip(curves @ weights, *LOGS))
        if turn % 2:
            prior = _prior_freedom(d, ratio)
        slope = (prior - (d + prior) * prior / (prior + ratio)) / 2
        information = d * prior / (2 * (d + prior + 2))
        weights += np.linalg.lstsq((curves * information[:, None]).T @ curves, curves.T @ slope, rcond=1e-10)[0]
    return prior, np.exp(np.clip(basis @ weights, *LOGS))


def _prior_freedom(d: np.ndarray, ratio: np.ndarray) -> float:
    """Return the likeliest d₀, where ratio = d s²/σ₀², by finer and finer grids."""
    kinds, kind = np.unique(d, return_inverse=True)
    grid = np.geomspace(*FREEDOMS, 9)
    for _ in range(3):
        likelihood = [
            (gammaln((kinds + prior) / 2) - gammaln(prior / 2) + prior / 2 * np.log(prior))[kind].sum()
            - ((d + prior) / 2 * np.log(prior + ratio)).sum()
            for prior in grid
        ]
        best = int(np.argmax(likelihood))
        around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        found, grid = float(grid[best]), np.geomspace(*around, 9)
    return found


def _with_missing_sides(basis: np.ndarray, count: np.ndarray, mean: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Put what the score and the other side let expect where a record has no model on a side."""
    usual = np.stack([_fit(basis, mean[side], count[side]) for side in (0, 1)])
    away = np.where(count > 0, mean - usual, 0.0)
    both = (count > 0).all(0) / noise.sum(0)
    shared = (both * away[0] * away[1]).sum() / both.sum()
    filled = mean.copy()
    for side, other in ((0, 1), (1, 0)):
        weight = (count[side] > 0) / noise[side]
        own = max(float((weight * (away[side] ** 2 - noise[side])).sum() / weight.sum()), 0.0)
        expected = usual[other] + shared / (own + noise[side]) * away[side]
        filled[other] = np.where(count[other] > 0, mean[other], expected)
    return filled


def _pooled_deviation(spread: np.ndarray, freedom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the posterior mean of √((σ_in² + σ_out²)/2) and its variance over its squared mean, taken as lognormal."""
    sides = spread * np.exp(np.log(freedom / 2) - digamma(freedom / 2))
    log_variance = ((sides / sides.sum(0)) ** 2 * polygamma(1, freedom / 2)).sum(0) / 4
    return np.sqrt(sides.mean(0)) * np.exp(log_variance / 2), np.expm1(log_variance)


def _regressed(
    basis: np.ndarray, gap: np.ndarray, noise: np.ndarray, unsure: np.ndarray, both: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gap that the basis lets expect, and the variance around it that is not sampling noise."""
    expected, residual = np.zeros(len(gap)), np.zeros(len(gap))
    lost = np.linalg.matrix_rank(basis[both]) / both.sum()
    for _ in range(TURNS):
        weight = both / np.maximum(noise + residual + unsure * (residual + expected**2), TINY)
        expected = _fit(basis, gap, weight)
        weight = (weight / weight.max()) ** 2
        surplus = (gap - expected) ** 2 / max(1 - lost, lost) - noise - unsure * expected**2
        tents = _tents(expected)
        at_knots = tents.T @ (weight * surplus) / np.maximum(tents.T @ (weight * (1 + unsure)), TINY)
        residual = tents @ np.maximum(at_knots, 0.0)
    return expected, residual


def _tents(values: np.ndarray) -> np.ndarray:
    """Return the piecewise linear weights of the knots at every value's normal score; they add up to 1."""
    knots, scores = _knots(len(values)), normal_scores(values)
    return np.stack([np.interp(scores, knots, row) for row in np.eye(len(knots))], axis=1)


def _worth(
    effect: np.ndarray, left: np.ndarray, spread: np.ndarray, freedom: np.ndarray, generator: np.random.Generator
) -> float:
    """Draw truths from the posterior, attack each by LiRA with more and more models, and compare what is found."""
    if round(TOP * len(effect)) < 1:
        return float("nan")
    recalls, own = np.empty((DRAWS, len(SIZES), 2)), []
    for draw in range(DRAWS):
        truth = generator.normal(effect, np.sqrt(left))
        squares = spread * freedom / generator.chisquare(freedom)
        gap = truth * np.sqrt(squares.mean(0))
        own.append(recall_at(effect, truth, TOP, TOP))
        for place, size in enumerate(SIZES):
            inside = generator.binomial(size, 0.5, len(effect))
            count = np.stack([inside, size - inside])
            measured = gap + generator.normal(size=len(effect)) * np.sqrt((squares / np.maximum(count, 1)).sum(0))
            seen = squares * 2 * generator.standard_gamma(np.maximum(count - 1, 0) / 2) / np.maximum(count, 1)
            deviation = np.sqrt(np.maximum(seen.mean(0), TINY))
            rankings = np.where((count > 0).all(0), [measured, measured / deviation], -np.inf)
            recalls[draw, place] = [recall_at(ranked, truth, TOP, TOP) for ranked in rankings]
    return ShadowCurve(SIZES, recalls.mean(0).max(1)).worth(float(np.mean(own)))
