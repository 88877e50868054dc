"""Processes and threads that share work: sums, shares, checkpoints, and one line where a peer is gone."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.linalg import processes as module
from giveaway.linalg.processes import (
    ALONE,
    ProcessError,
    Processes,
    in_threads,
    processes_from_environment,
)
from tests import forked
from tests.conftest import free_port

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
BEGIN = """
import sys, torch, numpy as np
from giveaway.linalg import processes as module
from giveaway.linalg.processes import ProcessError, processes_from_environment
module.PIECE_BYTES = 1000
processes = processes_from_environment(timeout=60)
other = 1 - processes.rank
def of(rank, dtype, shape=(7, 50)):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(rank)) * 100).to(dtype)
"""


@pytest.fixture
def without_torchrun(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def run_two(tmp_path: Path, work: str) -> list[tuple[int, str, str]]:
    """Two processes with torchrun's environment but without its eye on them, as (status, stdout, stderr) each."""
    script = tmp_path / "work.py"
    script.write_text(BEGIN + work)
    return [(ended.returncode, ended.stdout, ended.stderr) for ended in forked.team(script, tmp_path)]


# ------------------------------------------------------------------------------------------------------ two processes


@pytest.mark.slow
def test_sums_and_shares_of_two_processes(tmp_path):
    work = """
for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64):
    mine = of(processes.rank, dtype)
    assert processes.sum_(mine) is mine and mine.dtype == dtype
    assert torch.equal(mine, of(0, dtype) + of(1, dtype)), dtype
tiny = torch.tensor(1.0 if processes.first else 1e-15, dtype=torch.float64)
assert processes.sum_(tiny).item() == 1.0 + 1e-15 > 1.0
strided = of(processes.rank, torch.float64)
processes.sum_(strided[:, ::3])
both, alone = of(0, torch.float64) + of(1, torch.float64), of(processes.rank, torch.float64)
expected = alone.clone()
expected[:, ::3] = both[:, ::3]
assert torch.equal(strided, expected)
assert torch.equal(processes.sum_(of(processes.rank, torch.float64).T), both.T)
flags = torch.tensor([processes.first, not processes.first, False, True]).repeat(600)
assert processes.sum_(flags).view(torch.uint8).tolist() == [1, 1, 0, 1] * 600
assert processes.sum_(torch.zeros(0)).tolist() == []
table = torch.zeros(11)
mine = processes.share(np.arange(11))
table[mine] = torch.from_numpy(mine + 1.0).float()
assert processes.sum_(table).tolist() == [i + 1.0 for i in range(11)]
assert processes.smallest(7 - processes.rank) == 6
assert [processes.any(flag) for flag in (False, processes.first, not processes.first)] == [False, True, True]

from giveaway.curvature.sketch import CheckpointedParts
from giveaway.storage.folder import Checkpoint
class Shelf(Checkpoint):
    wants = False
    def __init__(self):
        self.stored = {}
    def load(self, name):
        return self.stored.get(name)
    def save(self, name, tensors):
        self.stored[name] = tensors
    def due(self):
        return self.wants
    def drop(self, name):
        self.stored.pop(name, None)
shelf = Shelf()
parts = CheckpointedParts(shelf, processes)
def number(value):
    return lambda: {"x": torch.tensor(value)}
shelf.wants = not processes.first
parts.part("even", number(1.0))
assert not shelf.stored  # the first process decides when it is time
shelf.wants = processes.first
parts.part("torn", number(2.0))
assert set(shelf.stored) == {"even", "torn"}
if processes.first:
    del shelf.stored["torn"]  # it was killed before its own save
again = CheckpointedParts(shelf, processes)
assert again.part("even", number(9.0)) == {"x": torch.tensor(1.0)}
assert again.part("torn", number(9.0)) == {"x": torch.tensor(9.0)}
assert shelf.stored["torn"] == {"x": torch.tensor(9.0)}
processes.barrier()
with open(f"{sys.argv[1]}/ended", "a") as stream:
    stream.write(str(processes.rank))
processes.leave()
"""
    for status, _, words in run_two(tmp_path, work):
        assert status == 0, words
    assert sorted((tmp_path / "ended").read_text()) == ["0", "1"]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "stays"), [("sum", 0), ("barrier", 1)])
def test_a_peer_that_ends_is_one_line_and_no_success(tmp_path, what, stays):
    work = f"""
processes.barrier()
if processes.rank != {stays}:
    import os
    os._exit(0)
try:
    {"processes.sum_(torch.ones(1_000_000))" if what == "sum" else "processes.barrier()"}
except ProcessError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
finally:
    processes.leave()
"""
    ended = run_two(tmp_path, work)
    status, _, words = ended[stays]
    assert (status, ended[1 - stays][0]) == (1, 0)
    assert words.splitlines()[-1] == (
        f"audit: expected all 2 processes to stay, got none answering rank {stays}'s {what} (a peer ended); "
        "nothing was written, start it again with --resume"
    )


