from __future__ import annotations

import json
import pickle
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.reproduce import __main__ as command
from benchmarks.reproduce import claims_mia, costs_mia, images, remarks_mia
from benchmarks.reproduce import data as sets
from benchmarks.reproduce import printed_mia as printed
from benchmarks.reproduce.attacked import Truth, _truth, balanced_accuracy, best_threshold, halves_of
from benchmarks.reproduce.claims import FAILS, HOLDS, NO_DATA, NOT_RUN, UNMEASURED, Claim, judged
from benchmarks.reproduce.compared import METRICS, figures, repeated
from benchmarks.reproduce.made_data import made_table
from benchmarks.reproduce.page import claims_of_all, page, read_results, write_page
from benchmarks.reproduce.pictures import draw_all
from benchmarks.reproduce.pictures_mia import highest
from benchmarks.reproduce.setting import RESULTS, Job, OutOfTime
from benchmarks.reproduce.settings import HOMES, setting
from benchmarks.reproduce.text import build_transformer

from giveaway.attacks import AttackScores, rmia
from giveaway.attacks.membership import balanced_membership
from giveaway.attacks.training import Training
from giveaway.checks import InputError
from giveaway.records import Signals

SHOWN = ("newton", "influence", "fused")
DOCS = Path(__file__).parents[1] / "docs"
PAPER = Path(__file__).parents[2] / "shared" / "papers" / "per-sample-mia.txt"


def job(folder, name="energy_mlp", **options):
    return Job(name, None, folder, models=6, targets=2, small=True, out=folder, **options)


def run_small(name, folder, **options):
    folder.mkdir(exist_ok=True)
    setting(name).run(job(folder, name, **options))
    return json.loads((folder / f"{name}.json").read_text())


def test_a_setting_runs_small_and_its_numbers_come_from_what_it_kept(tmp_path):
    result = run_small("california_mlp", tmp_path)
    assert result["small"]
    assert (result["models"], result["targets"]) == (6, 2)
    truths = set(result["agreement"])
    assert truths == {"lira", "lira_tied", "effect_size", "rmia", "shokri"}
    scores = {"loss", "gradient_norm", "influence", "newton", "fused", "whole_network"}
    assert set(result["agreement"]["lira"]) == scores
    assert result["newton_over_influence"]["largest_error"] < 1e-6  # 1/(1 − h), one output
    assert {"references", "targets", "attacks", "surrogates", "fused", "whole_network"} <= set(result["seconds"])
    with np.load(tmp_path / "california_mlp.npz") as kept, np.load(tmp_path / "truth-6" / "lira.npz") as truth:
        assert kept["success_lira"].dtype == np.float16
        found = []
        for number in range(2):
            with np.load(tmp_path / "scores" / f"{number}.npz") as columns:
                rows = np.flatnonzero(members_of(tmp_path, number))
                order = naive_order(truth["success"][rows], truth["effect"][rows])
                best = set(np.argsort(-columns["newton"])[: round(len(rows) * 0.05)])
                sought = set(np.argsort(-order)[: round(len(rows) * 0.05)])
                found.append(len(best & sought) / len(sought))
        mean, std = result["agreement"]["lira"]["newton"]["5%"]
        assert mean == pytest.approx(np.mean(found), abs=1e-4)
        assert std == pytest.approx(np.std(found, ddof=1), abs=1e-4)


def members_of(folder, number):
    from giveaway.attacks.membership import model_membership

    return model_membership(10_000 + number, sets.SMALL[0], seed=0)


def naive_order(success, effect):
    pairs = sorted(range(len(success)), key=lambda row: (success[row], effect[row]))
    order = np.empty(len(success))
    order[pairs] = np.arange(len(success))
    return order


def test_a_run_stops_in_time_keeps_what_it_has_and_goes_on_to_the_same_numbers(tmp_path):
    whole = run_small("energy_mlp", tmp_path / "whole")
    (tmp_path / "parts").mkdir()
    stops = 0
    for _ in range(20):
        try:
            setting("energy_mlp").run(job(tmp_path / "parts", deadline=time.monotonic() - 1))
        except OutOfTime:
            stops += 1
        else:
            break
    again = json.loads((tmp_path / "parts" / "energy_mlp.json").read_text())
    assert stops >= 2
    assert again["agreement"] == whole["agreement"]


