"""Five rows of docs/results.md again, from raw signals with NumPy and SciPy alone: none of the library's code is used.

    python -m benchmarks.reproduce.recomputed --data DIR --work DIR

--data holds cifar10.npz, california_housing.npz and glyphs.npz, --work the targets of gls_averaged
(gls_averaged/resnet18_*.npz) and what a run of glyphs_mlp left (glyphs_mlp; torch reads its first target).
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from scipy.special import logsumexp, ndtr, softmax
from scipy.stats import norm, spearmanr

RESULTS = Path(__file__).parent / "results"


def gls_with_averaged_lira(data: Path, work: Path) -> tuple[float, float]:
    """Mean Spearman over targets of GLS with the mean LiRA score over member models, all training records."""
    with np.load(RESULTS / "gls_resnet18.npz") as held:
        inside, outside, sd_in, sd_out = (
            held[name].astype(float) for name in ("mean_in", "mean_out", "deviation_in", "deviation_out")
        )
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)  # the mean over models with the record, as an integral
    phi = inside[:, None] + sd_in[:, None] * nodes
    ratio = norm.logpdf(phi, inside[:, None], sd_in[:, None]) - norm.logpdf(phi, outside[:, None], sd_out[:, None])
    mean = ratio @ weights / weights.sum()
    found = []
    for file in sorted((work / "gls_averaged").glob("resnet18_*.npz")):
        with np.load(file) as target:
            found.append(spearmanr(target["gls_trace"], mean[target["index"]]).statistic)
    return float(np.mean(found)), json.loads((RESULTS / "gls_averaged.json").read_text())["all"]["lira_mean"]["mean"]


def california_newton(data: Path, work: Path) -> tuple[float, float]:
    """Share of LiRA's top 1 % in the 5 % of highest Newton steps: split 0, closed form, residual with its sign."""
    told = json.loads((RESULTS / "california_splits.json").read_text())
    with np.load(data / "california_housing.npz") as held:
        x, y = held["X"], held["y"]
    order = np.random.default_rng(0).permutation(len(x))[: told["records"]]
    x = np.float32((x[order] - x[order].mean(0)) / x[order].std(0)).astype(float)
    y = np.float32((y[order] - y[order].mean()) / y[order].std()).astype(float)
    x, n = np.column_stack([x, np.ones(len(x))]), len(x)

    def fitted(inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gram = x[inside].T @ x[inside] + told["l2"] / 2 * np.eye(x.shape[1])
        return np.linalg.inv(gram), x @ np.linalg.solve(gram, x[inside].T @ y[inside]) - y

    members = np.array([half_of(number, n) for number in range(told["models"])])
    errors = np.array([fitted(inside)[1] for inside in members])
    right = np.zeros(n)
    for model in range(told["models"]):
        others, own = np.arange(told["models"]) != model, members[model]
        sides = []
        for mask in (members[others], ~members[others]):
            mean = (errors[others] * mask).sum(0) / mask.sum(0)
            variance = (np.square(errors[others] - mean) * mask).sum(0) / mask.sum(0)
            sides.append(norm.logpdf(errors[model], mean, np.sqrt(variance)))
        right += (sides[0] > sides[1]) == own
    effect = np.abs(np.ma.masked_array(errors, ~members).mean(0) - np.ma.masked_array(errors, members).mean(0)).data
    spread = [np.ma.masked_array(errors, mask).var(0).data for mask in (~members, members)]
    effect = effect / np.sqrt(np.mean(spread, axis=0))
    shares = []
    for number in range(told["targets"]):
        inside = np.flatnonzero(half_of(10_000 + number, n))
        inverse, error = fitted(np.isin(np.arange(n), inside))
        h = np.einsum("ij,jk,ik->i", x[inside], inverse, x[inside])
        step = error[inside] ** 2 * h / (1 - h)
        worst = np.lexsort((-effect[inside], -right[inside]))[: round(0.01 * len(inside))]
        kept = np.argsort(-step)[: round(0.05 * len(inside))]
        shares.append(np.isin(worst, kept).mean())
    return float(np.mean(shares)), told["closed_form_0"]["residual with its sign"]["newton"]["top 1% in 5%"]


def characters_newton(data: Path, work: Path) -> tuple[float, float]:
    """Share of LiRA's top 1 % in the 5 % of highest Newton steps, of characters in fonts, first target."""
    told = json.loads((RESULTS / "glyphs_mlp.json").read_text())
    n, folder = told["records"], work / "glyphs_mlp"
    with np.load(data / "glyphs.npz") as held:
        images, labels = held["images"].reshape(len(held["images"]), -1), held["labels"]
    order = np.random.default_rng(0).permutation(len(labels))[:n]
    x, y, place = images[order] / 255, labels[order], np.arange(n)
    members, phi = np.load(folder / "references" / "members.npy"), np.empty((told["models"], n))
    for model, logits in enumerate(np.load(folder / "references" / "values.npy", mmap_mode="r")):
        rest = np.array(logits.reshape(-1, logits.shape[-1])[:n], dtype=float)
        own, rest[place, y] = rest[place, y].copy(), -np.inf
        phi[model] = own - logsumexp(rest, axis=1)
    right = np.zeros(n)
    for model, own in enumerate(members):
        sides = []
        for mask in (np.delete(members, model, 0), ~np.delete(members, model, 0)):
            others = np.ma.masked_array(np.delete(phi, model, 0), ~mask)
            sides.append(norm.logpdf(phi[model], others.mean(0).data, others.std(0).data + 1e-30))
        right += (sides[0] > sides[1]) == own
    inside, outside = np.ma.masked_array(phi, ~members), np.ma.masked_array(phi, members)
    effect = (inside.mean(0) - outside.mean(0)).data / np.sqrt((inside.var(0).data + outside.var(0).data) / 2)

    rows = np.flatnonzero(half_of(10_000, n))
    state = torch.load(folder / "targets" / "0.pt", weights_only=True)
    w1, b1, w2, b2, w3, b3 = (value.double().numpy() for value in state.values())
    features = np.maximum(np.maximum(x[rows] @ w1.T + b1, 0) @ w2.T + b2, 0)
    p, features = softmax(features @ w3.T + b3, axis=1), np.column_stack([features, np.ones(len(rows))])
    (m, d), g = (p.shape[1], features.shape[1]), p - np.eye(p.shape[1])[y[rows]]
    curvature = np.zeros((m, d, m, d))
    for a in range(m):
        for b in range(m):
            curvature[a, :, b] = features.T @ (features * (p[:, a] * ((a == b) - p[:, b]))[:, None])
    inverse = np.linalg.inv(curvature.reshape(m * d, m * d) + told["l2"] * np.eye(m * d))
    inverse, step = np.ascontiguousarray(inverse.reshape(m, d, m, d).transpose(1, 0, 2, 3)), np.empty(len(rows))
    for first in range(0, len(rows), 32):
        some = slice(first, first + 32)
        half = (features[some] @ inverse.reshape(d, -1)).reshape(-1, m, m, d)
        block = np.einsum("nabd,nd->nab", half, features[some])
        own = p[some, :, None] * np.eye(m) - p[some, :, None] * p[some, None]
        moved = np.linalg.solve(np.eye(m) - own @ block, g[some, :, None])[:, :, 0]
        step[some] = np.einsum("na,nab,nb->n", g[some], block, moved)
    worst = np.lexsort((-effect[rows], -right[rows]))[: round(0.01 * len(rows))]
    kept = np.argsort(-step)[: round(0.05 * len(rows))]
    return float(np.isin(worst, kept).mean()), told["top 1% in 5%, each target"]["newton"][0]


def gelu_over_relu(data: Path, work: Path) -> tuple[float, float]:
    """Mean difference of the attack's AUC on the NNGP, GELU less ReLU, all records, inputs on the sphere."""
    told = json.loads((RESULTS / "lood_activations.json").read_text())
    with np.load(data / "cifar10.npz") as held:
        images, labels = held["x_train"], held["y_train"].reshape(-1)
    rng, n = np.random.default_rng(0), told["records"]
    drawn = [rng.permutation(np.flatnonzero(labels == kind))[:n] for kind in (1, 0)]  # cars, planes
    rows = rng.permutation(np.concatenate([each[: n // 2] for each in drawn]))
    x, y = images[rows].reshape(n, -1).astype(float), np.where(labels[rows] == 1, 1.0, -1.0)
    x -= x.mean(1, keepdims=True)
    cosine = np.clip(x @ x.T / np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(x, axis=1)), -1, 1)
    gelu, relu = (auc_of(layers(cosine, smooth), y, told["noise"]) for smooth in (True, False))
    return float((gelu - relu).mean()), told["nngp_sphere"]["mean_difference"]


def trace_over_lt_iqr(data: Path, work: Path) -> tuple[float, float]:
    """Precision at 1 % of the trace less that of LT-IQR, mean over the targets of CIFAR-10 and BloodMNIST."""
    more, kept = [], []
    for name in ("cifar10", "bloodmnist"):
        folder = RESULTS.parents[1] / "results" / f"loss_traces_{name}"
        told = json.loads(folder.with_suffix(".json").read_text())
        with np.load(folder / "references.npz") as held:
            mean, sd = held["mean"].astype(float), np.sqrt(held["variance"].astype(float))  # (side, n, query)
        for number in range(10_000, 10_000 + told["targets"]):
            with np.load(folder / f"target-{number - 10_000:03d}.npz") as held:
                phi, ours, other = held["phi"].astype(float), held["trace (ours)"], held["LT-IQR"]
            inside = half_of(number, len(phi))
            ratio = (norm.logpdf(phi, mean[0], sd[0]) - norm.logpdf(phi, mean[1], sd[1])).mean(1)
            flags = (ratio > np.sort(ratio[~inside])[::-1][len(phi[~inside]) // 1000])[inside]
            most = round(len(flags) / 100)
            more.append(flags[np.argsort(-ours)[:most]].mean() - flags[np.argsort(-other)[:most]].mean())
        scores = told["scores, each target"]
        both = (scores[name]["precision at 1 %"] for name in ("trace (ours)", "LT-IQR"))
        kept.append(np.subtract(*map(np.mean, both)))
    return float(np.mean(more)), float(np.mean(kept))


def half_of(number: int, n: int) -> np.ndarray:
    """Return which half of the records a model is trained on: neighbours share a draw, and have the two halves."""
    rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(0, number // 2)))
    inside = np.isin(np.arange(n), rng.permutation(n)[: n // 2])
    return ~inside if number % 2 else inside


def layers(cosine: np.ndarray, smooth: bool, depth: int = 10) -> np.ndarray:
    """NNGP with σw² = 2, no bias, of records of one length, as a correlation: each layer is a function of the angle."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights, angles, q = weights / weights.sum(), np.linspace(np.pi, 0, 801), 2.0
    table = np.cos(angles)
    for _ in range(depth):
        if smooth:
            u = np.sqrt(q) * nodes
            v = table[:, None, None] * u[:, None] + np.sqrt(q) * np.sin(angles)[:, None, None] * nodes
            new = 2 * ((v * ndtr(v)) @ weights) @ (weights * u * ndtr(u))
        else:
            new = q / np.pi * (np.sin(angles) + (np.pi - angles) * table)
        cosine, q = np.interp(np.arccos(cosine), angles[::-1], (new / new[-1])[::-1]).clip(-1, 1), new[-1]
    return cosine


def auc_of(kernel: np.ndarray, y: np.ndarray, noise: float) -> np.ndarray:
    """AUC of the likelihood ratio between a record's prediction with and without it, on a grid."""
    n, found = len(y), np.empty(len(y))
    inverse = np.linalg.inv(kernel + noise * np.eye(n))
    with_mean = kernel @ inverse @ y
    with_variance = np.diag(kernel - kernel @ inverse @ kernel)
    for i in range(n):
        rest = inverse - np.outer(inverse[i], inverse[i]) / inverse[i, i]  # of all others, with a zero row
        mean, variance = kernel[i] @ rest @ y, kernel[i, i] - kernel[i] @ rest @ kernel[i]
        laws = [(with_mean[i], with_variance[i] ** 0.5), (mean, variance**0.5)]
        grid = np.unique(np.concatenate([norm.ppf(np.linspace(1e-7, 1 - 1e-7, 1_001), *law) for law in laws]))
        middle = (grid[1:] + grid[:-1]) / 2
        inside, outside = (np.diff(norm.cdf(grid, *law)) for law in laws)
        order = np.argsort(norm.logpdf(middle, *laws[1]) - norm.logpdf(middle, *laws[0]))
        below = np.cumsum(outside[order]) - outside[order] / 2
        found[i] = 1 - (inside[order] * below).sum()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("data", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    apart = 0.0
    for row in (gls_with_averaged_lira, california_newton, characters_newton, gelu_over_relu, trace_over_lt_iqr):
        again, told = row(given.data, given.work)
        apart = max(apart, abs(again - told))
        print(f"{row.__doc__.splitlines()[0]}\n    here {again:.4f}, on the page {told:.4f}", flush=True)
    return int(apart > 0.005)


if __name__ == "__main__":
    sys.exit(main())
