"""docs/results.md is what the committed results give, with every number and picture."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from benchmarks.drawing import publish
from benchmarks.reproduce.claims import (
    EXACT,
    FAILS,
    HOLDS,
    NO_DATA,
    NOT_RUN,
    UNDECIDED,
    UNMEASURED,
    duration,
    gain,
    grows,
    judge,
    unwrap,
)
from benchmarks.reproduce.job import RESULTS, SETTINGS
from benchmarks.reproduce.page import (
    PAPERS,
    claims_of,
    claims_of_all,
    page,
    read_paper,
    read_results,
    section,
    write_page,
)
from benchmarks.reproduce.pictures import draw_all

PER_SAMPLE, GLS, LOOD, TRACES = (read_paper(name) for name in PAPERS)


DOCS = Path(__file__).parents[2] / "docs"
PAPER = Path(__file__).parents[3] / "shared" / "papers" / "per-sample-mia.txt"
TO_BE_HAD, ALIKE = PER_SAMPLE["to_be_had"], PER_SAMPLE["metrics"]


@pytest.fixture(scope="module")
def text(committed):
    return page(committed, DOCS / "images")


def test_the_committed_page_is_what_the_committed_results_give(tmp_path, text):
    assert (DOCS / "results.md").read_text(encoding="utf-8") == text
    written = write_page(RESULTS, tmp_path)  # a folder without pictures
    without = [line for line in text.splitlines() if line and line[:2] != "!["]
    assert [line for line in written.read_text(encoding="utf-8").splitlines() if line] == without


def test_every_picture_of_the_page_is_there_and_every_picture_is_on_it():
    shown = set(re.findall(r"\(images/(\w+\.png)\)", (DOCS / "results.md").read_text(encoding="utf-8")))
    assert {f"mia_recall_{name}.png" for name in ("lira", "rmia", "shokri")} | {"mia_loss_influence.png"} <= shown
    assert all((DOCS / "images" / name).exists() for name in shown)
    drawn = {path.name for path in (DOCS / "images").glob("mia_*")} | {path.name for path in DOCS.glob("images/gls_*")}
    assert drawn <= shown


def test_every_number_of_a_setting_stands_on_the_page(committed, text):
    for name, score, metric in (
        ("energy_mlp", "newton", "top 1% in 5%"),
        ("energy_mlp", "fused", "spearman"),
        ("california_linear", "loss", "0.1%"),
    ):
        told = deepcopy(committed)
        told[name]["agreement"]["lira"][score][metric][0] += 0.1234
        value = told[name]["agreement"]["lira"][score][metric][0]
        shown = {"spearman": f"{value:.3f} ±", "0.1%": f"{100 * value:.2f} ±"}.get(metric, f"{100 * value:.1f} ±")
        assert f"→ {shown}" in section("per_sample", told)
        assert f"→ {shown}" not in text
    told = deepcopy(committed)
    seconds = told["energy_mlp"]["seconds"]
    seconds["references"] *= 3
    ratio = f"{seconds['references'] / seconds['per_target']['surrogates']:,.0f} ×"
    assert ratio in section("per_sample", told)
    assert ratio not in text


def test_without_results_there_are_no_numbers_of_ours(tmp_path):
    text = page({}, tmp_path)
    rows = [line for line in text.splitlines() if "→" in line and line.startswith("|")]
    assert len(rows) > 50
    for row in rows:
        for cell in re.findall(r"→ ([^|]+) [|]", row):
            assert cell in (NOT_RUN, NO_DATA)
    for name in SETTINGS:
        assert f"run {name} --data DIR" in text
    assert {claim.verdict for claim in claims_of("per_sample", {})} == {UNMEASURED}
    assert {claim.verdict for claim in claims_of("gls", {})} == {UNMEASURED}
    assert section("gls", {}).count(f"→ {NOT_RUN}") == 16
    # what benchmarks/lood_figures.py measured needs no setting
    assert [claim.verdict for claim in claims_of("lood", {})].count(UNMEASURED) == 19
    lood = section("lood", {})
    assert sum(NOT_RUN in line for line in lood.splitlines()) == 29
    assert "84 %; 94 %, 8 %" in lood


def test_small_results_are_refused(tmp_path, committed):
    (tmp_path / "energy_mlp.json").write_text(json.dumps(committed["energy_mlp"] | {"small": True}))
    with pytest.raises(SystemExit, match="small run"):
        read_results(tmp_path)


def test_verdicts_stand_on_the_page(committed, text):
    every = [claim for claims in claims_of_all(committed).values() for claim in claims]
    assert [len(claims) for claims in claims_of_all(committed).values()] == [11, 8, 30, 3]
    for claim in every:
        assert f"| {claim.text} | **{claim.verdict}** | {claim.rule[:1].upper()}{claim.rule[1:]} | " in text
    kinds = (HOLDS, FAILS, UNDECIDED, EXACT, UNMEASURED)
    assert [[claim.verdict for claim in every].count(kind) for kind in kinds] == [28, 10, 10, 4, 0]
    assert all("1 not run yet" in claim.measured for claim in every if claim.verdict == UNMEASURED)


def test_loss_traces_are_judged_on_all_sets_and_with_enough_references():
    def scored(iqr, loss, trace, models=64):
        shares = {"LT-IQR": iqr, "loss": loss, "mean loss after epochs": iqr - 0.1, "trace (ours)": trace}
        rows = {score: dict.fromkeys(TRACES["figures"], [share, share + 0.02] * 2) for score, share in shares.items()}
        return {"models": models, "scores, each target": rows}

    def verdicts(**sets):
        return [claim.verdict for claim in claims_of("traces", {"loss_traces": sets})]

    good = scored(0.6, 0.2, 0.7)
    assert verdicts(cifar10=good, bloodmnist=good) == [HOLDS] * 3
    assert verdicts(cifar10=good, bloodmnist=scored(0.6, 0.7, 0.5)) == [FAILS, HOLDS, FAILS]
    assert verdicts(cifar10=good, bloodmnist=scored(0.6, 0.2, 0.7, models=63)) == [UNDECIDED] * 3
    assert verdicts(cifar10=good) == [UNMEASURED] * 3


def test_a_rule_that_speaks_of_what_is_not_there_is_an_error():
    names = {"claims": [{"text": "x", "rule": "", "holds": "found.missing > 1", "measured": ""}], "found": {}}
    with pytest.raises(Exception, match="missing"):
        judge(names)
    names["claims"] = [
        {"text": "x", "rule": "", "let": {"n": "1 + 1", "m": "n + 1"}, "holds": "m == 3", "measured": "{{ m }}"}
    ]
    assert [(claim.verdict, claim.measured) for claim in judge(names)] == [(HOLDS, "3")]


def test_words_of_numbers():
    assert unwrap("a\nb\n\n- c\nd\n- e\n| f |\n| g |\n\n\n\nh\n```\ni\nj\n```") == (
        "a b\n\n- c d\n- e\n| f |\n| g |\n\nh\n```\ni\nj\n```\n"
    )
    assert [duration(seconds) for seconds in (None, 0.0326, 12.4, 195.0, 7920.0)] == [
        "–", "0.033 s", "12 s", "3.25 min", "2.2 h",
    ]  # fmt: skip
    assert gain([0.5, 0.7], [0.4, 0.5])["text"] == "; +15.0 ± 5.0 (standard error) over the same 2 targets"
    assert gain([0.5], [0.4])["text"] == ""
    assert grows([1.2, 1.5])
    assert not any(grows(ratios) for ratios in ([1.5, 1.2], [0.9, 1.2], [1.2, 1.2], [0.9, 0.5]))


def remarks(results):
    lines = [line for line in section("per_sample", results).splitlines() if line.startswith("- ")]
    return {line.split(":")[0][2:]: line for line in lines}


def test_cells_far_from_the_printed_ones_are_counted_and_explained(committed):
    """By hand, for every setting: two standard errors of both sides' targets."""
    told, printed = remarks(committed), PER_SAMPLE["printed"]["table_5"]
    for name in TO_BE_HAD:
        found, far, cells = committed[name], [], 0
        for score, row in printed[name].items():
            for metric, cell in zip(ALIKE, row, strict=True):
                if not cell:
                    continue
                own, scale = found["agreement"]["lira"][score], 1 if metric == "spearman" else 100
                mean, spread = scale * np.array(own[metric])
                cells += 1
                if abs(mean - cell[0]) > 2 * np.hypot(cell[1] / 4, spread / np.sqrt(own["targets"])):
                    far.append((metric != "spearman", abs(mean - cell[0]), mean - cell[0]))
        line = told[PER_SAMPLE["settings"][name]]
        assert f"Far in Table 5: {len(far)} of {cells} cells, farthest " in line
        for digits, share in ((1, True), (3, False)):
            more = max((each for each in far if each[0] == share), key=lambda each: each[1])[2]
            assert f"({more:+.{digits}f})".replace("-", "−") in line.split("Far in Table 5")[1]
    assert "Far in Table 1: loss (+6.3), gradient norm (+38.8)." in told["California, MLP"]
    assert "Far in Table 1: no cell." in told["Energy"]
    near = deepcopy(committed["energy_mlp"])
    for score, row in printed["energy_mlp"].items():
        for metric, cell in zip(ALIKE, row, strict=True):
            scale = 1 if metric == "spearman" else 100
            near["agreement"]["lira"][score][metric] = [cell[0] / scale, cell[1] / scale]
    assert "Far in Table 5: none of 16 cells." in remarks({"energy_mlp": near})["Energy"]