def test_what_is_known_of_the_references_is_enough_without_them(tmp_path):
    first = run_small("energy_mlp", tmp_path)
    for gone in ("references", "targets", "scores"):
        shutil.rmtree(tmp_path / gone)
    (tmp_path / "seconds.json").unlink()
    again = run_small("energy_mlp", tmp_path)
    assert not (tmp_path / "references").exists()
    for name in ("agreement", "fit", "attacks", "half_of_the_references_with_the_other"):
        assert again[name] == first[name]
    for phase in ("references", "attacks"):
        assert again["seconds"][phase] == first["seconds"][phase]


def test_a_truth_of_other_data_is_refused(tmp_path, monkeypatch):
    run_small("energy_mlp", tmp_path)
    shutil.rmtree(tmp_path / "references")
    with pytest.raises(SystemExit, match=r"truth-6 is of another seed: take another folder"):
        run_small("energy_mlp", tmp_path, seed=1)
    monkeypatch.setattr(sets, "made_table", lambda count: [values[::-1] for values in made_table(count)])
    with pytest.raises(SystemExit, match=r"truth-6 is of another inputs, targets: take another folder"):
        run_small("energy_mlp", tmp_path)


def test_a_refused_run_leaves_the_folder_to_the_right_one(tmp_path):
    first = run_small("energy_mlp", tmp_path)
    shutil.rmtree(tmp_path / "truth-6")
    with pytest.raises(InputError, match="seed"):
        run_small("energy_mlp", tmp_path, seed=1)
    assert run_small("energy_mlp", tmp_path)["agreement"] == first["agreement"]


def test_the_command_says_run_again_and_where_the_results_are(tmp_path, capsys):
    arguments = ["run", "energy_mlp", "--small", "--models", "6", "--work", str(tmp_path), "--device", "cpu"]
    assert command.main([*arguments, "--limit", "0"]) == command.RUN_AGAIN
    assert "run again to go on" in capsys.readouterr().out
    assert command.main(arguments) == 0
    assert str(tmp_path / "energy_mlp-small") in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--data"):
        command.main(["run", "energy_mlp", "--work", str(tmp_path)])


def test_summaries_over_the_limit_are_refused(tmp_path):
    with pytest.raises(ValueError, match="bytes"):
        job(tmp_path).save("big", {}, {"noise": np.random.default_rng(0).normal(size=4_000_000)})


def write_cifar100(folder):
    """As torchvision leaves it: 300 images to train on, 80 others."""
    inside = folder / "cifar-100-python"
    inside.mkdir()
    rng = np.random.default_rng(0)
    made = {
        "train": rng.integers(0, 256, (300, 32, 32, 3), np.uint8),
        "test": rng.integers(0, 256, (80, 32, 32, 3), np.uint8),
    }
    for name, pixels in made.items():
        rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)  # red, then green, then blue planes
        held = {"data": rows, "fine_labels": [row % 100 for row in range(len(rows))], "coarse_labels": [0] * len(rows)}
        (inside / name).write_bytes(pickle.dumps(held))
    return made


def test_cifar100_is_read_from_the_folder_that_torchvision_writes(tmp_path):
    written = write_cifar100(tmp_path)
    x, y, x_test, y_test = sets.cifar100(tmp_path)
    np.testing.assert_array_equal(x, written["train"])
    np.testing.assert_array_equal(x_test, written["test"])
    assert (y[101], y_test[79]) == (1, 79)
    made = sets.cifar100_images(tmp_path)
    assert (made.records, len(made.inputs), made.outputs) == (300, 380, 100)
    np.testing.assert_allclose(made.inputs[:300].mean((0, 2, 3)), 0, atol=1e-4)


