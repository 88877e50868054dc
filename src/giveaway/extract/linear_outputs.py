"""features @ weight.T + bias in float64, block by block or as it is read."""

from __future__ import annotations

import torch

from giveaway.checks import check_shape, rows_at_a_time
from giveaway.records.lazy_rows import LazyRows, LinearRows
from giveaway.records.row_reading import LARGE_BYTES


def linear_outputs(
    features: torch.Tensor | LazyRows, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | LinearRows:
    """Outputs (n, m) in float64 from features (n, d) of any precision; computed as they are read if they are large."""
    check_shape("features", features, (None, None), "(records, features)")
    check_shape("weight", weight, (None, features.shape[1]), f"(outputs, {features.shape[1]}), a column a feature")
    if bias is not None:
        check_shape("bias", bias, (len(weight),), f"({len(weight)},), one number an output")
    lazy = LinearRows(features, weight, bias)
    if lazy.nbytes >= LARGE_BYTES:
        return lazy
    outputs = torch.empty(lazy.shape, dtype=torch.float64)
    theta, size = weight.to(torch.float64).T, rows_at_a_time(features)
    for start in range(0, len(features), size):
        block = slice(start, start + size)
        torch.matmul(features[block].to(torch.float64), theta, out=outputs[block])
    if bias is not None:
        outputs += bias.to(torch.float64)
    return outputs