def test_a_setting_that_was_never_run_here_has_its_place_on_the_page(committed):
    """CIFAR-100, once somebody has its data."""
    ran = committed | {"cifar100_resnet20": committed["cifar10_cnn"] | {"setting": "cifar100_resnet20"}}
    line = remarks(ran)["CIFAR-100"]
    assert line.startswith("- CIFAR-100: 200 references")
    assert "Far in Table 5: " in line


def test_other_attacks_and_records_themselves_are_on_the_page(committed, text):
    rows = [line for line in text.splitlines() if line.startswith("| Energy | Newton step |") and "→" not in line]
    expected = []
    for truth in ("rmia", "shokri"):
        for metric in ALIKE:
            mean, spread = committed["energy_mlp"]["agreement"][truth]["newton"][metric]
            scale, digits = (1, 3) if metric == "spearman" else (100, 2)
            expected.append(f"{scale * mean:.{digits}f} ± {scale * spread:.{digits}f}")
    assert rows == [f"| Energy | Newton step | {' | '.join(expected)} |"]
    share = 100 * committed["bloodmnist_head"]["agreement"]["lira"]["fused_records"]["top 1% in 5%"][0]
    assert f"with the records themselves it finds {share:.1f} %" in text


def test_table_4_has_the_sum_of_what_was_run(committed):
    few = {name: committed[name] for name in ("energy_mlp", "california_linear")}
    left_out = ("per_target", "halves", "fused", "fused_records")
    spent = sum(value for found in few.values() for phase, value in found["seconds"].items() if phase not in left_out)
    told = section("per_sample", few)
    assert f"| 5.3 h → {duration(spent)} |" in told
    assert "50,000 × for BloodMNIST" in told
    assert "features are computed once" not in told
    more = section("per_sample", few | {"bloodmnist_head": committed["bloodmnist_head"]})
    assert "BloodMNIST: features are computed once" in more


