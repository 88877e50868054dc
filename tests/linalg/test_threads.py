"""Work spread over threads: every item once, failures come through, torch's own threads are put back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from giveaway.linalg.processes import in_threads

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
