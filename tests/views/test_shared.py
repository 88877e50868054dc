"""Views whose work several processes share: the same numbers as of one, whatever the shares."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

import giveaway as ga
from giveaway.gp.ridge import leave_one_out_ridge
from giveaway.linalg.processes import ALONE, Execution, Processes
from giveaway.views import left_out as module
from giveaway.views import others as others_module
from giveaway.views.left_out import RecordFeatures, left_out, left_out_smooth

N = 90


@dataclass(frozen=True)
class Threads(Processes):
    """Processes that are threads of this one: sums wait for all of them, as gloo's do."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))
    given: dict = field(default_factory=dict)

    def sum_(self, tensor):
        self.given[self.rank] = tensor.clone()
        self.barrier.wait(timeout=60)
        parts = [self.given[rank] for rank in range(self.size)]
        assert len({(part.shape, part.dtype) for part in parts}) == 1
        total = torch.stack(parts).any(0) if tensor.dtype == torch.bool else torch.stack(parts).sum(0)
        self.barrier.wait(timeout=60)
        return tensor.copy_(total)


def by_all(size, work):
    """What `work(processes)` returns in every one of them."""
    barrier, given = threading.Barrier(size), {}

    def one(rank):
        try:
            return work(Threads(rank, size, barrier=barrier, given=given))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def made(columns=5, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(N, columns)))
    return x, torch.from_numpy(rng.normal(size=(N, 2))) + x[:, :2], rng.integers(0, 40, N)


def held(x, block=7):
    return RecordFeatures(len(x), lambda rows: x[rows], block)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("columns", [5, 200])  # the smaller of d × d and n × n
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("kept", [True, False])
def test_ridge_regressions_are_those_of_one_process(monkeypatch, size, columns, grouped, kept):
    if not kept:
        monkeypatch.setattr("giveaway.gp.ridge.KEPT_BYTES", 0)
    x, y, people = made(columns)
    options = {"groups": people if grouped else None}
    alone = leave_one_out_ridge(held(x), y, **options)

    def work(processes):
        return leave_one_out_ridge(replace(held(x), processes=processes), y, **options, processes=processes)

    for found in by_all(size, work):
        assert found.l2 == pytest.approx(alone.l2, rel=1e-12)
        for name in ("error", "leverage", "loo_error"):
            np.testing.assert_allclose(getattr(found, name), getattr(alone, name), rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("again", [False, True])  # features made anew on every pass
def test_left_out_records_and_the_nearest_are_those_of_one_process(monkeypatch, size, smooth, again):
    if again:
        monkeypatch.setattr(module, "KEPT_BYTES", 0)
    x, y, _ = made()
    x[50] = x[3]
    view = left_out_smooth if smooth else lambda *given, **options: left_out(*given, exact=False, **options)
    rows = torch.tensor([3, 50, 89, 0])

    def work(processes):
        found = view(replace(held(x), processes=processes), y)
        return found, found.nearest(rows if processes.first else torch.zeros(4), 3)

    alone, near = work(ALONE)
    assert near[0, 0] == 50
    for found, also in by_all(size, work):
        np.testing.assert_allclose(found.error, alone.error, rtol=1e-5, atol=1e-6)  # float32
        np.testing.assert_allclose(found.leverage, alone.leverage, rtol=1e-5, atol=1e-6)  # float32
        assert torch.equal(also, near)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("kind", ["table", "sharp table", "texts", "whole texts"])
def test_an_audit_by_all_is_that_of_one(monkeypatch, kind, grouped):
    x, _, people = made()
    outputs = np.random.default_rng(1).normal(size=(N, 3)) + 3 * x[:, :3].numpy()
    targets = np.where(np.arange(N) % 5 == 0, 1, outputs.argmax(1))
    inputs = x.numpy() if "table" in kind else [" ".join(map(str, row)) for row in x.round(decimals=3).tolist()]
    head = ga.Head(x, outputs, targets, "cross_entropy", l2=1.0, inputs=inputs, groups=people if grouped else None)
    if kind == "texts":
        monkeypatch.setattr(module, "EXACT_UP_TO", 50)
        monkeypatch.setattr(others_module, "EXACT_UP_TO", 50)
    if kind == "sharp table":  # computed by the first alone
        monkeypatch.setattr(others_module.OthersView, "_predicted", sharp_if_asked(others_module.OthersView._predicted))
    trace = ga.LossTrace(N, targets=targets)
    shifted = outputs - outputs.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(N), targets]
    for epoch in range(3):
        trace.add(np.arange(N), losses + np.random.default_rng(epoch).exponential(size=N) / (1 + epoch))

    def work(processes):
        return ga.audit(head, trace=trace, progress=False, execution=Execution(processes))

    alone, found = work(ALONE), by_all(3, work)[0]
    assert found.columns == alone.columns
    assert {"fused", "left_out", "trace", "newton"} <= set(found.columns)
    for name in alone.columns:
        np.testing.assert_allclose(found[name], alone[name], rtol=1e-6, atol=1e-9, err_msg=name)
    for name in {"nearest", "others_say"} & alone.attributes.keys():
        np.testing.assert_array_equal(found[name], alone[name])
    assert found.meta.view.method == alone.meta.view.method == {"texts": "landmarks"}.get(kind, alone.meta.view.method)


def sharp_if_asked(predicted):
    return lambda self, targets, inside, on_stage: predicted(self, targets, 0.0, on_stage)
