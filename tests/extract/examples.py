"""Small models, data sets and objectives that the tests of extract share."""

import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

N = 23


class Wrapped(nn.Module):
    """A backbone whose forward is given by the test."""

    def __init__(self, net, forward):
        super().__init__()
        self.net = net
        self._forward = forward

    def forward(self, *args, **kwargs):
        return self._forward(self.net, *args, **kwargs)


class Records(Dataset):
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return N

    def __getitem__(self, index):
        if not 0 <= index < N:
            raise IndexError
        return self.make(index)


class Stream(IterableDataset):
    """Records without a length, made anew in each pass."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return iter(self.make())


def named_stream(x, y):
    """A stream of dicts that carry ids."""
    return Stream(lambda: [{"x": x[i], "y": y[i], "id": i} for i in range(len(x))])


class Bomb:
    """A pickle that makes a folder when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.mkdir, (self.path,)


def expected(model, x):
    with torch.no_grad():
        features = torch.relu(model.body(x))
        return features, model.fc(features)


def assert_is_head_of(head, model, x):
    features, outputs = expected(model, x)
    torch.testing.assert_close(head.features, features)
    torch.testing.assert_close(head.outputs, outputs)
    torch.testing.assert_close(head.weight, model.fc.weight.detach())
    torch.testing.assert_close(head.bias, model.fc.bias.detach())


ROWS, D = 90, 5
EXACT = {"tol": 1e-10, "max_iter": 20_000}
LBFGS = {"solver": "lbfgs", "alpha": 0.3, "tol": 1e-12, "max_iter": 20_000, "max_fun": 200_000, "random_state": 0}


def objective_gradient(head, l2=None):
    """Gradient of Σ w_i ℓ_i + l2/2·‖θ‖² at the head's parameters, by autograd, from the definitions alone."""
    theta = head.parameters().clone().requires_grad_()
    design = torch.cat([head.features.double(), torch.ones(head.n, int(head.intercept)).double()], dim=1)
    f = design @ theta
    y = head.targets
    if head.loss == "squared":
        losses = ((f - y) ** 2).sum(1)
    elif head.loss == "binary_cross_entropy":
        losses = torch.nn.functional.binary_cross_entropy_with_logits(f, y, reduction="none").sum(1)
    elif head.m == 1:
        losses = torch.nn.functional.binary_cross_entropy_with_logits(f[:, 0], y.double(), reduction="none")
    else:
        losses = torch.nn.functional.cross_entropy(f, y, reduction="none")
    if head.sample_weight is not None:
        losses = losses * head.sample_weight
    penalized = theta if head.penalize_intercept or not head.intercept else theta[:-1]
    total = losses.sum() + (head.l2 if l2 is None else l2) / 2 * (penalized**2).sum()
    return torch.autograd.grad(total, theta)[0]


def off_optimum(head, l2=None):
    """Gradient left over, against the pull of the penalty: a penalty wrong by a factor 2 leaves 0.5 or 1."""
    pull = head.l2 * head.weight.double().norm() if head.l2 else objective_gradient(head, l2=1e6).norm() / 1e6
    return float(objective_gradient(head, l2).norm() / pull)


def tried(rows: int) -> int:
    """The rows on which a model runs beyond one pass, to see that it is a function: again, and twice in halves."""
    return 3 * rows


def snapshot(model, loader):
    """All that must be the same after a model and a loader were used."""
    hooks = [
        (len(m._forward_hooks), len(m._forward_hooks_with_kwargs), len(m._forward_pre_hooks)) for m in model.modules()
    ]
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "modes": [(module.training, getattr(module, "momentum", None)) for module in model.modules()],
        "hooks": hooks,
        "identity": {name: id(tensor) for name, tensor in tensors.items()},
        "values": {name: tensor.detach().clone().tolist() for name, tensor in tensors.items()},
        "flags": {name: (tensor.requires_grad, tensor.device) for name, tensor in tensors.items()},
        "grads": {name: None if t.grad is None else t.grad.tolist() for name, t in model.named_parameters()},
        "torch": torch.get_rng_state().tolist(),
        "numpy": repr(np.random.get_state()),  # noqa: NPY002 (with the position in the stream, which moves first)
        "python": random.getstate(),
        "loader": loader.generator.get_state().tolist(),
        "grad mode": torch.is_grad_enabled(),
    }
