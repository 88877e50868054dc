"""How much of a pass is done at once: records and columns within a budget of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from giveaway.checks import available_memory

MOST_ON_CPU = 1_000_000_000
CACHED_ON_CPU = 32_000_000  # bytes of activations that one piece touches on a CPU: more only leaves the caches
MOST_ROWS = 512
LEAST_ROWS = 32


@dataclass(frozen=True)
class Work:
    """`kept` numbers a record keeps for its backward pass, `size` parameters, `bytes` of one number, the budget."""

    n: int
    size: int
    kept: int
    bytes: int
    memory: int
    cached: int

    @classmethod
    def measured(
        cls, function: Callable[[int], Callable[[Any], torch.Tensor]], network: Any, memory: int | None
    ) -> Work:
        """Counts what the model keeps for one record, as the difference between two and one."""
        values = {name: value.clone().requires_grad_() for name, value in network.parameters.values.items()}
        own = {value.data_ptr() for value in (*values.values(), *network.parameters.fixed.values())}
        counts = []
        for rows in (1, min(2, network.n)):
            kept: dict[int, int] = {}

            def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
                if tensor.data_ptr() not in own:
                    kept[tensor.data_ptr()] = tensor.numel()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                found = function(rows)(values)
            counts.append(sum(kept.values()) + found.numel())
        if memory is None:
            memory = _free(network.device) // 4
            memory = memory if network.device.type == "cuda" else min(memory, MOST_ON_CPU)
        number = torch.empty(0, dtype=network.dtype).element_size()
        cached = memory // 2 if network.device.type == "cuda" else CACHED_ON_CPU
        each = max(counts[-1] - counts[0] if network.n > 1 else counts[0], 1)
        return cls(network.n, network.size, each, number, memory, min(cached, memory // 2))

    def columns(self, asked: int, rows: int = LEAST_ROWS, numbers: int | None = None) -> int:
        """Columns at once, of `asked`: three vectors of parameters each, and `rows` records with `numbers` each, by
        default what the model keeps."""
        by_records = self.cached // (min(rows, self.n) * (numbers or self.kept) * self.bytes)
        return min(self.columns_by_parameters(asked), max(by_records, 1))

    def columns_by_parameters(self, asked: int) -> int:
        """Columns at once, of `asked`, that their parameters leave room for."""
        return max(1, min(asked, self.memory // (2 * 3 * self.size * self.bytes)))

    def rows(self, columns: int) -> int:
        """Records at once for this many columns."""
        return max(1, min(MOST_ROWS, self.n, self.cached // (columns * self.kept * self.bytes)))

    def rows_of_matrices(self, outputs: int, numbers: int) -> int:
        """Records at once where each needs the derivatives of `outputs` in all that is kept, and `numbers` more."""
        # the derivatives are twice there while they are laid out, and once while the rest is formed
        each = (1 + outputs) * self.kept + max(outputs * self.kept, numbers)
        return max(1, min(MOST_ROWS, self.n, self.memory // (2 * each * self.bytes)))

    def rows_of_gradients(self, outputs: int = 1) -> int:
        """Records at once where each needs `outputs` vectors of parameters of its own."""
        by_parameters = self.memory // (4 * outputs * self.size * self.bytes)
        return max(1, min(MOST_ROWS, by_parameters, self.rows(outputs)))


def _free(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