def test_every_printed_setting_has_a_home():
    tables = [set(PER_SAMPLE["printed"][f"table_{number}"]) for number in (1, 4, 5)]
    assert tables[0] == tables[1] == tables[2]
    assert tables[0] <= set(SETTINGS)


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's text is not here")
def test_printed_numbers_stand_in_the_paper():
    text = re.sub(r"<[^>]+>|\*\*|\$|\\", "", PAPER.read_text(encoding="utf-8"))
    for rows in PER_SAMPLE["printed"]["table_1"].values():
        assert all(f"{mean:.1f} pm {std:.1f} %" in text for mean, std in rows.values())
    for rows in PER_SAMPLE["printed"]["table_5"].values():
        for cells in rows.values():
            shown = [f"{c[0]:.2f} pm {c[1]:.2f}" for c in cells[:3] if c]
            shown += [f"{c[0]:.3f} pm {c[1]:.3f}" for c in cells[3:] if c]
            assert all(cell in text for cell in shown)
            assert "\t".join(shown) in text


def test_printed_numbers_are_those_of_the_papers():
    table = GLS["printed"]["table_2"]
    assert (table["lira"]["last layer"], table["tpr"]["full model"]) == ([0.50, 0.05], [0.29, 0.05])
    assert table["mean_gap"]["4 last layers"] == [0.07, 0.04]
    printed = LOOD["printed"]
    told = printed["retrained"]
    assert told["training_hours"] * 60 / told["lood_minutes"] >= told["times_faster"] == 140
    assert printed["perturbed"]["networks"] == [-2.375, 5.978]
    assert (printed["groups"]["most_exposed"], printed["groups"]["least_exposed"]) == (0.61, 0.08)
    assert printed["sine"]["steepest"] == 3.899


@pytest.mark.slow
def test_pictures_are_drawn_from_the_committed_results(tmp_path, monkeypatch):
    def at_once(figure, path):
        figure.set_layout_engine("none")  # to arrange the panels takes longer than to draw them
        return publish(figure, path)

    monkeypatch.setattr("benchmarks.reproduce.pictures.publish", at_once)
    shown = set(re.findall(r"\(images/(\w+\.png)\)", (DOCS / "results.md").read_text(encoding="utf-8")))
    drawn = {path.name: path for path in draw_all(RESULTS, tmp_path)}
    assert shown - set(drawn) == {"mia_images.png", "gls_extremes.png"}  # these show records, and need the data
    assert set(drawn) <= shown
    assert all(path.stat().st_size > 5_000 for path in drawn.values())
    assert {path.name for path in draw_all(tmp_path / "nothing", tmp_path)} == {"gls_theory.png"}
