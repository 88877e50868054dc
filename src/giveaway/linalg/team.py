"""Processes that share one audit: each takes its run of the items, and sums are made over all of them.

They are started by torchrun and talk through torch.distributed: gloo between CPUs, NCCL between GPUs.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from giveaway.checks import fail

PIECE_BYTES = 256_000_000  # of a tensor that is summed at a time: the buffers of the transport are as large
CPU = torch.device("cpu")
TIMEOUT = 1_800.0  # seconds; a peer that ends is noticed at once on gloo, one that hangs only by this


class Sliceable(Protocol):
    """A sequence, an array or a tensor."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Any: ...


Items = TypeVar("Items", bound=Sliceable)


class TeamError(RuntimeError):
    """A process of the team is gone, or never came; the message is one line and says what to do."""


@dataclass(frozen=True)
class Team:
    """Process `rank` of `size`, working on `device`. Every process must ask for the same sums in the same order."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this is the process that speaks and writes."""
        return self.rank == 0

    def share(self, items: Items) -> Items:
        """This process's run of `items`: together the runs are all of them in order, in lengths that differ by one."""
        count = len(items)
        return items[count * self.rank // self.size : count * (self.rank + 1) // self.size]

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` over the processes, in place and in its own precision; of booleans, whether any is true."""
        if self.size == 1:
            return tensor
        flat = tensor.detach().contiguous().view(-1)
        numbers = flat.view(torch.uint8) if flat.dtype == torch.bool else flat
        operation = dist.ReduceOp.MAX if flat.dtype == torch.bool else dist.ReduceOp.SUM
        wire = self.device if dist.get_backend() == "nccl" else CPU
        for piece in numbers.split(max(1, PIECE_BYTES // numbers.element_size())):
            sent = piece.to(wire)
            with self._answered("sum"):
                dist.all_reduce(sent, operation)
            if sent is not piece:
                piece.copy_(sent)
        if not tensor.is_contiguous():
            tensor.detach().copy_(flat.view(tensor.shape))
        return tensor

    def sum_array(self, array: np.ndarray) -> np.ndarray:
        """The same for an array."""
        if self.size > 1:
            self.sum_(torch.from_numpy(array))
        return array

    def agreed(self, text: str) -> str:
        """The first process's `text`, of up to 256 letters, told to all."""
        letters = torch.zeros(256, dtype=torch.int64)
        if self.first:
            letters[: len(text)] = torch.tensor([ord(letter) for letter in text], dtype=torch.int64)
        return "".join(chr(letter) for letter in self.sum_(letters).tolist() if letter)

    def smallest(self, number: int) -> int:
        """The smallest that any process has."""
        numbers = torch.zeros(self.size, dtype=torch.int64)
        numbers[self.rank] = number
        return int(self.sum_(numbers).min())

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            with self._answered("barrier"):
                dist.barrier()

    def leave(self) -> None:
        """End the team; nothing can be summed afterwards. A process that ends without it may be aborted by threads of
        the transport, and torchrun then ends the others too."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # NCCL's end waits for the peers, which may be in the middle of a sum where this process failed
        if kind is None or (dist.is_initialized() and dist.get_backend() == "gloo"):
            self.leave()

    @contextmanager
    def _answered(self, what: str) -> Iterator[None]:
        """A collective whose failure means that a peer is not there: gloo and NCCL raise from deep inside."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            late = any(words in str(error).lower() for words in ("timeout", "timed out"))
            raise TeamError(
                f"audit: expected all {self.size} processes to stay, got none answering rank {self.rank}'s {what} "
                f"({'a peer did not come in time' if late else 'a peer ended'}); nothing was written, start it again "
                "with --resume"
            ) from error


ALONE = Team()


def team_from_environment(device: torch.device | str = "cpu", *, timeout: float = TIMEOUT) -> Team:
    """The team that torchrun started this process in; alone where it did not, or started one process only."""
    if os.environ.get("WORLD_SIZE", "1").strip() in ("", "1"):
        return ALONE if torch.device(device) == CPU else Team(device=torch.device(device))
    return join_team(device, timeout=timeout)


def join_team(device: torch.device | str = "cpu", *, timeout: float = TIMEOUT) -> Team:
    """Meet the other processes that torchrun started; on "cuda" each takes the GPU of its LOCAL_RANK.

    `timeout` is in seconds: the longest that one process may let the others wait.
    """
    rank, size, local = (_from_torchrun(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if "MASTER_ADDR" not in os.environ or rank >= size:
        got = f"RANK {rank} of WORLD_SIZE {size}" if rank >= size else "no MASTER_ADDR"
        raise fail("torchrun", "the environment that torchrun sets", got, "start the audit with torchrun")
    place = torch.device(device)
    if place.type == "cuda":
        place = torch.device("cuda", local)
        if local >= torch.cuda.device_count():
            got = f"LOCAL_RANK {local} with {torch.cuda.device_count()} GPUs"
            raise fail("device", "a GPU a process", got, "start one process a GPU (torchrun --nproc-per-node)")
        torch.cuda.set_device(place)
        # without it a lost peer ends the process from a watchdog thread, before anything can be said
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    try:
        dist.init_process_group(
            "nccl" if place.type == "cuda" else "gloo",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=timeout),
            device_id=place if place.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:
        raise TeamError(
            f"audit: expected all {size} processes to join, got no meeting at MASTER_ADDR for rank {rank}; "
            "check that every machine was started with the same --rdzv-endpoint and --nnodes"
        ) from error
    return Team(rank, size, place)


def _from_torchrun(name: str) -> int:
    value = os.environ.get(name)
    if value is None or not value.strip().isdecimal():
        got = f"no {name}" if value is None else f"{name}={value!r}"
        raise fail("torchrun", "the environment that torchrun sets", got, "start the audit with torchrun")
    return int(value)