@pytest.mark.slow
def test_a_peer_that_hangs_is_told_apart(tmp_path):
    work = """
processes.barrier()
import datetime, time
import torch.distributed as dist
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1))
if not processes.first:
    time.sleep(3)
    sys.exit(0)
try:
    processes.sum_(torch.ones(3))
except ProcessError as error:
    print(error)
"""
    (_, words, _), _ = run_two(tmp_path, work)
    assert "rank 0's sum (a peer did not come in time); nothing was written" in words


def test_failures_that_are_not_a_peer_s_come_through(monkeypatch):
    def out_of_memory(*arguments):
        raise torch.OutOfMemoryError("8 GB")

    monkeypatch.setattr(module.dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(module.dist, "all_reduce", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        Processes(0, 2).sum_(torch.ones(3))


def test_large_tensors_go_in_bounded_pieces(monkeypatch):
    sent: list[int] = []
    monkeypatch.setattr(module.dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(module.dist, "all_reduce", lambda piece, operation: sent.append(piece.nbytes))
    monkeypatch.setattr(module, "PIECE_BYTES", 800)
    Processes(0, 2).sum_(torch.ones(17, 25, dtype=torch.float64))
    assert sum(sent) == 17 * 25 * 8
    assert max(sent) <= 800
    assert len(sent) == 5


# ------------------------------------------------------------------------------------------------------ one process


@given(count=st.integers(0, 60), size=st.integers(1, 70))
def test_shares_cover_in_order_and_differ_by_one(count, size):
    shares = [Processes(rank, size).share(range(count)) for rank in range(size)]
    assert [item for share in shares for item in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_alone_everything_is_the_identity():
    tensor = torch.ones(3)
    assert ALONE.sum_(tensor) is tensor
    assert tensor.tolist() == [1.0, 1.0, 1.0]
    assert ALONE.share(["a", "b"]) == ["a", "b"]
    assert (ALONE.first, ALONE.smallest(3), ALONE.any(False), ALONE.any(True)) == (True, 3, False, True)
    ALONE.barrier()
    ALONE.leave()


def test_without_torchrun_a_process_is_alone(without_torchrun, monkeypatch):
    assert processes_from_environment() is ALONE
    assert processes_from_environment("cuda") == Processes(0, 1, torch.device("cuda"))
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert processes_from_environment() is ALONE


@pytest.mark.parametrize(
    ("variables", "got"),
    [
        ({"WORLD_SIZE": "2"}, "no RANK"),
        ({"WORLD_SIZE": "two", "RANK": "0", "LOCAL_RANK": "0"}, "WORLD_SIZE='two'"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "no LOCAL_RANK"),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}, "no MASTER_ADDR"),
        ({"WORLD_SIZE": "2", "RANK": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "x"}, "RANK 2 of WORLD_SIZE 2"),
    ],
)
def test_half_an_environment_is_refused(without_torchrun, monkeypatch, variables, got):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as error:
        processes_from_environment()
    assert str(error.value) == (
        f"torchrun: expected the environment that torchrun sets, got {got}; start the audit with torchrun"
    )


def test_more_processes_than_gpus_are_refused(without_torchrun, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="device: expected a GPU a process, got LOCAL_RANK 1 with 1 GPUs; start one"):
        processes_from_environment("cuda")


def test_peers_that_never_come_are_one_line(without_torchrun, monkeypatch):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", **place}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ProcessError, match=r"^audit: expected all 2 processes to join, got no meeting .* for rank 1; "):
        processes_from_environment(timeout=1)


CPU = torch.device("cpu")


@pytest.fixture(params=[1, 3])
def threads(request) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_item_once(threads):
    done = []
    in_threads(done.append, iter(range(100)), CPU)
    assert sorted(done) == list(range(100))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [0, 50, 99])
def test_a_failure_comes_through_and_the_threads_are_put_back(threads, at, error):
    def work(item: int) -> None:
        if item == at:
            raise error

    with pytest.raises(error):
        in_threads(work, range(100), CPU)
    assert torch.get_num_threads() == threads


def test_items_are_made_as_they_are_needed(threads):
    waiting, most = 0, 0
    lock = threading.Lock()

    def items() -> Iterator[int]:
        nonlocal waiting, most
        for item in range(200):
            with lock:
                waiting += 1
                most = max(most, waiting)
            yield item

    def work(_: int) -> None:
        nonlocal waiting
        with lock:
            waiting -= 1

    in_threads(work, items(), CPU)
    assert waiting == 0
    assert most <= 2 * threads + 1


def test_operations_inside_stay_on_one_thread(threads):
    inside = set()
    in_threads(lambda _: inside.add(torch.get_num_threads()), range(20), CPU)
    assert inside == {1}


def test_fewer_at_a_time_have_more_threads_each(threads):
    inside, here, most = set(), 0, 0
    lock = threading.Lock()

    def work(_: int) -> None:
        nonlocal here, most
        with lock:
            here += 1
            most = max(most, here)
        inside.add(torch.get_num_threads())
        time.sleep(0.002)
        with lock:
            here -= 1

    in_threads(work, range(20), CPU, most=2)
    assert most <= 2
    assert inside == {max(1, threads // 2)}
    assert torch.get_num_threads() == threads
