"""Work shared by the processes that torchrun started (gloo between CPUs, NCCL between GPUs), and by threads."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from giveaway.checks import CPU, fail
from giveaway.storage.folder import NO_CHECKPOINT, Checkpoint
from giveaway.text import OnRows

PIECE_BYTES = 256_000_000  # of a tensor summed at a time: the transport allocates buffers of the same size
TIMEOUT = 1_800.0  # seconds; a peer that ends is noticed at once on gloo, one that hangs only by this

Items = TypeVar("Items", bound="Sequence[Any] | torch.Tensor")
Item = TypeVar("Item")


class ProcessError(RuntimeError):
    """Another process is gone, or never came; the message is one line and says what to do."""


@dataclass(frozen=True)
class Processes(AbstractContextManager["Processes", None]):
    """All processes of an audit, seen from number `rank`; all must ask for the same sums in the same order."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def share(self, items: Items) -> Items:
        """Return this process's consecutive share of `items`; the lengths of the shares differ by at most one."""
        count = len(items)
        return items[count * self.rank // self.size : count * (self.rank + 1) // self.size]  # type: ignore[return-value]

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` over the processes, in place and in its own precision; booleans are combined with "or"."""
        if self.size == 1:
            return tensor
        flat = tensor.detach().contiguous().view(-1)
        numbers = flat.view(torch.uint8) if flat.dtype == torch.bool else flat
        operation = dist.ReduceOp.MAX if flat.dtype == torch.bool else dist.ReduceOp.SUM
        for piece in numbers.split(max(1, PIECE_BYTES // numbers.element_size())):
            sent = piece.to(self.device if dist.get_backend() == "nccl" else CPU)
            with self._answered("sum"):
                dist.all_reduce(sent, operation)
            if sent is not piece:
                piece.copy_(sent)
        if not tensor.is_contiguous():
            tensor.detach().copy_(flat.view(tensor.shape))
        return tensor

    def agreed(self, text: str) -> str:
        """Give every process the first one's `text`, of up to 256 letters."""
        letters = torch.tensor([ord(letter) for letter in text.ljust(256, "\0")])
        return "".join(map(chr, self.of_first(letters).tolist())).rstrip("\0")

    def of_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give every process the first one's tensor; all must have one of that shape."""
        return self.sum_(tensor if self.first else torch.zeros_like(tensor))

    def of_each(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give every process the tensors (size, …) of all, in their order."""
        every = torch.zeros(self.size, *tensor.shape, dtype=tensor.dtype, device=tensor.device)
        every[self.rank] = tensor
        return self.sum_(every)

    def smallest(self, number: int) -> int:
        return int(self.of_each(torch.tensor(number)).min())

    def any(self, flag: bool) -> bool:
        """Whether a process says so."""
        return bool(self.sum_(torch.tensor(flag)))

    def barrier(self) -> None:
        if self.size > 1:
            with self._answered("barrier"):
                dist.barrier()

    def leave(self) -> None:
        """Disconnect: a process that ends without this may be aborted by the transport, and the others with it."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # NCCL's end waits for the peers, which may be in the middle of a sum where this process failed
        if kind is None or (dist.is_initialized() and dist.get_backend() == "gloo"):
            self.leave()

    @contextmanager
    def _answered(self, what: str) -> Iterator[None]:
        """Turn the failure of a collective, which gloo and NCCL raise from deep inside, into a ProcessError."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            late = any(words in str(error).lower() for words in ("timeout", "timed out"))
            raise ProcessError(
                f"audit: expected all {self.size} processes to stay, got none answering rank {self.rank}'s {what} "
                f"({'a peer did not come in time' if late else 'a peer ended'}); nothing was written, start it again "
                "with --resume"
            ) from error


ALONE = Processes()


@dataclass(frozen=True)
class Execution:
    """The processes that share the work, where it saves what it has finished, and who is told of rows just done."""

    processes: Processes = ALONE
    checkpoint: Checkpoint = NO_CHECKPOINT
    on_rows: OnRows = lambda rows: None


HERE = Execution()


def processes_from_environment(device: torch.device | str = "cpu", *, timeout: float = TIMEOUT) -> Processes:
    """Join the processes that torchrun started, if any; `timeout` seconds is the longest that one may be waited for."""
    place = torch.device(device)
    if os.environ.get("WORLD_SIZE", "1").strip() in ("", "1"):
        return ALONE if place == CPU else Processes(device=place)
    expected, remedy = "the environment that torchrun sets", "start the audit with torchrun"
    given = {name: os.environ.get(name, "").strip() for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")}
    for name, value in given.items():
        if not value or (name != "MASTER_ADDR" and not value.isdecimal()):
            raise fail("torchrun", expected, f"{name}={value!r}" if value else f"no {name}", remedy)
    rank, size, local = (int(given[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if rank >= size:
        raise fail("torchrun", expected, f"RANK {rank} of WORLD_SIZE {size}", remedy)
    backend = "gloo"
    if place.type == "cuda":
        backend, place = "nccl", torch.device("cuda", local)
        if local >= torch.cuda.device_count():
            got = f"LOCAL_RANK {local} with {torch.cuda.device_count()} GPUs"
            raise fail("device", "a GPU a process", got, "start one process a GPU (torchrun --nproc-per-node)")
        torch.cuda.set_device(place)
        # without it a lost peer ends the process from a watchdog thread, before anything can be said
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    own, limit = place if backend == "nccl" else None, timedelta(seconds=timeout)
    try:
        dist.init_process_group(backend, rank=rank, world_size=size, timeout=limit, device_id=own)
    except (RuntimeError, ValueError) as error:
        raise ProcessError(
            f"audit: expected all {size} processes to join, got no meeting at MASTER_ADDR for rank {rank}; "
            "check that every machine was started with the same --rdzv-endpoint and --nnodes"
        ) from error
    return Processes(rank, size, place)


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile can make kernels for this device: for a GPU it needs Triton and a C compiler."""
    has_compiler = "CC" in os.environ or any(shutil.which(name) for name in ("gcc", "clang"))
    return device.type == "cuda" and has_compiler and importlib.util.find_spec("triton") is not None


def in_threads(
    work: Callable[[Item], Any], items: Iterable[Item], device: torch.device, most: int | None = None
) -> None:
    """Call `work` on every item, a thread each, at most `most`; on one for a GPU. For operations as small as a cache,
    torch's own threads wait for each other longer than they work."""
    threads = torch.get_num_threads()
    workers = 1 if device.type == "cuda" else min(threads, most or threads)
    if workers == 1:
        for item in items:
            work(item)
        return
    torch.set_num_threads(threads // workers)
    pending: set[Future[Any]] = set()
    try:
        with ThreadPoolExecutor(workers) as pool:
            for item in items:
                if len(pending) >= 2 * workers:  # so that the memory they hold stays bounded
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                pending.add(pool.submit(work, item))
            for future in pending:
                future.result()
    finally:
        torch.set_num_threads(threads)
