"""features @ weight.T + bias in float64, block by block."""

from __future__ import annotations

import torch

from giveaway.checks import ROWS_PER_CHECK, check_shape


def linear_outputs(features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Outputs (n, m) in float64 from features (n, d) of any precision, never holding all features in float64."""
    check_shape("features", features, (None, None), "(records, features)")
    check_shape("weight", weight, (None, features.shape[1]), f"(outputs, {features.shape[1]}), a column a feature")
    outputs = torch.empty(len(features), len(weight), dtype=torch.float64)
    theta = weight.to(torch.float64).T
    for start in range(0, len(features), ROWS_PER_CHECK):
        block = slice(start, start + ROWS_PER_CHECK)
        torch.matmul(features[block].to(torch.float64), theta, out=outputs[block])
    if bias is not None:
        check_shape("bias", bias, (len(weight),), f"({len(weight)},), one number an output")
        outputs += bias.to(torch.float64)
    return outputs
