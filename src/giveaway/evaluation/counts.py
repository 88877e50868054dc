"""How many records are exposed, as far as S shadow models can show it (docs/derivations.md)."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import binom, chi2, nct, norm

from giveaway.attacks.lira import moments, scores_within
from giveaway.checks import check_number, fail
from giveaway.records import Signals
from giveaway.text import percent

EFFECT = 1.04  # about 70 % balanced success for equal normal φ: Φ(δ/2)
LEAST = 3  # models on a side of a record that is judged
FROM, TO = 0.25, 0.5  # p-values of records near the boundary
NUMBERS = 2_500_000  # φ of the drawn records
FEWEST, MOST = 20_000, 100_000  # drawn records
ENOUGH = 500  # drawn records for a class of its own
PAIRS = 129  # of coins at a boundary
LEVELS = np.array([0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005])
ROUNDING = 1e-24  # a variance that is smaller beside the squared mean is of the last digits
TINY = 1e-300
SKEWNESS = np.array([0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.5, 3.0])
TAILS = np.array([0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3])  # 1 / degrees of freedom of the random scale
FOR_MOMENTS = 200_000  # numbers drawn for each cell of the table of shapes

Coins = tuple[np.ndarray, np.ndarray]  # pairs (k, 1): the chance of tails with the record, and of heads without it
Shape = tuple[float, float]  # the skewness of a distribution, and its tails: 0, or 1/ν for a scale of Student's t


@dataclass(frozen=True)
class DefensibleCount:
    """What the models show about effect sizes above `effect`.

    at_least : a lower bound, with `confidence`, on the number of records above it.
    flagged : the records that are named; at most `false_discovery` of them are expected to be wrong.
    judged : the records with at least three models on either side; the others have p = 1.
    power : the chance of flagging a record whose effect size is twice `effect`.
    by_success : a lower bound of the same kind on the number of records with a LiRA success above Φ(effect/2).
    """

    at_least: int
    records: int
    flagged: np.ndarray
    p_values: np.ndarray
    effect: float
    false_discovery: float
    power: float
    confidence: float
    judged: np.ndarray
    by_success: int

    def __str__(self) -> str:
        beyond, flagged = f"an effect size above {self.effect:g}", int(self.flagged.sum())
        wrong, power = percent(self.false_discovery), percent(self.power)
        rates = f"about {wrong} of these or fewer are expected to be wrong; at twice that effect the test finds {power}"
        if not self.at_least:
            return f"how many of {self.records} records have {beyond} cannot be stated; {flagged} are flagged ({rates})"
        share, sure = percent(self.at_least / self.records), f"{100 * self.confidence:.3g} %"
        return (
            f"at least {self.at_least} of {self.records} records ({share}) have {beyond} (confidence {sure}); "
            f"{flagged} are flagged ({rates})"
        )


def defensible_count(
    models: Signals, *, effect: float = EFFECT, false_discovery: float = 0.05, confidence: float = 0.95
) -> DefensibleCount:
    """Count the records whose effect size is above `effect`, as far as these models can show it.

    A record with fewer than three models on either side is not judged and never flagged. Several queries are averaged.
    """
    check_number("effect", effect, minimum=0.0, remedy="give an effect size such as 1.04")
    for name, rate in (("false_discovery", false_discovery), ("confidence", confidence)):
        if not 0 < rate < 1:
            raise fail(name, "a rate between 0 and 1", f"{rate}", "give one such as 0.05 or 0.95")
    inside = models.members.sum(axis=0)
    judged = np.minimum(inside, models.models - inside) >= LEAST
    if not judged.any():
        expected = f"records with {LEAST} models or more on either side"
        raise fail("models", expected, f"none in {models.models} models", "train more of them")
    sides = sides_of(models, judged)
    coins = sides.two_valued
    p_values, flagged = np.ones(len(coins)), np.zeros(len(coins), dtype=bool)
    most = power = 0.0
    if coins.any():
        p_values[coins] = coin_p_values(coins_of_effect(effect), sides.count[:, coins], sides.high[:, coins])
        small = np.where(p_values < 1, p_values, np.inf)[coins]
        possible = max(int(np.isfinite(small).sum()), 1)
        flagged[coins], threshold = benjamini_hochberg(small, false_discovery, possible)
        most, power = possible, coins.mean() * coin_power(sides.count[:, coins], effect, threshold)
    if not coins.all():
        others, gap = ~coins, sides.mean[0] - sides.mean[1]
        boundary = draw_boundary(sides, effect)
        p_values[others] = boundary.p_values(sides.count[:, others], sides.variance[:, others], gap[others])
        between = int(((p_values > FROM) & (p_values <= TO) & others).sum())
        near = (1 + between) / (TO - FROM)
        small = np.where(p_values <= FROM, p_values, np.inf)[others]
        flagged[others], threshold = benjamini_hochberg(small, false_discovery, near)
        most += chi2.isf((1 - confidence) / 2, 2 * between + 2) / 2 / (TO - FROM)
        power += others.mean() * boundary.power(min(threshold, FROM))
    q = np.linspace(0.0, 2 * norm.sf(effect / 2), PAIRS)[:, None]  # coins that tell with from without with this success
    by_success = np.sort(coin_p_values((q, q[::-1]), sides.count, sides.called))
    above = benjamini_hochberg(by_success, false_discovery, len(by_success))[0]
    of_all, shown = np.ones(models.records), np.zeros(models.records, dtype=bool)
    of_all[judged], shown[judged] = p_values, flagged
    return DefensibleCount(
        at_least=_surely(np.sort(p_values[flagged]), most, (1 - confidence) / 2),
        records=models.records,
        flagged=shown,
        p_values=of_all,
        effect=effect,
        false_discovery=false_discovery,
        power=power,
        confidence=confidence,
        judged=judged,
        by_success=_surely(by_success[above], len(above), 1 - confidence),
    )


def benjamini_hochberg(p_values: np.ndarray, rate: float, among: float) -> tuple[np.ndarray, float]:
    """Say which hypotheses are rejected while the expected share of false rejections stays below `rate`, and up to
    which p-value; `among` is the number of hypotheses that can be rejected falsely, as a rule all."""
    order = np.argsort(p_values, kind="stable")
    below = np.flatnonzero(p_values[order] <= rate * np.arange(1, len(p_values) + 1) / among)
    rejected = np.zeros(len(p_values), dtype=bool)
    if len(below):
        rejected[order[: below[-1] + 1]] = True
    return rejected, rate * max(int(rejected.sum()), 1) / among


def _surely(p_values: np.ndarray, among: float, alpha: float) -> int:
    """Return a lower bound on the number of true ones among rejected hypotheses, by their sorted p-values."""
    factor = np.log(1 / alpha) / np.log1p(np.log(1 / alpha))
    left = np.arange(1, len(p_values) + 1) - np.floor(factor * (1 + among * p_values))
    return int(left.max(initial=0))


@dataclass(frozen=True)
class Sides:
    """Of n records, with and without (2, n): number of models, mean and variance of φ, its standardized third and
    fourth moments, the numbers of models at its largest value and of those that LiRA calls members; and whether φ takes
    two values only."""

    count: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    skewness: np.ndarray
    kurtosis: np.ndarray
    high: np.ndarray
    called: np.ndarray
    two_valued: np.ndarray


def sides_of(models: Signals, judged: np.ndarray) -> Sides:
    """Measure the judged records on both sides; several queries are averaged."""
    parts = []
    for rows in models.blocks():
        if (keep := judged[rows]).any():
            phi, members = models.statistic(rows)[:, keep].mean(axis=2), models.members[:, rows][:, keep]
            top = phi == phi.max(axis=0)
            two_valued = (top | (phi == phi.min(axis=0))).all(axis=0)
            called = scores_within(phi[:, :, None], members)[:, :, 0] > 0
            columns = np.empty((7, 2, phi.shape[1]))
            for side, mask in enumerate((members, ~members)):
                count, mean, variance = (column[:, 0] for column in moments(phi[:, :, None], mask))
                variance = np.where(variance > ROUNDING * mean**2, variance, 0.0)
                away = (phi - mean) * mask / np.sqrt(np.where(variance > 0, variance, 1.0))
                square = away**2
                third, fourth = (square * away).sum(axis=0) / count, (square * square).sum(axis=0) / count
                columns[:5, side] = count, mean, variance * count / (count - 1), third, fourth
                columns[5:, side] = (top & mask).sum(axis=0), (called & mask).sum(axis=0)
            parts.append([*columns, two_valued])
    return Sides(*(np.concatenate(column, axis=-1) for column in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Boundary:
    """Records drawn with an effect size of exactly `effect`, which say what the quantiles of real ones stand for.

    count, variance : of the drawn records (2, n).
    gap : of their means, less the true gap; scale : the true √((σ_in² + σ_out²)/2).
    quantiles : what the noncentral t says of the drawn records.
    """

    effect: float
    count: np.ndarray
    variance: np.ndarray
    gap: np.ndarray
    scale: np.ndarray
    quantiles: np.ndarray

    def p_values(self, count: np.ndarray, variance: np.ndarray, gap: np.ndarray) -> np.ndarray:
        """Return the p-values of records by numbers of models (2, n), variances (2, n) and gaps of means (n,)."""
        drawn, quantiles = self.quantiles, _quantiles(count, variance, gap, self.effect)
        classes, drawn_classes = np.zeros(len(gap), dtype=int), np.zeros(len(drawn), dtype=int)
        for ratio, drawn_ratio in zip(_ratios(count, variance), _ratios(self.count, self.variance), strict=True):
            edges = np.quantile(drawn_ratio, (1 / 3, 2 / 3))
            classes = 3 * classes + np.searchsorted(edges, ratio)
            drawn_classes = 3 * drawn_classes + np.searchsorted(edges, drawn_ratio)
        read = quantiles.copy()
        for name in np.unique(classes):
            alike = drawn[drawn_classes == name]
            own = classes == name
            read[own] = np.minimum(quantiles[own], _reading(alike if len(alike) >= ENOUGH else drawn, quantiles[own]))
        return norm.sf(read)

    def power(self, threshold: float) -> float:
        """Return the share of drawn records with a p-value up to the threshold where δ is twice `effect`."""
        some = slice(FEWEST // 2)
        gap = (self.gap + 2 * self.effect * self.scale)[some]
        return float((self.p_values(self.count[:, some], self.variance[:, some], gap) <= threshold).mean())


def draw_boundary(sides: Sides, effect: float, *, seed: int = 0) -> Boundary:
    """Draw records like those whose φ takes more than two values."""
    generator = np.random.default_rng(seed)
    size = int(np.clip(NUMBERS // sides.count[:, 0].sum(), FEWEST, MOST))
    picked = generator.choice(np.flatnonzero(~sides.two_valued), size)
    count, true = sides.count[:, picked], sides.variance[:, picked]
    mean, variance = np.zeros(true.shape), np.zeros(true.shape)
    shapes = [_shapes(sides, side) for side in range(2)]
    skewed = _more_skewed(sides, shapes[0][2] * shapes[1][2], size, generator)
    for side, (low, high, _) in enumerate(shapes):
        models = np.arange(count[side].max())[:, None] < count[side]
        phi = np.empty(models.shape)
        for shape, some in ((low, ~skewed[side]), (high, skewed[side])):
            phi[:, some] = _drawn(shape, (len(phi), int(some.sum())), generator)
        _, mean[side], drawn = (column[:, 0] for column in moments((phi * np.sqrt(true[side]))[:, :, None], models))
        variance[side] = drawn * count[side] / (count[side] - 1)
    gap, scale = mean[0] - mean[1], np.sqrt(true.mean(axis=0))
    return Boundary(effect, count, variance, gap, scale, _quantiles(count, variance, gap + effect * scale, effect))


def _shapes(sides: Sides, side: int) -> tuple[Shape, Shape, float]:
    if not (varied := (sides.variance[side] > 0) & ~sides.two_valued).any():
        return (0.0, 0.0), (0.0, 0.0), 0.0
    typical = round(float(sides.count[side, varied].mean()))
    return pooled_shapes(sides.skewness[side, varied], sides.kurtosis[side, varied], typical)


def _more_skewed(sides: Sides, between: float, size: int, generator: np.random.Generator) -> np.ndarray:
    """Say which drawn records (2, n) have the larger skewness on a side, as often on both as the real ones have."""
    varied = (sides.variance > 0).all(axis=0) & ~sides.two_valued
    together = np.cov(sides.skewness[:, varied])[0, 1] / between if between > 0 and varied.sum() > 1 else 0.0
    inside = generator.random(size) < 0.5
    return np.stack([inside, inside == (generator.random(size) < 0.5 * (1 + np.clip(together, -1, 1)))])


def coins_of_effect(effect: float) -> Coins:
    """Return pairs whose effect size is `effect`: (1 − q − r)² = effect²/2·(q(1 − q) + r(1 − r)), solved for r."""
    half = effect**2 / 2
    q = np.linspace(0.0, 1 / (1 + half), PAIRS)[:, None]
    linear, constant = 2 * (1 - q) + half, (1 - q) * (1 - q - half * q)
    root = np.sqrt(np.maximum(linear**2 - 4 * (1 + half) * constant, 0.0))
    return q, np.clip((linear - root) / (2 + 2 * half), 0.0, 1.0)


def coin_p_values(coins: Coins, count: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """Test records with so many heads of `count` models (2, n) against coins at a boundary. With u = Pr[as many heads
    or more with] and v = Pr[as many or fewer without], a product uv as small has the probability uv·(1 − ln uv), and uv
    where nothing could be smaller; the pair that makes it largest counts."""
    tails_in, heads_out = coins
    cases, place = np.unique(np.concatenate([count, heads]), axis=1, return_inverse=True)
    n_in, n_out, heads_with, heads_without = cases
    both = binom.sf(heads_with - 1, n_in, 1 - tails_in) * binom.cdf(heads_without, n_out, heads_out)
    both = np.clip(both.max(axis=0), TINY, 1.0)
    apart = (heads_with == n_in) & (heads_without == 0)
    return np.where(apart, both, both * (1 - np.log(both)))[place.reshape(-1)]


def coin_power(count: np.ndarray, effect: float, threshold: float, *, seed: int = 0) -> float:
    """Return the share of drawn pairs of coins of twice the effect size with a p-value up to the threshold."""
    generator = np.random.default_rng(seed)
    heads = 0.5 * (1 + effect / np.hypot(effect, 1.0))
    picked = count[:, generator.integers(0, count.shape[1], FEWEST)].astype(int)
    drawn = generator.binomial(picked, [[heads], [1 - heads]])
    return float((coin_p_values(coins_of_effect(effect), picked, drawn) <= threshold).mean())


def _ratios(count: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return count[0] / count[1], (variance[0] + TINY) / (variance[1] + TINY)


def _quantiles(count: np.ndarray, variance: np.ndarray, gap: np.ndarray, effect: float) -> np.ndarray:
    """Return normal quantiles of the noncentral t, large where φ speaks for more than `effect`."""
    pooled = variance.mean(axis=0)
    varied = pooled > 0
    count, variance, pooled = count[:, varied], variance[:, varied], pooled[varied]
    root = np.sqrt((variance / count).sum(axis=0) / pooled)
    freedom = (2 * pooled) ** 2 / (variance**2 / (count - 1)).sum(axis=0)
    quantiles = np.full(len(gap), -np.inf)
    tail = nct.sf(gap[varied] / (np.sqrt(pooled) * root), freedom, effect / root)
    quantiles[varied] = norm.isf(np.maximum(tail, TINY))
    return quantiles


def _reading(drawn: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Say which normal quantiles of the drawn records those of the noncentral t are, two standard errors cautious."""
    cautious = LEVELS - 2 * np.sqrt(LEVELS * (1 - LEVELS) / len(drawn))
    knots, known = np.quantile(drawn, 1 - cautious), norm.isf(LEVELS)
    slopes = np.diff(known) / np.maximum(np.diff(knots), TINY)
    beyond = known[-1] + 0.75 * slopes[-3:].min() * (quantiles - knots[-1])
    return np.where(quantiles > knots[-1], beyond, np.interp(quantiles, knots, known))


