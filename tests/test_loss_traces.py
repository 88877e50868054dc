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

from giveaway.attacks import AttackScores


def options(work, **changed):
    given = {"data": None, "set": "cifar10", "models": 8, "targets": 1, "epochs": 2, "depth": 28, "width": 2}
    return Namespace(**given | {"device": "cpu", "work": Path(work), "limit": 1e9} | changed)


def test_flagged_is_what_exceeds_all_but_one_in_a_thousand_of_the_others():
    rng = np.random.default_rng(0)
    members = np.arange(6_000) < 3_000
    scores = rng.normal(size=6_000) + 2 * members
    flags = loss_traces.flagged(AttackScores("lira", scores[None], members[None], {}))
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


def test_losses_of_a_target_leave_its_running_averages_alone(tmp_path):
    models = loss_traces.Models(options(tmp_path))
    trainer = models.trainer
    trainer.train(models.members(0), seed=1)
    trainer.model.train()
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    own = torch.arange(50)
    losses = models._losses(own)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    with torch.no_grad():
        x = trainer.x[:25].permute(0, 3, 1, 2)
        by_hand = torch.nn.functional.cross_entropy(trainer.model(x), trainer.y[:25], reduction="none")
    np.testing.assert_allclose(losses[:25], by_hand.numpy(), rtol=2e-3)


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
        "--out",
        str(tmp_path / "a.json"),
    ]
    monkeypatch.setattr(sys, "argv", [*given, "--limit", "0"])
    with pytest.raises(SystemExit) as stopped:
        loss_traces.main()
    assert stopped.value.code == loss_traces.RUN_AGAIN
    monkeypatch.setattr(sys, "argv", given)
    loss_traces.main()
    told = json.loads((tmp_path / "a.json").read_text())
    assert set(told["scores, mean and standard deviation"]) >= {"LT-IQR", "loss", "trace (ours)", "fused (ours)"}
    assert told["models"] == 8
