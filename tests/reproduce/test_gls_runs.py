"""Small runs of the GLS settings: their numbers against naive ones, how they continue, and what they refuse."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.reproduce.__main__ import RUN_AGAIN, main
from benchmarks.reproduce.claims import UNMEASURED
from benchmarks.reproduce.gls import run as settings
from benchmarks.reproduce.gls.run import SMALL
from benchmarks.reproduce.gls.training import DEPTHS, Trainer, members_of
from benchmarks.reproduce.gls.truth import between_targets
from benchmarks.reproduce.gls.work import Work
from benchmarks.reproduce.job import RESULTS, Job, references_of
from benchmarks.reproduce.page import claims_of, section
from scipy.stats import norm, spearmanr
from sklearn.metrics import roc_auc_score

from giveaway.attacks import AttackScores

NAME, MORE = "gls_resnet18", "gls_full_model"
CPU = torch.device("cpu")


def small_run(work, *wishes, name=NAME):
    return main(["run", name, "--small", "--work", str(work), "--device", "cpu", *wishes])


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A small run in two commands, and its folder."""
    work = tmp_path_factory.mktemp("work")
    assert small_run(work, "--limit", "0") == RUN_AGAIN
    assert small_run(work) == 0
    return work / f"{NAME}-small"


@pytest.fixture(scope="module")
def result(ran):
    return json.loads((ran / f"{NAME}.json").read_text())


@pytest.fixture(scope="module")
def more(ran):
    """A small run of more targets beside it, in two commands."""
    assert small_run(ran.parent, "--limit", "0", name=MORE) == RUN_AGAIN
    assert small_run(ran.parent, name=MORE) == 0
    return ran.parent / f"{MORE}-small"


def kept_phi(folder, numbers):
    held = [np.load(folder / "keep" / f"model-{number:03d}.npz")["phi"].astype(np.float64) for number in numbers]
    return np.stack(held), np.stack([members_of(number, 250, 0) for number in numbers])


def naive_effect(inside, outside):
    return (inside.mean() - outside.mean()) / np.sqrt((inside.var() + outside.var()) / 2)


def naive(here, inside, outside):
    """All metrics of one record from φ of a target and of the models with and without the record."""
    accused = outside.mean() + norm.isf(0.05) * outside.std()
    return {
        "lira": norm.logpdf(here, inside.mean(), inside.std()) - norm.logpdf(here, outside.mean(), outside.std()),
        "deviation_ratio": outside.std() / inside.std(),
        "mean_gap": abs(inside.mean() - outside.mean()),
        "effect_size": naive_effect(inside, outside),
        "tpr_fitted": norm.sf((accused - inside.mean()) / inside.std()),
        "minus_phi": -here,
    }


def said_naively(own_phi, phi, members):
    """Metrics of every record, each an array, from models that are not the target."""
    rows = [
        naive(here, phi[members[:, record], record], phi[~members[:, record], record])
        for record, here in enumerate(own_phi)
    ]
    return {metric: np.array([row[metric] for row in rows]) for metric in rows[0]}


@pytest.mark.slow
def test_what_is_measured_is_what_a_naive_computation_gives(ran, result):
    phi, members = kept_phi(ran, range(20))
    said = [said_naively(phi[k], np.delete(phi, k, 0), np.delete(members, k, 0)) for k in range(20)]
    columns = [np.load(ran / "keep" / f"target-{number:03d}-last-layer.npz") for number in range(2)]
    for metric in said[0]:
        values = [spearmanr(columns[k]["gls_trace"], said[k][metric][members[k]]).statistic for k in range(2)]
        cell = result["depths"]["last layer"]["all"]["gls_trace"][metric]
        assert cell["mean"] == pytest.approx(np.mean(values), abs=2e-3), metric
        assert cell["of"] == 2
    for number in range(2):
        sizes = said[number]["effect_size"][members[number]]
        sought, best = np.argsort(sizes)[-2:], np.argsort(columns[number]["newton"])[-10:]  # of 200 records
        assert result["beside"]["newton"]["recall"][str(number)] == pytest.approx(np.isin(sought, best).mean())
    both = members[0] & members[1]
    expected = spearmanr(said[0]["lira"][both], said[1]["lira"][both]).statistic
    assert result["lira_of_two_targets"] == {"mean": pytest.approx(expected, abs=2e-3), "half_width": 0.0, "of": 1}
    auc = [roc_auc_score(members[number], said[number]["lira"]) for number in range(20)]
    assert result["attack"]["auc"]["mean"] == pytest.approx(np.mean(auc), abs=2e-4)
    one_half = np.arange(20) // 5 % 2 == 0
    halves = [
        [naive_effect(phi[side & own, record], phi[side & ~own, record]) for record, own in enumerate(members.T)]
        for side in (one_half, ~one_half)
    ]
    expected = spearmanr(*halves).statistic
    assert result["two_halves_of_the_models"]["effect_size"] == pytest.approx(expected, abs=2e-3)
    alone = AttackScores("lira", np.zeros((2, 5)), np.eye(2, 5, dtype=bool), {})
    assert between_targets(alone, 1) is None