def _drawn(shape: Shape, size: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Draw from the distribution of mean 0 and variance 1 that has this shape."""
    skewness, tails = shape
    values = _skewed(abs(skewness), size, generator) * _scales(tails, size, generator)
    return values if skewness >= 0 else -values


def pooled_shapes(skewness: np.ndarray, kurtosis: np.ndarray, size: int) -> tuple[Shape, Shape, float]:
    """Return two shapes, each of half of the records, whose samples of `size` numbers have the mean skewness, its
    variance and the mean kurtosis given, and the standard deviation of skewness between records."""
    table = _sample_moments(size)
    low = high = tails = between = 0.0
    for _ in range(8):
        means = np.maximum.accumulate([np.interp(tails, TAILS, row) for row in table[:, :, 0]])
        spread = 0.5 * sum(_interpolated(table[:, :, 2], end, tails) for end in (low, high))
        between = np.sqrt(max(float(skewness.var()) - spread, 0.0))
        ends = skewness.mean() - between, skewness.mean() + between
        low, high = (float(np.copysign(np.interp(abs(end), means, SKEWNESS), end)) for end in ends)
        along = [0.5 * sum(_interpolated(table[:, :, 1], end, at) for end in (low, high)) for at in TAILS]
        tails = float(np.interp(kurtosis.mean(), np.maximum.accumulate(along), TAILS))
    return (low, tails), (high, tails), between


def _interpolated(table: np.ndarray, skewness: float, tails: float) -> float:
    return float(np.interp(tails, TAILS, [np.interp(abs(skewness), SKEWNESS, column) for column in table.T]))


@lru_cache(maxsize=64)
def _sample_moments(size: int) -> np.ndarray:
    """Return mean skewness, mean kurtosis and variance of skewness of samples, (skewness, tails, 3), over the grid."""
    generator = np.random.default_rng(size)
    shape = (max(FOR_MOMENTS // size, 400), size)
    scales = [_scales(tails, shape, generator) for tails in TAILS]
    table = np.empty((len(SKEWNESS), len(TAILS), 3))
    for row, skewness in enumerate(SKEWNESS):
        values = _skewed(skewness, shape, generator)
        for column, scale in enumerate(scales):
            away = values * scale
            away -= away.mean(axis=1, keepdims=True)
            square = away * away
            variance = square.mean(axis=1)
            third = (square * away).mean(axis=1) / variance**1.5
            table[row, column] = third.mean(), ((square * square).mean(axis=1) / variance**2).mean(), third.var()
    return table


def _skewed(skewness: float, size: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    if skewness < 0.05:
        return generator.standard_normal(size)
    order = 4 / skewness**2
    return (generator.standard_gamma(order, size) - order) / np.sqrt(order)


def _scales(tails: float, size: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    if tails < 0.01:
        return np.ones(size)
    freedom = 1 / tails
    return np.sqrt((freedom - 2) / (2 * generator.standard_gamma(freedom / 2, size)))
