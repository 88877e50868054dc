"""A digest of a model: two that share it give the same outputs, as far as weights and layers can tell."""

from __future__ import annotations

import hashlib
import itertools
import re

import torch
from torch import nn

ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in what functions print, another one in each process


def model_digest(model: nn.Module) -> str:
    """SHA-256 of what the model prints and of every parameter and buffer; code in a forward is not seen."""
    digest = hashlib.sha256(ADDRESS.sub("", repr(model)).encode())
    for name, value in itertools.chain(model.named_parameters(), model.named_buffers()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        kept = value.detach()
        dense = kept if kept.layout == torch.strided else kept.to_dense()
        if dense.numel():
            digest.update(dense.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
