"""Oracles of the theory: real least-squares fits, many at once (no formula of the theory is used), and convexity."""

import numpy as np


def refits(x, error, *, n, runs, rng, sigma=1.0, covariance=None):
    """(h, e_out, e_in) of `runs` fits around one fixed record (x, y = θᵀx + error): n − 1 fresh Gaussian records each.

    error has shape (q,); e_out and e_in are (runs, q) residuals of the record without and with it in the training set.
    """
    x, error = np.asarray(x, float), np.asarray(error, float)
    p, q = x.size, error.size
    theta = rng.normal(size=(p, q))
    root = np.linalg.cholesky(np.eye(p) if covariance is None else covariance)
    y = x @ theta + error
    h, out, inside = [], [], []
    for _ in range(runs // 1000):
        others = rng.normal(size=(1000, n - 1, p)) @ root.T
        targets = others @ theta + sigma * rng.normal(size=(1000, n - 1, q))
        gram, moment = others.swapaxes(1, 2) @ others, others.swapaxes(1, 2) @ targets
        out.append(y - x @ np.linalg.solve(gram, moment))
        gram, moment = gram + np.outer(x, x), moment + np.outer(x, y)
        inside.append(y - x @ np.linalg.solve(gram, moment))
        h.append(np.linalg.solve(gram, np.broadcast_to(x[:, None], (1000, p, 1)))[..., 0] @ x)
    return np.concatenate(h), np.concatenate(out), np.concatenate(inside)


def is_convex(curve):
    """Whether β is convex in α on a grid, as the curve of every likelihood-ratio test is, record by record."""
    alpha = np.linspace(0, 1, 201).reshape(-1, *[1] * len(curve.shape))
    return (np.diff(curve.errors(alpha)[1], n=2, axis=0) >= -1e-9).all(axis=0)


def same_in_a_loop(curve_of, first, second, alpha, rel):
    """The curve of arrays (len(second), len(first)) is that of each pair, at each rate."""
    curve = curve_of(np.array(first), np.array(second)[:, None])
    assert curve.shape == (len(second), len(first))
    table = curve.tpr(np.array(alpha)[:, None, None])
    assert table.shape == (len(alpha), *curve.shape)
    for i, j, k in np.ndindex(table.shape):
        one = curve_of(first[k], second[j]).tpr(alpha[i])
        np.testing.assert_allclose(table[i, j, k], one, rtol=rel)


def sorted_test(outside, inside):
    """FPR and TPR of the best test that sees one of many cells, by sorting their likelihood ratios."""
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.nan_to_num(inside / outside, nan=0.0), kind="stable")
    return tuple(np.concatenate([[0], np.cumsum(p[order])]) for p in (outside, inside))
