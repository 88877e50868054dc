import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from giveaway.extract import from_torch


class Fragile(nn.Module):
    """Mixed modes, a buffer that every forward moves, dropout that draws though in eval mode, and a failing batch."""

    def __init__(self, fails_at):
        super().__init__()
        self.body, self.norm, self.fc = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scratch", torch.ones(2))
        self.fails_at = fails_at

    def forward(self, x):
        assert not self.training
        assert not self.norm.training
        assert not torch.is_grad_enabled()
        self.calls += 1
        self.scratch = self.scratch + 1
        if self.calls == self.fails_at:
            raise RuntimeError("out of luck")
        torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
        return self.fc(self.norm(self.body(x)))


def snapshot(model, loader):
    hooks = [
        (len(m._forward_hooks), len(m._forward_hooks_with_kwargs), len(m._forward_pre_hooks)) for m in model.modules()
    ]
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "modes": [module.training for module in model.modules()],
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


@pytest.mark.parametrize("fails_at", [3, None])
def test_everything_is_put_back_also_when_the_forward_raises(x, y, fails_at):
    net = Fragile(fails_at).train()
    net.norm.eval()
    net.body.weight.requires_grad_(False)
    net.fc.weight.grad = torch.full_like(net.fc.weight, 2.0)
    net.fc.register_forward_hook(lambda *_: None)
    loader = DataLoader(TensorDataset(x, y), batch_size=5, generator=torch.Generator().manual_seed(1))
    before = snapshot(net, loader)
    if fails_at:
        with pytest.raises(RuntimeError, match="out of luck"):
            from_torch(net, loader)
    else:
        from_torch(net, loader)
    assert snapshot(net, loader) == before


def test_the_head_does_not_share_memory_with_the_model(x, y):
    net = nn.Linear(6, 3)
    head = from_torch(net, TensorDataset(x, y))
    kept = head.weight.clone(), head.features.clone()
    with torch.no_grad():
        net.weight.zero_()
        x.zero_()
    assert torch.equal(head.weight, kept[0])
    assert torch.equal(head.features, kept[1])
