"""Window: some records of a head, read into memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Window:
    """Rows of a head as tensors on one device: their numbers; features, outputs and targets as the head keeps them."""

    numbers: torch.Tensor
    features: torch.Tensor
    outputs: torch.Tensor
    targets: torch.Tensor
    sample_weight: torch.Tensor | None
    intercept: bool

    def __len__(self) -> int:
        return len(self.features)

    @property
    def width(self) -> int:
        """Columns of the design matrix: the features, and the bias column if the head has one."""
        return self.features.shape[1] + int(self.intercept)

    @property
    def weights(self) -> torch.Tensor:
        """The records' weights in the training loss, ones where none were given."""
        if self.sample_weight is not None:
            return self.sample_weight
        return torch.ones(len(self), dtype=torch.float64, device=self.features.device)

    def part(self, which: slice) -> Window:
        """Some of these rows; nothing is copied."""
        weight = None if self.sample_weight is None else self.sample_weight[which]
        return Window(
            self.numbers[which],
            self.features[which],
            self.outputs[which],
            self.targets[which],
            weight,
            self.intercept,
        )

    def rows(self, dtype: torch.dtype = torch.float64, columns: int | None = None) -> torch.Tensor:
        """Rows of the design matrix, the bias column last, or zeros after it up to `columns`."""
        d = self.features.shape[1]
        out = torch.empty(len(self), columns or self.width, dtype=dtype, device=self.features.device)
        out[:, :d] = self.features
        out[:, d : self.width] = 1.0
        out[:, self.width :] = 0.0
        return out

    def columns(self) -> torch.Tensor:
        """The same rows in float64 as the columns of a contiguous (width, records) matrix."""
        block = self.features
        out = torch.empty(self.width, len(block), dtype=torch.float64, device=block.device)
        # converting while transposing would be slower
        out[: block.shape[1]] = block.T if block.dtype == torch.float64 else block.T.contiguous()
        out[block.shape[1] :] = 1.0
        return out

    def row_norms(self) -> torch.Tensor:
        """‖x‖ of the rows of the design matrix."""
        norms = torch.linalg.vector_norm(self.features.to(torch.float64), dim=1)
        return torch.hypot(norms, torch.ones_like(norms)) if self.intercept else norms
