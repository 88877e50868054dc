"""Small models and data sets that the tests of from_torch share."""

import torch
from torch import nn
from torch.utils.data import Dataset

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