@pytest.mark.slow
def test_more_targets_are_held_against_the_models_that_were_there_before(ran, more):
    """Naively, from the φ of those models themselves: what was kept of them in float16 is enough."""
    phi, members = kept_phi(ran, range(20))
    measured = json.loads((more / f"{MORE}.json").read_text())
    assert measured["references"] == {"setting": NAME, "models": 20}
    assert {path.stem for path in (more / "keep").glob("model-*")} == {"model-020", "model-021"}
    assert (measured["models"], measured["targets"]) == (20, 2)
    notes = [json.loads(str(np.load(more / "keep" / f"model-{number:03d}.npz")["told"])) for number in (20, 21)]
    mean = np.mean([note["accuracy_held_out"] for note in notes])
    assert measured["accuracy"]["accuracy_held_out"]["mean"] == pytest.approx(mean, abs=1e-4)
    found, with_last, of_last, first, means = [], [], [], [], np.full((2, 2, 250), np.nan)
    own_phi, own_members = kept_phi(more, (20, 21))
    for place, number in enumerate((20, 21)):
        own = own_members[place]
        gls, last = (
            np.load(more / "keep" / f"target-{number:03d}-{depth}.npz")["gls_trace"]
            for depth in ("full-model", "last-layer")
        )
        said = {metric: values[own] for metric, values in said_naively(own_phi[place], phi, members).items()}
        found.append({metric: spearmanr(gls, values).statistic for metric, values in said.items()})
        with_last.append(spearmanr(gls, last).statistic)
        of_last.append(spearmanr(last, said["lira"]).statistic)
        first.append(spearmanr(gls[:128], said["lira"][:128]).statistic)
        means[:, place, own] = [last - last.mean(dtype=float), gls - gls.mean(dtype=float)]
    full = measured["depths"]["full model"]
    laws = {"lira_mean", "mean_gap_probability", "mean_gap_loss"}  # test_gls.py holds them against loops
    assert set(full["all"]["gls_trace"]) == set(found[0]) | laws  # and no TPR, which takes every model's answer
    for metric in found[0]:
        expected = np.mean([each[metric] for each in found])
        assert full["all"]["gls_trace"][metric]["mean"] == pytest.approx(expected, abs=2e-3), metric
    assert full["with the last layer"]["mean"] == pytest.approx(np.mean(with_last), abs=2e-3)
    assert full["last layer of these targets"]["lira"]["mean"] == pytest.approx(np.mean(of_last), abs=2e-3)
    assert full["first"]["gls_trace"]["lira"]["mean"] == pytest.approx(np.mean(first), abs=2e-3)
    kept = np.load(more / f"{MORE}.npz")
    for name, expected in zip(("gls_0", "gls_3"), np.nanmean(means, 1), strict=True):
        np.testing.assert_allclose(kept[name], expected, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["nothing", "target-000-full-model"])
