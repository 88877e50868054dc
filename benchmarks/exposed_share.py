"""Fit and judge the prediction of a model's exposure on the models of exposed_share_grid.py, leaving data sets out.

For every data set the numbers of `Calibration` are fitted on all the others, and its models predicted: LiRA's
true-positive rate at 0.1 % and 1 % false positives (the better of per-record and one variance), its balanced success,
and the share of records with an effect size above 1.04. Written are, over all models, Spearman's correlation with what
was measured, the share of predictions within 25 % (of what is above a coin's success) or 0.5 percentage points, how
often intervals of 80 % cover, what controls get that were never trained on the judged records, whether words in place
of numbers would be right, and the calibration fitted on all sets, to be written into the source.

Beside it stand: either estimate alone; s known (from the other models: what the rest of the rule loses); s by how far a
checkpoint at three quarters of training ranks held-out records otherwise; and the published way as it is, the share of
held-out records whose loss is above all but 0.1 % (1 %) of the training losses.

    python -m benchmarks.exposed_share --grid DIR [--figure docs/images/exposed_share.png] [--out FILE.json]
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.special import ndtri

from benchmarks.measuring import digits, read_options, write_result
from giveaway.evaluation import exposed_share, spearman
from giveaway.evaluation.exposed_share import (
    FEWEST,
    RESAMPLES,
    UNIT,
    WEIGHTS,
    beyond_chance,
    normal_scores_among,
    normals_of,
    score_gaps,
    share_above,
    within_share,
)

RATES = (0.001, 0.01)
NOTHING = np.array([*RATES, 0.5, 0.0])  # the figures of a model that gives nothing away
PLACES = np.linspace(-6.0, 6.0, 121)  # of φ around its mean, in standard deviations
DENSITY = np.exp(-(PLACES**2) / 2) / np.exp(-(PLACES**2) / 2).sum()
FIGURES = ("TPR at 0.1 %", "TPR at 1 %", "balanced success", "share above 1.04")
TRIED = np.arange(0.10, 0.76, 0.05)  # of s; between them figures are interpolated
JUDGED = 4  # models of a kind
COVERAGE = 0.8
WITHIN = 0.25
BANDS = ((0.005, 0.03), (0.02, 0.08), (0.53, 0.62), (0.02, 0.20))  # where "some" begins, and "much"
STILL, MOVING = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45), (0.0, 0.15, 0.3, 0.6, 1.0)


@dataclass(frozen=True)
class Calibration:
    """What is fitted: both numbers of s; and for each of the four figures the weights of its estimates from `normals`
    and from `excluded` records, and the standard deviation of the prediction's error on its scale."""

    still: float = 0.20
    moving: float = 0.60
    normals: tuple[float, ...] = (0.268, 0.335, 0.76, 0.318)
    excluded: tuple[float, ...] = (0.532, 0.558, 0.238, 0.752)
    errors: tuple[float, ...] = (0.413, 0.493, 0.699, 0.4)


@dataclass(frozen=True, eq=False)
class Case:
    """One model: what it tells, and what LiRA measured of its kind. `raw` are the figures at every s of TRIED, `noise`
    the standard deviation over resampled records on the prediction's scale, `shares` what s is made of."""

    kind: str
    data: str
    control: bool
    truth: np.ndarray
    raw: np.ndarray
    excluded: np.ndarray
    noise: np.ndarray
    shares: dict[str, float]
    published: np.ndarray

    def normals(self, statistic: str, calibration: Calibration) -> np.ndarray:
        share = self.shares[statistic]
        s = share if statistic == "known" else within_share(share, calibration.still, calibration.moving)
        return np.array([np.interp(s, TRIED, column) for column in self.raw.T])

    def predicted(self, statistic: str, calibration: Calibration) -> np.ndarray:
        """The prediction on its scale."""
        return combined(self.normals(statistic, calibration), self.excluded, calibration)

    @property
    def measured(self) -> np.ndarray:
        return scaled(self.truth, NOTHING)


def combined(normals: np.ndarray, excluded: np.ndarray, calibration: Calibration) -> np.ndarray:
    """Return the prediction on its scale from the figures of normals and the shares of excluded records, at RATES."""
    by_rate = scaled(excluded, NOTHING[:2])[[0, 1, 1, 1]]
    return np.array(calibration.normals) * scaled(normals, NOTHING) + np.array(calibration.excluded) * by_rate


