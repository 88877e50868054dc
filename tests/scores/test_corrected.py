"""The Newton step towards the optimum without the record, from heads that are not at an optimum and could nearly
interpolate. For squared loss it is the change from one refit to the other, here in rational numbers."""

from fractions import Fraction

import numpy as np
import pytest

from giveaway import Head, audit


def refit(x, y, l2, rows, i):
    """Return the prediction of record i by the minimum of Σ(f − y)² + ½λ‖θ‖² over these rows, from (K + λ/2)α = y."""
    table = [[*(dot(x[j], x[k]) + (j == k) * l2 / 2 for k in rows), y[j]] for j in rows]
    for k in range(len(table)):
        table[k] = [value / table[k][k] for value in table[k]]
        for j in range(len(table)):
            if j != k:
                table[j] = [a - table[j][k] * b for a, b in zip(table[j], table[k], strict=True)]
    return sum(row[-1] * dot(x[i], x[j]) for row, j in zip(table, rows, strict=True))


def dot(a, b):
    return sum(s * t for s, t in zip(a, b, strict=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("l2", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_few_records_of_many_features_are_refits_or_marked(l2, seed):
    rng, n = np.random.default_rng(seed), 4
    features, weight, y = rng.normal(size=(n, 6)), rng.normal(size=(1, 6)), rng.normal(size=n)
    outputs = features @ weight.T
    head = Head(features, outputs, y, "squared", l2=l2, intercept=False, weight=weight)
    table = audit(head, scores=["newton", "loo_gap"], optimum="corrected")
    exact = (
        [[Fraction(value) for value in row] for row in features.tolist()],
        [*map(Fraction, y.tolist())],
        Fraction(l2),
    )
    others = [[k for k in range(n) if k != i] for i in range(n)]
    step = np.array([float(refit(*exact, others[i], i) - refit(*exact, range(n), i)) for i in range(n)])
    newton = 2 * (outputs[:, 0] - y) * step
    off = np.abs(table["newton"] / newton - 1)
    marked = table.attributes.get("newton_rounded", np.zeros(n, dtype=bool))
    whole = ~table.attributes["newton_capped"]
    assert (off[~marked & whole] <= 1e-8).all()
    assert (off[whole] <= 1e-12 / l2).all()
    np.testing.assert_allclose(table["loo_gap"][whole], (newton + np.square(step))[whole], rtol=1e-12 / l2)
