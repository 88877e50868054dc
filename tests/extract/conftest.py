from collections import OrderedDict

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn

from tests.extract.examples import ROWS, D, N


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(5)


@pytest.fixture
def x(generator):
    return torch.randn(N, 6, generator=generator)


@pytest.fixture
def y():
    return torch.arange(N) % 3


@pytest.fixture
def model(generator):
    net = nn.Sequential(OrderedDict(body=nn.Linear(6, 5), act=nn.ReLU(), drop=nn.Dropout(0.5), fc=nn.Linear(5, 3)))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return net


@pytest.fixture
def counted(model):
    """The model, and how many records went through it."""
    rows = []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    return model, rows


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture
def X(rng):  # noqa: N802 (scikit-learn's name)
    return rng.normal(size=(ROWS, D)) * [1, 2, 0.5, 3, 1] + [0, 1, -2, 0, 4]


@pytest.fixture
def values(rng, X):
    return X @ rng.normal(size=(D, 2)) + 3 + rng.normal(size=(ROWS, 2))


@pytest.fixture
def labels(rng, X):
    centred = X - X.mean(0)
    scores = centred @ rng.normal(size=(D, 3)) + 2 * rng.gumbel(size=(ROWS, 3))
    return np.array(["ant", "bee", "cat"])[scores.argmax(1)]


@pytest.fixture
def Z(X):  # noqa: N802
    return StandardScaler().fit_transform(X)