def test_run_goes_on_from_what_is_kept(ran, result, tmp_path, monkeypatch, lost):
    """The kept folder alone, on another machine, gives the same numbers; no target is trained again for what may be
    left out."""
    there = tmp_path / f"{NAME}-small"
    (there / "keep").mkdir(parents=True)
    for path in (ran / "keep").iterdir():
        if path.stem != lost:
            (there / "keep" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(Trainer, "__init__", lambda *given: pytest.fail("trained again"))
    assert small_run(tmp_path) == 0
    again = json.loads((there / f"{NAME}.json").read_text())
    if lost == "nothing":
        assert again == result
    assert set(result["depths"]) - set(again["depths"]) == ({"full model"} if lost != "nothing" else set())
    assert again["depths"]["2 last layers"] == result["depths"]["2 last layers"]


@pytest.mark.slow
def test_the_worst_of_the_targets_solves_is_told(ran, result):
    pieces = [np.load(ran / "keep" / f"target-{number:03d}-2-last-layers.npz") for number in range(2)]
    told = [json.loads(str(held["told"])) for held in pieces]
    measured = result["depths"]["2 last layers"]
    for name in ("solve_error", "worst_residual"):
        each = [note[name] for note in told]
        assert each[0] != each[1]
        assert measured[name] == pytest.approx(max(each), abs=1e-4)
    sums = [(10 ** held["gls_trace"].astype(np.float64)).sum() for held in pieces]
    assert measured["sum_of_traces"]["mean"] == pytest.approx(np.mean(sums), rel=1e-4)
    assert (measured["right_sides"], measured["unsolved"]) == (8, 0)


@pytest.mark.slow
def test_more_targets_without_weights_are_trained_and_scored_again(ran, more, tmp_path):
    shutil.copytree(ran, tmp_path / ran.name)
    there = tmp_path / more.name
    shutil.copytree(more, there)
    for path in [there / "weights" / "target-021.pt", there / "keep" / "target-021-full-model.npz"]:
        path.unlink()
    before = {path.name: path.stat().st_mtime_ns for path in (there / "keep").glob("*.npz")}
    assert small_run(tmp_path, name=MORE) == 0
    changed = {path.name for path in (there / "keep").glob("*.npz") if path.stat().st_mtime_ns != before.get(path.name)}
    assert changed == {"model-021.npz", "target-021-last-layer.npz", "target-021-full-model.npz"}


@pytest.mark.slow
def test_a_cpu_measures_what_is_kept_and_says_what_is_not(ran, more):
    job = Job(MORE, None, more, targets=2, device=CPU, small=True)
    work = Work(job, SMALL, range(20, 22))
    assert not work.measures_only(range(20, 22))  # small runs train on a CPU
    work.job = replace(job, small=False)
    assert work.measures_only(range(20, 22))
    with pytest.raises(SystemExit, match="3 of 5 models are missing: train them with --device cuda"):
        work.measures_only(range(20, 25))


@pytest.mark.slow
def test_more_targets_are_not_held_against_models_trained_otherwise(ran, tmp_path):
    there = tmp_path / ran.name
    there.mkdir()
    for path in ran.glob(f"{NAME}.*"):
        shutil.copy(path, there)
    told = json.loads((there / f"{NAME}.json").read_text())
    told["training"]["epochs"] += 1
    (there / f"{NAME}.json").write_text(json.dumps(told))
    with pytest.raises(SystemExit, match="gls_resnet18 was trained otherwise, or on other records"):
        small_run(tmp_path, name=MORE)
    (there / f"{NAME}.npz").unlink()
    with pytest.raises(SystemExit, match=r"needs gls_resnet18\.json and \.npz in"):
        small_run(tmp_path, name=MORE)


def test_more_targets_find_the_committed_models_or_say_what_they_need(tmp_path):
    told, summaries = references_of(Job(MORE, None, tmp_path, out=tmp_path), NAME)
    assert told == json.loads((RESULTS / f"{NAME}.json").read_text())
    assert (summaries["deviation_out"] > 0).all()
    with pytest.raises(SystemExit, match=r"gls_full_model needs gls_resnet18\.json and \.npz in .*: run gls_resnet18"):
        small_run(tmp_path, name=MORE)


@pytest.mark.slow
def test_what_was_not_solved_is_left_out_and_said(tmp_path, monkeypatch, capsys):
    """Solves that end at their first step leave zeros behind, which would be ranked."""
    solving = replace(SMALL.solving, most_steps=dict.fromkeys(DEPTHS[1:], 1), tolerance=1e-6)
    monkeypatch.setattr(settings, "SMALL", replace(SMALL, solving=solving))
    assert small_run(tmp_path) == 0
    words = "not solved: a residual of 1 after 1 steps"
    assert f"target 0, 2 last layers: {words}, left out" in capsys.readouterr().out
    there = tmp_path / f"{NAME}-small"
    assert json.loads((there / "keep" / "target-000-2-last-layers.json").read_text())["ended"] == words
    result = json.loads((there / f"{NAME}.json").read_text())
    assert set(result["depths"]) == {"last layer"}
    assert words in result["not_to_be_had"]["2 last layers"]
    text = section("gls", {NAME: result})
    assert "0.51 ± 0.04 → not to be had" in text
    assert re.search(rf"2 last layers \(for some targets at least\): .*{words}", text)
    last_layer = claims_of("gls", {NAME: result})[6]
    assert last_layer.verdict == UNMEASURED
    assert "2 last layers not to be had" in last_layer.measured