def scaled(values: np.ndarray, chance: np.ndarray) -> np.ndarray:
    return exposed_share.scaled((values - chance) / (1 - chance))


def unscaled(scale: np.ndarray, chance: np.ndarray) -> np.ndarray:
    return chance + (1 - chance) * exposed_share.unscaled(scale)


def excluded(members: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    return exposed_share.excluded(members, held_out, RATES)


def figures(level: np.ndarray, gap: np.ndarray, s: float) -> np.ndarray:
    """Return the true-positive rates at RATES, the balanced success, and the share of records above EFFECT."""
    inside, narrow, outside, _ = normals_of(level, gap, s)
    rates = pooled_rates(inside, narrow, outside, np.full_like(narrow, s), WEIGHTS)
    return np.array([*rates, share_above(inside, narrow, outside, s)])


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


def data_of(kind: str) -> str:
    """The data set of a kind; digits as images are the same records."""
    return kind.split("_")[0].replace("digit", "digits").replace("digitss", "digits")


def cases_of(path: Path) -> list[Case]:
    with np.load(path) as file:
        held = {name: file[name] for name in file.files}
    phi, members = held["phi"].astype(np.float64), held["members"].astype(bool)
    told = json.loads(str(held["told"]))
    truth = np.append(held["measured"][:, :3].max(0), held["measured"][0, 3])
    s = known_share(phi, members)
    made = []
    for row in range(min(JUDGED, len(phi))):
        a, b = phi[row][members[row]], phi[row][~members[row]]
        if min(len(a), len(b)) < FEWEST:
            continue
        rng = np.random.default_rng(row)
        kept = beyond_chance(a, b, rng)
        level, gap = score_gaps(a, b)
        raw = np.array([figures(level, kept * gap, one) for one in TRIED])
        drawn = []
        for _ in range(RESAMPLES):
            again = rng.choice(a, len(a)), rng.choice(b, len(b))
            cells, rise = score_gaps(*again)
            drawn.append(combined(figures(cells, kept * rise, 0.35), shrunk(kept, excluded(*again)), Calibration()))
        spread = normal_scores_among(a, b).std()
        shares = {"spread": max(0.0, 1.0 - float(spread)), "known": s}
        if "earlier" in held and row < len(held["earlier"]) and np.isfinite(held["earlier"][row, -1]).all():
            then = held["earlier"][row, -1].astype(np.float64)[~members[row]]
            shares["checkpoint"] = float((normal_scores_among(then, then) - normal_scores_among(b, b)).std())
        published = excluded(a, b)
        noise, strangers = np.std(drawn, axis=0), bool(told.get("strangers"))
        of_kind = path.stem, data_of(path.stem), strangers, truth
        made.append(Case(*of_kind, raw, shrunk(kept, published), noise, shares, published))
    return made


def shrunk(kept: float, published: np.ndarray) -> np.ndarray:
    return NOTHING[:2] + kept * (published - NOTHING[:2])


def known_share(phi: np.ndarray, members: np.ndarray) -> float:
    """Return s itself, from the scores of records that several models left out."""
    scores = np.array(
        [np.where(own, np.nan, normal_scores_among(f, f[~own])) for f, own in zip(phi, members, strict=True)]
    )
    count = (~members).sum(0)
    several = count > 1
    return float(np.sqrt(np.nanvar(scores[:, several], axis=0).dot(count[several]) / (count[several] - 1).sum()))


def fit(cases: list[Case], statistic: str = "spread", use: tuple[bool, bool] = (True, True)) -> Calibration:
    """Choose s by the smallest mean absolute error, weights by least squares from 0 up, errors so that intervals cover.

    A kind counts as one however many of its models are judged. `use` says which of both estimates have weights.
    """
    measured = np.array([case.measured for case in cases])
    count = {kind: sum(case.kind == kind for case in cases) for kind in {case.kind for case in cases}}
    weight = np.array([1 / count[case.kind] for case in cases])
    excluded_ones = np.array([scaled(case.excluded, NOTHING[:2])[[0, 1, 1, 1]] for case in cases])
    best, least = Calibration(), np.inf
    for still in [0.0] if statistic == "known" else STILL:
        for moving in [0.0] if statistic == "known" else MOVING:
            tried = Calibration(still=float(still), moving=float(moving))
            normals = np.array([scaled(case.normals(statistic, tried), NOTHING) for case in cases])
            solved = np.zeros((4, 2))
            for k in range(4):
                columns = np.column_stack([normals[:, k], excluded_ones[:, k]]) * use
                solved[k] = nnls(np.sqrt(weight)[:, None] * columns, np.sqrt(weight) * measured[:, k])[0] * use
            error = np.abs(solved[:, 0] * normals + solved[:, 1] * excluded_ones - measured)
            if weight @ error.mean(1) < least:
                least = weight @ error.mean(1)
                beyond_noise = (error / ndtri(0.5 + COVERAGE / 2)) ** 2 - [case.noise**2 for case in cases]
                errors = np.sqrt(np.quantile(np.maximum(beyond_noise, 0.0), COVERAGE, axis=0, method="higher"))
                numbers = (tuple(float(f"{x:.3g}") for x in each) for each in (*solved.T, errors))
                best = Calibration(round(float(still), 3), round(float(moving), 3), *numbers)
    return best


def left_out(
    cases: list[Case], statistic: str, use: tuple[bool, bool]
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Predict every case by a calibration on the other data sets: figures, half widths on their scale, calibrations."""
    predicted, half, fitted = np.empty((len(cases), 4)), np.empty((len(cases), 4)), {}
    for data in sorted({case.data for case in cases}):
        made = fit([case for case in cases if case.data != data], statistic, use)
        fitted[data] = asdict(made)
        for place, case in enumerate(cases):
            if case.data == data:
                predicted[place] = unscaled(case.predicted(statistic, made), NOTHING)
                half[place] = ndtri(0.5 + COVERAGE / 2) * np.hypot(made.errors, case.noise)
    return np.clip(predicted, 0.0, 1.0), half, fitted


def within(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Say which are within 25 % or half a percentage point; of success what is above a coin's counts."""
    return np.abs(predicted - truth) <= np.maximum(UNIT, WITHIN * (truth - np.array([0, 0, 0.5, 0])))


def banded(values: np.ndarray) -> np.ndarray:
    """0, 1 or 2: low, some, much."""
    return np.array([np.digitize(column, band) for column, band in zip(values.T, BANDS, strict=True)]).T


def judged(cases: list[Case], statistic: str = "spread", use: tuple[bool, bool] = (True, True)) -> dict[str, Any]:
    """Say how good predictions are. A kind counts once, with the mean over its models; correlations are over kinds."""
    predicted, half, fitted = left_out(cases, statistic, use)
    truth = np.array([case.truth for case in cases])
    kinds = [case.kind for case in cases]
    control = np.array([case.control for case in cases])

    def by_kind(values: np.ndarray) -> np.ndarray:
        return np.array([values[[k == kind for k in kinds]].mean(0) for kind in dict.fromkeys(kinds)])

    def shown(values: np.ndarray) -> dict[str, float]:
        return dict(zip(FIGURES, digits(values), strict=True))

    mean, real = by_kind(predicted), by_kind(truth)
    covered = np.abs(scaled(predicted, NOTHING) - scaled(truth, NOTHING)) <= half
    first, last = (banded(unscaled(scaled(predicted, NOTHING) + way * half, NOTHING)) for way in (-1, 1))
    words, touched = last - first + 1, (first <= banded(truth)) & (banded(truth) <= last)
    result = {
        "models": len(cases),
        "kinds": len(mean),
        "Spearman over kinds": shown([spearman(p, t) for p, t in zip(mean.T, real.T, strict=True)]),
        "within 25 % or 0.5 points": shown(by_kind(within(predicted, truth) * 1.0).mean(0)),
        "median factor where measured is above nothing": shown(
            [np.median(np.abs(np.log(m[t > UNIT] / t[t > UNIT]))) for m, t in _above(mean, real)]
        ),
        "80 % intervals cover": shown(by_kind(covered * 1.0).mean(0)),
        "low, some or much is right": shown(by_kind((banded(predicted) == banded(truth)) * 1.0).mean(0)),
        "the words that the interval touches are right": shown(by_kind(touched * 1.0).mean(0)),
        "they are one word, two, or all three": {
            name: digits([(words[:, k] == count).mean() for count in (1, 2, 3)]) for k, name in enumerate(FIGURES)
        },
        "calibrations, by the set left out": fitted,
    }
    if control.any():
        worst = np.abs(predicted[control][:, :2] - RATES)
        result["controls"] = {
            "models": int(control.sum()),
            "share above 1.04, largest": digits(predicted[control, 3].max()),
            "rates off by, in points, mean and largest": digits([100 * worst.mean(), 100 * worst.max()]),
            "rates within 0.2 points": digits((worst <= 0.002).all(1).mean()),
        }
    return result


def _above(mean: np.ndarray, real: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.maximum(m, 1e-4), t) for m, t in zip((mean - NOTHING).T, (real - NOTHING).T, strict=True)]


def table_of(cases: list[Case], predicted: np.ndarray) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for kind in dict.fromkeys(case.kind for case in cases):
        own = [place for place, case in enumerate(cases) if case.kind == kind]
        rows[kind] = {
            "predicted": digits(predicted[own].mean(0), 3),
            "measured": digits(cases[own[0]].truth, 3),
            "published": digits(np.mean([cases[place].published for place in own], axis=0), 3),
            **{name: digits(cases[own[0]].shares[name], 3) for name in cases[own[0]].shares},
        }
    return rows


def published_way(cases: list[Case]) -> dict[str, Any]:
    """The share of held-out losses above all but so many training losses, against LiRA's rate, as it is."""
    kinds = list(dict.fromkeys(case.kind for case in cases))
    told = np.array([np.mean([c.published for c in cases if c.kind == kind], axis=0) for kind in kinds])
    truth = np.array([next(c.truth[:2] for c in cases if c.kind == kind) for kind in kinds])
    good = np.abs(told - truth) <= np.maximum(UNIT, WITHIN * truth)
    return {
        "Spearman over kinds": digits([spearman(told[:, k], truth[:, k]) for k in (0, 1)]),
        "within 25 % or 0.5 points": digits(good.mean(0)),
    }


def draw(cases: list[Case], predicted: np.ndarray, path: Path) -> None:
    from benchmarks.drawing import panels, publish

    figure, axes = panels((11.0, 5.6), FIGURES, columns=2)
    sets = sorted({case.data for case in cases})
    truth = np.array([case.truth for case in cases])
    for k, axis in enumerate(axes):
        axis.axis("on")
        for data in sets:
            own = [place for place, case in enumerate(cases) if case.data == data]
            axis.plot(truth[own, k], predicted[own, k], ".", label=data, markersize=5)
        low = max(5e-4, float(min(truth[:, k].min(), predicted[:, k].min())))
        axis.plot([low, 1], [low, 1], color="0.6", linewidth=0.8)
        if k != 2:
            axis.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1))
        axis.set(xlabel="measured", ylabel="predicted, data set left out")
    axes[0].legend(fontsize=7)
    publish(figure, path)


def main() -> None:
    options = read_options(__doc__, "exposed_share.json", needs=("grid",), grid=Path, figure=Path)
    paths = sorted(path for path in options.grid.glob("*.npz") if not path.stem.endswith(".part"))
    cases = [case for path in paths for case in cases_of(path)]
    predicted, _, _ = left_out(cases, "spread", (True, True))
    with_checkpoint = [case for case in cases if "checkpoint" in case.shares]
    ways: dict[str, Callable[[], Any]] = {
        "from members and held-out records": lambda: judged(cases),
        "normals alone": lambda: judged(cases, use=(True, False)),
        "excluded alone": lambda: judged(cases, use=(False, True)),
        "with s known": lambda: judged(cases, "known"),
        "with a checkpoint": lambda: judged(with_checkpoint, "checkpoint") if with_checkpoint else None,
        "the published way": lambda: published_way(cases),
    }
    result = {name: way() for name, way in ways.items()}
    result["calibration on all sets"] = asdict(fit(cases))
    result["kinds"] = table_of(cases, predicted)
    write_result(options.out, result, "scipy", "scikit-learn")
    if options.figure is not None:
        draw(cases, predicted, options.figure)


if __name__ == "__main__":
    main()
