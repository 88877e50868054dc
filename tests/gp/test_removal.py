"""Removals at any query, against fitting again without the records."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.gp import removal as module
from giveaway.gp.posterior import fit
from giveaway.gp.removal import remove
from tests.gp.test_posterior import draw, rbf


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 12),
    removals=st.integers(1, 4),
    size=st.integers(1, 4),
    q=st.integers(1, 3),
    outputs=st.integers(1, 2),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_queries_against_fitting_again(n, removals, size, q, outputs, shared, seed):
    x, y, noise = draw(n, 2, seed=seed), draw(n, outputs, seed=seed + 1), 0.05
    posterior = fit(rbf, x, y, noise)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.stack([torch.randperm(n, generator=generator)[: min(size, n)] for _ in range(removals)])
    queries = draw(1 if shared else removals, q, 2, seed=seed + 2)
    removal = remove(posterior, rows)
    change = removal.mean_change(queries)
    without, with_ = removal.covariances(queries)
    assert without.shape == with_.shape == (removals, q, q)
    for r in range(removals):
        at = queries[0 if shared else r]
        keep = torch.ones(n, dtype=torch.bool)
        keep[rows[r]] = False
        if keep.any():
            again = fit(rbf, x[keep], y[keep], noise)
            mean, covariance = again.mean(at), again.covariance(at)
        else:
            mean, covariance = torch.zeros(q, outputs, dtype=torch.float64), rbf(at, at)
        torch.testing.assert_close(change[r], mean - posterior.mean(at), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(without[r], covariance, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(with_[r], posterior.covariance(at), rtol=1e-9, atol=1e-9)


def test_many_removals_keep_their_own_queries(monkeypatch):
    monkeypatch.setattr(module, "TOGETHER", 4)
    posterior = fit(rbf, draw(9, 2), draw(9, seed=1), 0.1)
    queries = draw(9, 3, 2, seed=2)
    without, _ = remove(posterior, torch.arange(9)).covariances(queries)
    for r in range(9):
        alone, _ = remove(posterior, torch.tensor([[r]])).covariances(queries[r : r + 1])
        torch.testing.assert_close(without[r], alone[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("q", [1, 2])
def test_the_gradient_reaches_the_queries(q):
    removal = remove(fit(rbf, draw(6, 2), draw(6, 2, seed=1), 0.1), torch.tensor([[0, 3], [5, 1]]))
    queries = draw(2, q, 2, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(removal.mean_change, (queries,))
    assert torch.autograd.gradcheck(removal.covariances, (queries,))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (torch.zeros(0, 1, dtype=torch.int64), r"rows: expected shape \(R, s\) or \(R,\), not empty"),
        (torch.tensor([0.0]), "rows: expected row numbers, got dtype torch.float32"),
        (torch.tensor([[0, 6]]), "rows: expected rows from 0 to 5, got row 6"),
        (torch.tensor([[0, 1], [2, 2]]), "rows: expected each record once a group, got row 2 twice in group 1"),
    ],
)
def test_wrong_rows_are_refused(rows, words):
    with pytest.raises(InputError, match=words):
        remove(fit(rbf, draw(6, 2), draw(6), 0.1), rows)


@pytest.mark.parametrize("shape", [(2, 2), (2, 1, 3), (4, 1, 2), (3, 0, 2)])
def test_wrong_queries_are_refused(shape):
    removal = remove(fit(rbf, draw(6, 2), draw(6), 0.1), torch.arange(3))
    with pytest.raises(InputError, match=r"queries: expected shape \(3 or 1, q, 2\), got shape .*; give q queries a"):
        removal.mean_change(torch.zeros(shape))