def test_the_recipe_of_cifar100_runs_on_that_folder(tmp_path):
    """From the folder to the results, with fewer epochs and a narrower network."""
    write_cifar100(tmp_path)
    experiment = next(each for each in images._EXPERIMENTS if each.name == "cifar100_resnet20")
    assert experiment.training == Training(50, 256, "sgd", 1e-3, weight_decay=5e-4, momentum=0.9, precision="bfloat16")
    quick = replace(experiment, build=experiment.build_small, training=replace(experiment.training, epochs=1))
    work = tmp_path / "work"
    work.mkdir()
    quick.setting().run(Job(quick.name, tmp_path, work, models=8, targets=1, out=tmp_path))
    result = json.loads((tmp_path / "cifar100_resnet20.json").read_text())
    assert (result["records"], result["others"], result["records_a_model"]) == (300, 80, 150)
    assert set(result["agreement"]["lira"]) == {"loss", "gradient_norm", "entropy", "influence", "newton", "fused"}
    assert set(result["attacks"]) == {"lira", "rmia", "shokri"}


def test_resnet_20_has_its_layers_and_its_dropout():
    network = images.build_with_dropout((3, 32, 32), 100)
    layers = [layer for layer in network.modules() if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)]
    assert len([layer for layer in layers if getattr(layer, "kernel_size", None) == (3, 3)]) == 19
    assert isinstance(network[-1], torch.nn.Linear)
    assert network[-1].out_features == 100
    assert network[-2].p == 0.3
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(network.train()(x), network(x))
    assert torch.equal(network.eval()(x), network(x))


