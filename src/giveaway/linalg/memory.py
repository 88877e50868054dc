"""How much memory there is, asked before it is taken."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from giveaway.checks import fail


def check_memory(argument: str, needed: int, *, what: str, got: str, remedy: str) -> None:
    """Refuse work that needs more bytes than are free."""
    available = available_memory()
    if needed > available:
        expected = f"{what} within the {available / 1e9:.1f} GB of free memory"
        raise fail(argument, expected, f"{got}, which need {needed / 1e9:.1f} GB", remedy)


def available_memory() -> int:
    """Bytes that can be had without swapping; the page cache counts as free where the system tells."""
    information = Path("/proc/meminfo")
    if information.is_file():
        for line in information.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory(device: torch.device) -> int:
    """Bytes that can be had on `device`."""
    if device.type == "cuda":
        # what torch holds for later use is free to this process
        spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + spare
    return available_memory()
