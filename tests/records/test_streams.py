"""Streams: whatever the batches, slices are rows of the whole; going back begins a pass; other rows are refused."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway import Head
from giveaway.checks import InputError
from giveaway.records import Stream
from giveaway.records import rows as row_module
from tests.conftest import refused

N = 40
X = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32))
F = torch.from_numpy(np.random.default_rng(1).normal(size=(N, 2)))


class Source:
    """Batches of given sizes over the same rows, with passes and rows counted."""

    def __init__(self, sizes, x=X, f=F):
        self.sizes, self.x, self.f, self.passes, self.given, self.open = sizes, x, f, 0, 0, 0

    def __call__(self):
        self.passes += 1
        self.open += 1
        try:
            at = 0
            for size in self.sizes:
                self.given += len(self.x[at : at + size])
                yield self.x[at : at + size], self.f[at : at + size]
                at += size
        finally:
            self.open -= 1


def cuts(n):
    """Sizes that make up n."""
    return st.lists(st.integers(0, n), max_size=6).map(lambda at: np.diff([0, *sorted(at), n]).tolist())


@given(sizes=cuts(N), windows=cuts(N))
def test_batch_sizes_do_not_matter_and_one_pass_is_enough(sizes, windows):
    source = Source(sizes)
    features, outputs = Stream(source, N, (X, F)).rows()
    at = 0
    for size in windows:
        part = slice(at, at + size)
        assert torch.equal(features[part], X[part])
        assert torch.equal(outputs[part], F[part])
        at += size
    assert source.passes == 1
    assert source.given == N
    assert source.open == 0


@given(sizes=cuts(N), asked=st.lists(st.tuples(st.integers(0, N), st.integers(0, N)), min_size=1, max_size=6))
def test_any_slices_in_any_order(sizes, asked):
    source = Source(sizes)
    features, outputs = Stream(source, N, (X, F)).rows()
    for low, high in asked:
        part = slice(min(low, high), max(low, high))
        assert torch.equal(features[part], X[part])
        assert torch.equal(outputs[part], F[part])
    assert source.passes <= len(asked)
    assert source.open <= 1


def test_going_back_begins_a_pass_and_parts_of_what_is_held_do_not():
    source = Source([7] * 6)
    features, _ = Stream(source, N, (X, F)).rows()
    for part, passes in ((slice(0, 16), 1), (slice(4, 9), 1), (slice(20, 30), 1), (slice(0, 5), 2), (slice(5, 40), 2)):
        assert torch.equal(features[part], X[part])
        assert source.passes == passes
    assert source.open == 0


def test_an_abandoned_pass_is_closed():
    source = Source([10] * 4)
    stream = Stream(source, N, (X, F))
    stream.read(10, 20)
    assert source.open == 1
    stream.read(0, 5)
    assert (source.open, source.passes) == (1, 2)


@pytest.mark.parametrize(("rows", "words"), [(39, "got 39 in another"), (41, "got more than 40 in another")])
def test_other_numbers_of_rows(rows, words):
    x, f = torch.zeros(rows, 3), torch.zeros(rows, 2, dtype=torch.float64)
    features, _ = Stream(Source([9] * 5, x, f), N, (X, F)).rows()
    features[0:32]
    with pytest.raises(InputError, match=rf"^data: expected 40 records in every pass, {words}; pass data that can be"):
        features[32:40]


@pytest.mark.parametrize("name", ["features", "outputs"])
def test_what_is_not_finite_is_refused_as_it_is_read(name):
    x, f = X.clone(), F.clone()
    (x if name == "features" else f)[23, 1] = torch.nan
    source = Source([10] * 4, x, f)
    rows = Stream(source, N, (X, F)).rows()
    assert rows[0][0:16].isfinite().all()
    with pytest.raises(InputError, match=rf"{name}: expected finite numbers, got NaN or infinity first in row 23 \(1 "):
        rows[1][16:32]
    assert source.open == 0


def test_rows_are_not_looked_up():
    features, outputs = Stream(Source([N]), N, (X, F)).rows()
    assert not features.looked_up
    for name, rows in (("features", features), ("outputs", outputs)):
        words = rf"{name}: expected rows that can be looked up .*, got a stream, .*keep=Cached"
        refused(words, rows.__getitem__, torch.tensor([3, 1]))


@given(sizes=cuts(N), numbers=st.lists(st.integers(0, N - 1), max_size=9), at_a_time=st.integers(1, N))
def test_rows_are_gathered_by_one_pass_where_they_are_not_looked_up(sizes, numbers, at_a_time):
    source, wanted = Source(sizes), torch.tensor(numbers).long()
    features, _ = Stream(source, N, (X, F)).rows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_module, "rows_at_a_time", lambda rows: at_a_time)
        assert torch.equal(row_module.selected_rows(features, wanted), X[wanted])
    assert source.passes == (1 if numbers else 0)
    assert torch.equal(row_module.selected_rows(X, wanted), X[wanted])


def test_a_head_takes_both_parts_from_one_read_and_checks_nothing_beforehand():
    source = Source([11, 11, 11, 7])
    head = Head(*Stream(source, N, (X, F), name="x").rows(), torch.arange(N) % 2, "cross_entropy")
    assert source.passes == 0
    for part in head.slices(6):
        window = head.window(part)
        assert torch.equal(window.features, X[part])
        assert torch.equal(window.outputs, F[part])
    assert (source.passes, source.given) == (1, N)
    assert head.features.identity == "x"
    assert head.to("cpu").features.stream is head.features.stream


def test_windows_read_from_many_threads_are_their_own():
    source = Source([4] * 10)
    head = Head(*Stream(source, N, (X, F)).rows(), torch.arange(N) % 2, "cross_entropy")
    wrong = []

    def read(offset):
        for start in range(offset, N - 5, 7):
            part = slice(start, start + 5)
            window = head.window(part)
            if not (torch.equal(window.features, X[part]) and torch.equal(window.outputs, F[part])):
                wrong.append(start)

    threads = [threading.Thread(target=read, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_parameters_of_a_stream_are_computed_from_it():
    source = Source([9] * 5)
    head = Head(*Stream(source, N, (X, F)).rows(), torch.arange(N) % 2, "cross_entropy")
    theta = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    moved = head.with_parameters(theta)
    assert source.passes == 0
    expected = X.double() @ theta[:3] + theta[3]
    torch.testing.assert_close(torch.cat([moved.window(part).outputs for part in moved.slices(16)]), expected)
    assert source.passes == 1
