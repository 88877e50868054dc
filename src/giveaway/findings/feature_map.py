"""A map of the records as the head sees them: its features in two dimensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh

from giveaway.checks import ROWS_PER_CHECK, check_choice, check_number, fail
from giveaway.findings.removal import row_of_record
from giveaway.records import Head, ScoreTable

EXPOSED = 500  # of the most exposed rows, which always have a place
TSNE_FROM = 50  # rows: with fewer a neighbourhood is most of the map
PERPLEXITY = 30
DIRECTIONS = 50  # of the features, that t-SNE measures distances in
SAME = 1.0 - 1e-9


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Places of some rows of a table. They have no unit; with t-SNE only who is near whom means something."""

    rows: np.ndarray  # row numbers, ascending
    places: np.ndarray  # (rows, 2) float32
    method: str  # "PCA" or "t-SNE"
    explained: float | None  # share of the variance that the two directions hold; None for t-SNE, or without variance


def feature_map(head: Head, table: ScoreTable, *, method: str = "auto", most: int = 5_000, seed: int = 0) -> FeatureMap:
    """Place up to `most` rows: the most exposed ones, and a choice of the others by `seed`.

    A person stands at the mean of their records. `method` "auto" is t-SNE where openTSNE is installed, else PCA;
    fewer than 50 rows, or rows that are all the same, are placed by PCA whatever was asked for.
    """
    check_choice("method", method, ("auto", "pca", "tsne"))
    row_of = row_of_record(head, table)
    if not head.linear:
        raise fail("head", "a linear head", "a black box", "leave the map out: it shows a linear head's features")
    most = int(check_number("most", most, minimum=2, remedy="ask for at least 2 rows"))
    tsne = None if method == "pca" else _tsne(required=method == "tsne")
    rows = chosen_rows(table, most, seed)
    x = mean_of_records(lambda which: head.features[which], row_of, rows)
    axes, explained = _principal(x, DIRECTIONS if tsne is not None else 2)
    flat = np.zeros((len(rows), 2))
    flat[:, : axes.shape[1]] = axes[:, :2]
    if tsne is None or len(rows) < TSNE_FROM or explained is None:
        return FeatureMap(rows, flat.astype(np.float32), "PCA", explained)
    # t-SNE starts from the PCA map, made small; equal rows are told apart, as at one place they could not part
    start = flat + 0.01 * flat[:, 0].std() * np.random.default_rng(seed).normal(size=flat.shape)
    placed = tsne(
        perplexity=min(PERPLEXITY, (len(rows) - 1) / 3),
        initialization=start * (1e-4 / start[:, 0].std()),
        neighbors="exact",
        negative_gradient_method="bh",
        random_state=seed,
        n_jobs=1,
    ).fit(axes)
    return FeatureMap(rows, np.asarray(placed, dtype=np.float32), "t-SNE", None)


def mean_of_records(read: Callable[[torch.Tensor], torch.Tensor], row_of: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The mean over the records of each of `rows` of what `read` gives for record numbers; others are not read."""
    place = np.full(int(row_of.max()) + 1, -1)
    place[rows] = np.arange(len(rows))
    records = np.flatnonzero(place[row_of] >= 0)
    total = np.zeros((len(rows), 0))
    for start in range(0, len(records), ROWS_PER_CHECK):
        part = records[start : start + ROWS_PER_CHECK]
        values = read(torch.from_numpy(part)).to(torch.float64).cpu().numpy()
        if start == 0:
            total = np.zeros((len(rows), values.shape[1]))
        np.add.at(total, place[row_of[part]], values)
    counts = np.bincount(place[row_of[records]], minlength=len(rows))
    return total / counts[:, None]


def chosen_rows(table: ScoreTable, most: int, seed: int) -> np.ndarray:
    order = table.order()
    exposed, others = np.split(order, [min(EXPOSED, most)])
    more = min(most - len(exposed), len(others))
    picked = np.random.default_rng(seed).choice(others, size=more, replace=False)
    return np.sort(np.concatenate([exposed, picked]))


def _principal(x: np.ndarray, count: int) -> tuple[np.ndarray, float | None]:
    """Up to `count` principal coordinates of the rows of x, and the share of the variance that the first two hold.

    The eigenvectors are those of the smaller of the two products of x with itself. Of each coordinate the largest
    entry is positive, so that the same rows give the same map.
    """
    x = x - x[0]  # any row: constant columns become exact zeros
    size = np.abs(x).max(initial=0.0)
    if size == 0.0:
        return np.zeros((len(x), 0)), None
    x = x / size
    x = x - x.mean(0)
    wide = x.shape[1] > len(x)
    product = x @ x.T if wide else x.T @ x
    side = len(product)
    values, vectors = eigh(product, subset_by_index=[max(0, side - count), side - 1])
    values, vectors = values[::-1].clip(0.0), vectors[:, ::-1]
    axes = vectors * np.sqrt(values) if wide else x @ vectors
    largest = np.abs(axes).max(0)
    first = (np.abs(axes) >= SAME * largest).argmax(0)
    axes = axes * np.where(axes[first, np.arange(axes.shape[1])] < 0, -1.0, 1.0)
    return axes, min(1.0, float(values[:2].sum() / np.trace(product)))


def _tsne(*, required: bool) -> Any:
    """openTSNE's estimator, or None where it is not installed."""
    try:
        from openTSNE import TSNE
    except ImportError as error:
        if required:
            remedy = "pip install giveaway[tsne], or use method='pca'"
            raise fail("method", "openTSNE installed for 'tsne'", "none", remedy) from error
        return None
    return TSNE