def test_parts_of_cifar10_are_read_in_order(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (50_000, 2, 2, 3), np.uint8), rng.integers(0, 10, 50_000, np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    monkeypatch.setattr(sets, "PART_BYTES", 100_000)
    to = tmp_path / "parts"
    written = sets.split_cifar10(tmp_path, to)
    assert len(written) == 7
    found = sets.cifar10(to)
    for here, there in zip(found, (x, y, x[:9], y[:9]), strict=True):
        np.testing.assert_array_equal(here, there)
    written[2].unlink()
    with pytest.raises(FileNotFoundError, match="parts"):
        sets.cifar10(to)


def test_a_transformer_does_not_see_what_is_not_there():
    torch.manual_seed(0)
    model = build_transformer((6,), 2, width=8).eval()
    numbers = torch.tensor([[5.0, 9.0, 3.0, 0.0, 0.0, 0.0]])
    longer = build_transformer((4,), 2, width=8).eval()
    state = model.state_dict()
    state["0.places"] = state["0.places"][:4]
    longer.load_state_dict(state)
    torch.testing.assert_close(model(numbers), longer(numbers[:, :4]))


def test_ties_of_the_success_rate_are_in_the_order_of_the_effect():
    truth = Truth(np.array([0.5, 1.0, 1.0, 0.7]), np.array([9.0, 1.0, 2.0, 0.0]), 0.0, 0.0)
    assert truth.ordered.tolist() == [0, 2, 3, 1]


def test_what_ties_in_both_is_found_by_chance():
    """And not in the order of rows."""
    truth = Truth(np.full(1000, 0.5), np.zeros(1000), 0.0, 0.0)
    assert figures(np.arange(1000.0), truth.ordered)[:4] == pytest.approx([0.05, 0.001, 0.01, 0.05])


def test_rmia_tells_records_apart_that_models_hardly_favour():
    """Probabilities of members are a tenth higher: none is favoured twice as much as others."""
    rng = np.random.default_rng(0)
    members = balanced_membership(40, 60, seed=0)
    p = np.clip(0.6 + 0.1 * members + 0.01 * rng.normal(size=members.shape), 0, 1)
    others = np.clip(0.6 + 0.01 * rng.normal(size=(40, 30)), 0, 1)
    logits, elsewhere = (2 * np.log(np.stack([values, 1 - values], axis=-1)) for values in (p, others))
    signals = Signals(logits, members, "logits", np.zeros(60, int), elsewhere, np.zeros(30, int))
    assert _truth("rmia", signals).accuracy > 0.95
    assert rmia(signals, signals, gamma=2.0).scores.max() == 0


def test_half_of_the_references_with_the_other():
    """Records that models remember are the same in both halves; noise is not; eight references have no halves."""
    rng = np.random.default_rng(0)
    members = balanced_membership(80, 400, seed=0)
    noise = rng.normal(size=members.shape)
    exposed = np.maximum(0, 4 - np.arange(400) / 10)

    def of_halves(signals):
        return repeated([_truth("lira", signals.of_models(own)) for own in halves_of(signals.models)])

    found = of_halves(Signals(noise + exposed * members, members, "phi"))
    assert found["top 1% in 5%"] > 0.7
    assert found["5%"] > 0.6
    nothing = of_halves(Signals(noise, members, "phi"))
    assert nothing["5%"] < 0.2
    assert abs(nothing["spearman"]) < 0.15 < found["spearman"]
    assert of_halves(Signals(noise[:8], members[:8], "phi")) is None
    assert sorted(np.concatenate(halves_of(80))) == list(range(80))


def test_the_best_threshold_is_the_best_of_all():
    rng = np.random.default_rng(0)
    scores, members = rng.integers(0, 9, (5, 30)) / 8, rng.random((5, 30)) < 0.5
    attack = AttackScores("rmia", scores + 0.1 * members.round(), members, {})
    every = [balanced_accuracy(attack, value) for value in np.linspace(-1, 2, 601)]
    assert balanced_accuracy(attack, best_threshold(attack)) == pytest.approx(max(every))


def test_few_records_still_have_one_at_the_top():
    score = np.arange(307.0)
    assert figures(score, score) == [1.0] * len(METRICS)


def test_claims_have_one_of_three_verdicts():
    assert [judged("x", holds, "").verdict for holds in (True, False, None)] == [HOLDS, FAILS, UNMEASURED]
    with pytest.raises(ValueError, match="verdict"):
        Claim("x", "perhaps", "")


def test_every_printed_setting_has_a_home():
    assert set(printed.TOP) == set(printed.RECALLS) == set(printed.SECONDS) == set(printed.HOURS)
    assert set(printed.TOP) <= set(HOMES)


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's text is not here")
def test_printed_numbers_stand_in_the_paper():
    text = re.sub(r"<[^>]+>|\*\*|\$|\\", "", PAPER.read_text(encoding="utf-8"))
    for rows in printed.TOP.values():
        for mean, std in rows.values():
            assert f"{mean:.1f} pm {std:.1f} %" in text
    for rows in printed.RECALLS.values():
        for cells in rows.values():
            shown = [f"{c[0]:.2f} pm {c[1]:.2f}" for c in cells[:3] if c] + [
                f"{c[0]:.3f} pm {c[1]:.3f}" for c in cells[3:] if c
            ]
            assert all(cell in text for cell in shown)
            assert "\t".join(shown) in text


# the page


@pytest.fixture(scope="module")
def committed():
    return read_results(RESULTS)


def copy_of(results):
    return json.loads(json.dumps(results))


def everywhere(results, change):
    """The results of Energy, changed, for every setting of the second paper whose data there are."""
    made = {}
    for name in claims_mia.TO_BE_HAD:
        made[name] = copy_of(results["energy_mlp"]) | {"setting": name}
        for truth in made[name]["agreement"].values():
            truth["whole_network"] = copy_of(truth["influence"])
        made[name]["seconds"]["per_target"]["whole_network"] = 9.0
        change(name, made[name])
    made["gls_resnet18"] = {"beside": {"fused": {"recall": {"0": 0.7, "2": 0.8}}}}
    made["gls_resnet18"]["beside"]["newton"] = {"recall": {"0": 0.6, "1": 0.99, "2": 0.7}}
    return made


def set_recall(found, score, mean, spread=0.01, truth="lira"):
    found["agreement"][truth][score]["top 1% in 5%"] = [mean, spread]
    if truth == "lira":
        found["top 1% in 5%, each target"][score] = [mean - spread, mean + spread]


def test_the_committed_page_is_what_the_committed_results_give(tmp_path, committed):
    assert (DOCS / "results.md").read_text(encoding="utf-8") == page(committed, DOCS / "images")
    written = write_page(RESULTS, tmp_path)  # a folder without pictures
    without = [line for line in (DOCS / "results.md").read_text(encoding="utf-8").splitlines() if line[:2] != "!["]
    assert [line for line in written.read_text(encoding="utf-8").splitlines() if line] == [x for x in without if x]


def test_every_picture_of_the_page_is_there_and_every_picture_is_on_it():
    shown = set(re.findall(r"\(images/(\w+\.png)\)", (DOCS / "results.md").read_text(encoding="utf-8")))
    assert {f"mia_recall_{name}.png" for name in ("lira", "rmia", "shokri")} | {"mia_loss_influence.png"} <= shown
    assert all((DOCS / "images" / name).exists() for name in shown)
    drawn = {path.name for path in (DOCS / "images").glob("mia_*")} | {path.name for path in DOCS.glob("images/gls_*")}
    assert drawn <= shown


def test_every_number_of_a_setting_stands_on_the_page(committed):
    told = copy_of(committed)
    before = page(told, DOCS / "images")
    for name, score, metric in (
        ("energy_mlp", "newton", "top 1% in 5%"),
        ("energy_mlp", "fused", "spearman"),
        ("california_linear", "loss", "0.1%"),
    ):
        told = copy_of(committed)
        told[name]["agreement"]["lira"][score][metric][0] += 0.1234
        assert page(told, DOCS / "images") != before
        value = told[name]["agreement"]["lira"][score][metric][0]
        shown = {"spearman": f"{value:.3f} ±", "0.1%": f"{100 * value:.2f} ±"}.get(metric, f"{100 * value:.1f} ±")
        assert f"→ {shown}" in page(told, DOCS / "images")
    told = copy_of(committed)
    seconds = told["energy_mlp"]["seconds"]
    seconds["references"] *= 3
    ratio = f"{seconds['references'] / seconds['per_target']['surrogates']:,.0f} ×"
    assert ratio in page(told, DOCS / "images")
    assert ratio not in before


def test_without_results_there_are_no_numbers_of_ours(tmp_path):
    text = page({}, tmp_path)
    rows = [line for line in text.splitlines() if "→" in line and line.startswith("|")]
    assert len(rows) > 50
    for row in rows:
        for cell in re.findall(r"→ ([^|]+) [|]", row):
            assert cell in (NOT_RUN, NO_DATA)
    for name in HOMES:
        assert f"run {name} --data DIR" in text
    assert {claim.verdict for claim in claims_mia.claims({})} == {UNMEASURED}


def test_small_results_are_refused(tmp_path, committed):
    (tmp_path / "energy_mlp.json").write_text(json.dumps(committed["energy_mlp"] | {"small": True}))
    with pytest.raises(SystemExit, match="small run"):
        read_results(tmp_path)


def test_verdicts_stand_on_the_page(committed):
    text = page(committed, DOCS / "images")
    every = [claim for claims in claims_of_all(committed).values() for claim in claims]
    assert len(every) == 42
    for claim in every:
        assert f"{claim.text[1:]} | **{claim.verdict}** | " in text


@pytest.mark.parametrize("place", range(9))
def test_each_claim_turns_with_its_numbers(committed, place):
    """All settings as the claim would have it, then one (or, of a claim about most, most) the other way."""

    def good(name, found):
        for truth, mean in (("lira", 0.6), ("rmia", 0.5), ("shokri", 0.4)):
            set_recall(found, "loss", 0.2, truth=truth)
            set_recall(found, "newton", mean, truth=truth)
            set_recall(found, "influence", mean, truth=truth)
        set_recall(found, "fused", 0.7)
        set_recall(found, "whole_network", 0.3)
        found["newton_over_influence"]["largest_error"] = 1e-9
        for attack, accuracy in (("lira", 0.7), ("rmia", 0.65), ("shokri", 0.6)):
            found["attacks"][attack]["balanced_accuracy"] = accuracy
        found["seconds"]["references"] = 2_000 * found["seconds"]["per_target"]["surrogates"]

    bad = [
        lambda found: set_recall(found, "influence", 0.1),
        lambda found: set_recall(found, "newton", 0.06, 0.1),
        lambda found: found["newton_over_influence"].update(largest_error=1e-3),
        lambda found: set_recall(found, "newton", 0.1, truth="rmia"),
        lambda found: set_recall(found, "newton", 0.9, truth="shokri"),
        lambda found: set_recall(found, "whole_network", 0.9),
        lambda found: found["seconds"].update(references=999 * found["seconds"]["per_target"]["surrogates"]),
        lambda found: found["attacks"]["rmia"].update(balanced_accuracy=0.71),
        lambda found: set_recall(found, "fused", 0.5),
    ][place]
    results = everywhere(committed, good)
    assert claims_mia.claims(results)[place].verdict == HOLDS
    del results["california_mlp"]
    about_most = place in (0, 4)
    assert claims_mia.claims(results)[place].verdict == (HOLDS if about_most else UNMEASURED)
    results = everywhere(committed, good)
    turned = claims_mia.TO_BE_HAD[-4:] if about_most else ("california_mlp",)
    for name in turned[1:]:
        bad(results[name])
    assert claims_mia.claims(results)[place].verdict == HOLDS
    bad(results[turned[0]])
    assert claims_mia.claims(results)[place].verdict == FAILS


def test_fused_is_held_against_newton_on_the_resnet_too(committed):
    def change(name, found):
        for score, share in (("whole_network", 0.3), ("newton", 0.5), ("fused", 0.9)):
            set_recall(found, score, share)

    results = everywhere(committed, change)
    assert claims_mia.claims(results)[8].verdict == HOLDS
    results["gls_resnet18"]["beside"]["fused"]["recall"] = {"0": 0.5, "2": 0.6}
    claim = claims_mia.claims(results)[8]
    assert claim.verdict == FAILS
    assert "ResNet-18 55.0 % against 65.0 % of the largest effect sizes; −10.0 ± 0.0 (standard error)" in claim.why
    del results["gls_resnet18"]["beside"]["fused"]
    assert claims_mia.claims(results)[8].verdict == UNMEASURED


def test_the_whole_network_is_held_against_the_last_layer_of_the_same_targets(committed):
    found = copy_of(committed["cifar10_cnn"])
    found["top 1% in 5%, each target"] |= {"whole_network": [0.5, 0.6], "influence": [0.4, 0.5, 0.9]}
    less, why = claims_mia._whole_network(found)
    assert not less
    assert "55.0 % in" in why
    assert "last layer 45.0 % in" in why
    assert why.endswith("+10.0 ± 0.0 (standard error) over the same 2 targets")


def test_scores_that_shared_their_gpu_are_told_and_not_counted(committed):
    claim = claims_mia.claims(committed)[6]
    assert claim.why.startswith("so in 3 of 6: ")
    told = committed["sst2_transformer"]["seconds"]
    times = f"{told['references'] / told['per_target']['surrogates']:,.0f}"
    assert claim.why.endswith(
        f"; not counted: SST-2, transformer {times} ×, its scores on a GPU that another training shared"
    )
    alone = copy_of(committed)
    alone["sst2_transformer"]["seconds"]["surrogates"] += 1.0
    assert claims_mia.claims(alone)[6].why.startswith("so in 3 of 7: ")


def test_cells_far_from_the_printed_ones_are_counted_and_explained(committed):
    """By hand, for every setting: two standard errors of both sides' targets."""
    told = {line.split(":")[0][2:]: line for line in remarks_mia.remarks(committed) if line.startswith("- ")}
    for name in claims_mia.TO_BE_HAD:
        found, far, cells = committed[name], [], 0
        for score, row in printed.RECALLS[name].items():
            for metric, cell in zip(printed.ALIKE, row, strict=True):
                if cell is None:
                    continue
                own, scale = found["agreement"]["lira"][score], 1 if metric == "spearman" else 100
                mean, spread = scale * np.array(own[metric])
                cells += 1
                if abs(mean - cell[0]) > 2 * np.hypot(cell[1] / 4, spread / np.sqrt(own["targets"])):
                    far.append((metric != "spearman", abs(mean - cell[0]), mean - cell[0]))
        line = told[printed.SHORT[name]]
        assert f"Far in Table 5: {len(far)} of {cells} cells, farthest " in line
        for digits, share in ((1, True), (3, False)):
            more = max((each for each in far if each[0] == share), key=lambda each: each[1])[2]
            assert f"({more:+.{digits}f})".replace("-", "−") in line.split("Far in Table 5")[1]
    assert "Far in Table 1: loss (+6.3), gradient norm (+38.8)." in told["California, MLP"]
    assert "Far in Table 1: no cell." in told["Energy"]
    near = copy_of(committed["energy_mlp"])
    for score, row in printed.RECALLS["energy_mlp"].items():
        for metric, cell in zip(printed.ALIKE, row, strict=True):
            scale = 1 if metric == "spearman" else 100
            near["agreement"]["lira"][score][metric] = [cell[0] / scale, cell[1] / scale]
    lines = remarks_mia.remarks({"energy_mlp": near})
    assert "Far in Table 5: none of 16 cells." in next(line for line in lines if line.startswith("- Energy"))


def test_a_setting_that_was_never_run_here_has_its_place_on_the_page(committed):
    """CIFAR-100, once somebody has its data."""
    ran = committed | {"cifar100_resnet20": committed["cifar10_cnn"] | {"setting": "cifar100_resnet20"}}
    line = next(line for line in page(ran, DOCS / "images").splitlines() if line.startswith("- CIFAR-100: 200 ref"))
    assert "Far in Table 5: " in line


def test_other_attacks_have_every_measure_on_the_page(committed):
    text = page(committed, DOCS / "images")
    rows = [line for line in text.splitlines() if line.startswith("| Energy | Newton step |") and "→" not in line]
    agreement = committed["energy_mlp"]["agreement"]
    expected = []
    for truth in ("rmia", "shokri"):
        for metric in printed.ALIKE:
            mean, spread = agreement[truth]["newton"][metric]
            scale, digits = (1, 3) if metric == "spearman" else (100, 2)
            expected.append(f"{scale * mean:.{digits}f} ± {scale * spread:.{digits}f}")
    assert rows == [f"| Energy | Newton step | {' | '.join(expected)} |"]


def test_table_4_has_the_sum_of_what_was_run(committed):
    few = {name: committed[name] for name in ("energy_mlp", "california_linear")}
    left_out = ("per_target", "halves", "fused", "fused_records")
    spent = sum(value for found in few.values() for phase, value in found["seconds"].items() if phase not in left_out)
    told = "\n".join(costs_mia.table_4(few))
    assert f"| 5.3 h → {costs_mia._time(spent)} |" in told
    assert "50,000 × for BloodMNIST" in told
    assert "features are made once" not in told
    assert "BloodMNIST: features are made once" in "\n".join(
        costs_mia.table_4(few | {"bloodmnist_head": committed["bloodmnist_head"]})
    )


def test_less_is_less_beyond_the_noise(committed):
    found = json.loads(json.dumps(committed["bloodmnist_head"]))
    for truth, mean in (("lira", 0.6), ("rmia", 0.58), ("shokri", 0.2)):
        set_recall(found, "newton", mean, 0.05, truth)
    assert not claims_mia._harder(found)[0]  # 0.02 with a standard error of 0.018
    set_recall(found, "newton", 0.5, 0.05, "rmia")
    assert claims_mia._harder(found)[0]


def test_fused_of_a_frozen_encoder_is_told_with_what_the_records_give(committed):
    told = page(committed, DOCS / "images")
    share = 100 * committed["bloodmnist_head"]["agreement"]["lira"]["fused_records"]["top 1% in 5%"][0]
    assert f"with the records themselves it finds {share:.1f} %" in told


def test_images_of_the_highest_scores_are_in_their_order():
    images = np.random.default_rng(0).integers(0, 256, (30, 4, 4, 3), np.uint8)
    shown = {score: {"highest": list(range(place, place + 10))} for place, score in enumerate(SHOWN)}
    axes = highest({"bloodmnist_head": shown}, {"bloodmnist_head": images}).axes
    assert len(axes) == 30
    for place, (row, column) in enumerate((row, column) for row in range(3) for column in range(10)):
        np.testing.assert_array_equal(axes[place].images[0].get_array(), images[row + column])


def test_pictures_are_drawn_of_what_there_is(tmp_path):
    for name in ("energy_mlp.json", "energy_mlp.npz"):
        (tmp_path / name).write_bytes((RESULTS / name).read_bytes())
    drawn = {path.name for path in draw_all(tmp_path, tmp_path / "images")}
    assert drawn == {f"mia_recall_{name}.png" for name in ("lira", "rmia", "shokri")} | {
        "mia_loss_influence.png",
        "gls_theory.png",
    }
