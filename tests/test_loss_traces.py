"""The protocol of loss traces: what is flagged, precision, the network, and losses that leave batch norm as it was."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import loss_traces
from benchmarks.networks import build_wide_resnet
from benchmarks.reproduce.gls.training import Run

from giveaway.attacks import lira
from giveaway.records import Signals


def options(work, **changed):
    given = {"data": None, "set": "cifar10", "models": 8, "targets": 1, "epochs": 2, "depth": 28, "width": 2}
    return Namespace(**given | {"device": "cpu", "work": Path(work), "limit": 1e9} | changed)


def test_flagged_is_what_exceeds_all_but_one_in_a_thousand_of_the_others():
    rng = np.random.default_rng(0)
    members = np.arange(6_000) < 3_000
    scores = rng.normal(size=6_000) + 2 * members
    flags = loss_traces.flagged(scores, members)
    assert flags[~members].sum() == 3
    fourth = np.sort(scores[~members])[-4]
    np.testing.assert_array_equal(flags, scores > fourth)


def test_precision_among_the_highest():
    flags = np.zeros(200, bool)
    flags[[0, 5]] = True
    score = -np.arange(200.0)
    assert loss_traces.precision(score, flags, score)[:2] == [0.5, 0.2]
    assert loss_traces.precision(score, flags, score)[2] == pytest.approx(1.0)


def test_the_network_and_the_rate_are_those_of_the_paper():
    assert sum(value.numel() for value in build_wide_resnet(10).parameters()) == 1_467_610
    rates = loss_traces.Cosine().rates(100)
    assert rates[0] == pytest.approx(0.1)
    assert rates[50] == pytest.approx(0.05)
    assert (np.diff(rates) < 0).all()


def test_references_that_come_in_parts_attack_as_all_at_once(tmp_path):
    rng = np.random.default_rng(0)
    phi, members = rng.normal(3, 2, (12, 40, 2)).astype(np.float16), rng.random((12, 40)) < 0.5
    members[:2], members[2:4] = True, False  # at least two on either side
    for part in (slice(0, 4), slice(4, 5), slice(5, 12)):  # as three commands would
        references = loss_traces.References(tmp_path / "references.npz")
        references.add(phi[part], members[part], [{}] * len(phi[part]))
    target = rng.normal(3, 2, (1, 40, 2)).astype(np.float16)
    signals = Signals(target, np.ones((1, 40), bool), kind="phi")
    expected = lira(signals, Signals(phi, members, kind="phi"), centre="mean").scores[0]
    assert len(loss_traces.References(tmp_path / "references.npz")) == 12
    np.testing.assert_allclose(references.lira(target[0]), expected, rtol=1e-5)


def test_losses_of_a_target_leave_its_running_averages_alone(tmp_path):
    models = loss_traces.Models(options(tmp_path))
    trainer = models.trainer
    (model,) = trainer.train(Run(models.members(0), seed=1))
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept = []
    models._keep_losses(torch.arange(50), kept, model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    with torch.no_grad():
        x = trainer.x[:25].permute(0, 3, 1, 2)
        by_hand = torch.nn.functional.cross_entropy(model(x), trainer.y[:25], reduction="none")
    np.testing.assert_allclose(kept[0][:25], by_hand.numpy(), rtol=2e-3)


@pytest.mark.slow
def test_a_small_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    given = [
        "loss_traces",
        "--models",
        "8",
        "--targets",
        "2",
        "--work",
        str(tmp_path),
        "--result",
        str(tmp_path / "a.json"),
    ]
    monkeypatch.setattr(sys, "argv", [*given, "--limit", "0"])
    with pytest.raises(SystemExit) as stopped:
        loss_traces.main()
    assert stopped.value.code == loss_traces.RUN_AGAIN
    assert not (tmp_path / "a.json").exists()  # there are targets, and no reference
    kept = (tmp_path / "target-001.npz").read_bytes()
    monkeypatch.setattr(sys, "argv", given)
    loss_traces.main()
    told = json.loads((tmp_path / "a.json").read_text())
    every = told["scores, each target"]
    assert set(every) >= {"LT-IQR", "loss", "trace (ours)", "fused (ours)"}
    assert [len(figures) for figures in every["LT-IQR"].values()] == [2, 2, 2]
    assert told["models"] == 8
    assert (tmp_path / "target-001.npz").read_bytes() == kept
