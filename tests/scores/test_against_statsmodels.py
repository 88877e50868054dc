"""Linear and binary heads against statsmodels' influence measures."""

from __future__ import annotations

import numpy as np
import pytest

import giveaway as ga

sm = pytest.importorskip("statsmodels.api")


@pytest.fixture
def features() -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(120, 3))
    x[:4] *= 4.0
    return x


def test_linear(features: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    y = features @ [1.0, -1.0, 0.5] + rng.standard_t(3, size=120)
    fit = sm.OLS(y, sm.add_constant(features)).fit()
    influence = fit.get_influence()
    table = ga.audit(ga.Head(features, fit.fittedvalues[:, None], y, "squared"))
    h = influence.hat_matrix_diag
    np.testing.assert_allclose(table["leverage"], h, rtol=1e-10)
    left_out = influence.resid_press
    np.testing.assert_allclose(table["loo_gap"], left_out**2 - fit.resid**2, rtol=1e-9, atol=1e-13)
    cooks = influence.cooks_distance[0]
    np.testing.assert_allclose(table["influence"], cooks * 2 * 4 * fit.mse_resid * (1 - h) ** 2, rtol=1e-9)


def test_binary(features: np.ndarray) -> None:
    rng = np.random.default_rng(2)
    y = (features @ [1.0, -1.0, 0.5] + rng.logistic(size=120) > 0).astype(int)
    fit = sm.GLM(y, sm.add_constant(features), family=sm.families.Binomial()).fit(tol=1e-14, maxiter=100)
    influence = fit.get_influence()
    logits = np.log(fit.fittedvalues / (1 - fit.fittedvalues))
    table = ga.audit(ga.Head(features, logits[:, None], y, "cross_entropy"))
    h = influence.hat_matrix_diag
    np.testing.assert_allclose(table["leverage"], h, rtol=1e-8)
    # Cook's distance of a GLM is r²h/(k(1−h)²) with the Pearson residual r, and (y−p)²/w = r²
    squared = influence.cooks_distance[0] * 4 * (1 - h) ** 2 / h
    np.testing.assert_allclose(table["influence"], squared * h, rtol=1e-7)
    np.testing.assert_allclose(table["newton"], squared * h / (1 - h), rtol=1e-7)
