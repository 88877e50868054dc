"""The page of an audit: plain, self-contained, escaped, and careful with its words."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from giveaway import Head, ScoreTable, audit, report
from giveaway.reporting.html import notes, render
from tests.conftest import KINDS, made_arrays, made_head

NEVER_SAID = r"\b(safe|safely|anonymous|anonymi[sz]ed|compliant|passed|passes|no risk|not exposed|secure)\b"


class Page(HTMLParser):
    """Tags, links and the visible text of a page; every open tag must be closed in order."""

    VOID = frozenset({"meta", "br", "hr", "link", "img", "input"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.pieces, self.open = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())


def rows_of(page: str) -> list[list[str]]:
    body = page.split("<tbody>")[1].split("</tbody>")[0]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in body.split("<tr>")[1:]]


@pytest.fixture(params=["records", "people"])
def table(request) -> ScoreTable:
    groups = np.arange(60) // 3 if request.param == "people" else None
    return audit(made_head("classes", l2=0.5, groups=groups))


def test_no_script_and_nothing_from_the_network(table):
    page = Page(render(table))
    assert not {"script", "link", "iframe", "img", "object", "embed", "form"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "href", "srcset", "action")
        assert "//" not in (value or "")
    assert "url(" not in render(table)
    assert "@import" not in render(table)


def test_summary_and_top_table_are_plain_html(table):
    text = render(table, top=7)
    rows = rows_of(text)
    order = table.order()[:7]
    assert [row[0] for row in rows] == [str(rank) for rank in range(1, 8)]
    assert [row[1] for row in rows] == [str(table.ids[row]) for row in order]
    header = re.findall(r"<th[^>]*>(.*?)</th>", text.split("<thead>")[1].split("</thead>")[0])
    place = header.index("newton")
    assert [row[place] for row in rows] == [f"{table['newton'][row]:.4g}" for row in order]
    words = Page(text).text
    for heading in ("How to read it", "What to do", "Provenance", "most exposed"):
        assert heading in words
    assert f"{table['newton'].max():.4g}" in words


def test_the_headline_is_a_ranking_never_a_count(table):
    text = Page(render(table)).text
    assert "Ranking only:" in text
    assert "no number exposed is stated" in text
    assert "A low rank is not evidence of safety" in text
    assert not re.search(r"\b\d+ (records|people)[^.]{0,20} (are|is) (exposed|vulnerable|at risk)", text)
    unit = "people" if table.meta["unit"] == "person" else "records"
    assert f"The {min(50, len(table))} most exposed {unit}" in text


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_called_safe(kind):
    page = Page(render(audit(made_head(kind, l2=0.5)))).text
    assert re.search(NEVER_SAID, page, flags=re.IGNORECASE) is None


HOSTILE = ["<script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>", "{{ 7 * 7 }}", "a & b", "</td></tr>"]


def test_text_is_escaped_wherever_it_comes_from():
    names = np.array(HOSTILE)
    scores = {"newton": np.arange(5.0), "leverage": np.arange(5.0)}
    meta = {"unit": "record", "records": 5, "<b>key</b>": "<script>alert(2)</script>", "list": ["<i>x</i>"]}
    text = render(ScoreTable(scores, names, meta, {"<u>class</u>": names}))
    page = Page(text)
    assert {"script", "img", "i", "u"}.isdisjoint(page.tags)
    assert page.tags.count("b") == render(ScoreTable(scores, np.arange(5), {}, {})).count("<b>")
    for hostile in [*HOSTILE, "<script>alert(2)</script>", "<b>key</b>", "<i>x</i>", "<u>class</u>"]:
        assert " ".join(hostile.split()) in page.text
    assert "49" not in page.text


def test_provenance_names_rank_cut_and_options(table):
    text = Page(render(table)).text
    facts = {
        "curvature · rank": table.meta["curvature"]["rank"],
        "curvature · rank_relative_cut": table.meta["curvature"]["rank_relative_cut"],
        "l2": 0.5,
        "loss": "cross_entropy",
        "options · scores": ", ".join(table.columns),
    }
    for name, value in facts.items():
        assert f"{name} {value}" in text


@pytest.mark.parametrize("scores", [["loss"], ["leverage"], ["newton", "leverage"], ["margin", "entropy"]])
def test_a_table_of_few_columns(scores):
    text = render(audit(made_head("classes"), scores=scores))
    assert f"most exposed records, by {'newton' if 'newton' in scores else scores[0]}" in Page(text).text
    assert len(rows_of(text)) == 50


def test_a_table_of_one_s_own():
    text = render(ScoreTable({"mine": [3.0, 1.0, 2.0]}, ["a", "b", "c"]), top=2)
    assert [row[1] for row in rows_of(text)] == ["a", "c"]


def test_report_writes_what_render_gives(tmp_path, table):
    report(table, tmp_path / "page.html", top=5)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == render(table, top=5)


# ------------------------------------------------------------------------------------------------ notes


def note_about(table: ScoreTable, word: str) -> list[str]:
    return [note for note in notes(table) if word in note]


def test_notes_on_the_optimum():
    far = made_head("classes", l2=0.5)
    assert "not known: its weights were not given" in note_about(audit(far, scores=["newton"]), "optimum")[0]
    moved = far.with_parameters(torch.ones(5, 5, dtype=torch.float64).tril())
    (note,) = note_about(audit(moved), "optimum")
    assert "not at the optimum" in note
    assert "scores assume it is. converged=False or refit=True" in note
    (note,) = note_about(audit(moved, converged=False), "optimum")
    assert "scores assume it is" not in note
    assert "newton and loo_gap take it into account" in note
    assert note_about(audit(moved, refit=True), "optimum") == []


def test_notes_on_repeats_caps_rank_and_l2():
    arrays = made_arrays("classes")
    lone = np.zeros((60, 2))
    lone[11] = 1.0
    features = np.column_stack([arrays["features"], lone])
    features[[20, 21]] = features[22]
    arrays["targets"][[20, 21]] = arrays["targets"][22]
    table = audit(Head(**arrays | {"features": features}))
    assert "3 records have an exact copy" in note_about(table, "copy")[0]
    assert "understated: pass groups" in note_about(table, "copy")[0]
    assert "1 rows are alone in some direction" in note_about(table, "alone")[0]
    assert len(note_about(table, "singular; its pseudo-inverse was used")) == 1
    assert note_about(table, "tenth of l2") == []
    penalized = audit(Head(**made_arrays("classes"), l2=2.0))
    low, high = penalized.meta["l2_sensitivity"].values()
    assert note_about(penalized, "tenth of l2") == [
        f"Rank correlation of newton with itself at a tenth of l2: {low:.3f}, at ten times: {high:.3f}."
    ]
    assert note_about(penalized, "singular") == []
    assert note_about(penalized, "copy") == []


def test_one_singular_label_among_several_is_said():
    arrays = made_arrays("multi_label")
    arrays["outputs"][2:, 0] = 1e4  # two records alone have curvature there
    table = audit(Head(**arrays))
    assert table.meta["curvature"]["inverse"] == "cholesky/eigenvectors"
    assert len(note_about(table, "singular")) == 1


def test_every_note_is_on_the_page():
    table = audit(made_head("classes", l2=0.5))
    text = Page(render(table)).text
    assert all(note in text for note in notes(table))
    assert len(notes(table)) == 3


def test_predictions_are_called_that():
    head = made_head("classes")
    said = " ".join(notes(audit(head, scores=["newton", "predicted_success"])))
    assert "predicted_* columns are estimates" in said
    assert "not measured" in said
    assert "predicted" not in " ".join(notes(audit(head)))


# ------------------------------------------------------------------------------------------------ the second view


def headings(page: str) -> list[str]:
    return re.findall(r"<th[^>]*>(.*?)</th>", page.split("<thead>")[1].split("</thead>")[0])


def viewed(kind: str = "classes", **options) -> ScoreTable:
    head = made_head(kind, l2=0.5, **options)
    return audit(head, inputs=np.maximum(head.features.numpy(), 0.0))


def test_what_the_others_say_and_who_is_nearest():
    table = viewed(ids=np.array([f"r{i:02d}" for i in range(60)]))
    page = render(table, top=12)
    shown = headings(page)
    assert shown[-2:] == ["why", "nearest"]
    assert shown.count("nearest") == shown.count("others_say") == 1
    rows = rows_of(page)
    order = table.order()[:12]
    assert [row[-1] for row in rows] == table["nearest"][order].tolist()
    assert [row[shown.index("others_say")] for row in rows] == [str(said) for said in table["others_say"][order]]
    assert not any("nearest" in row[-2] for row in rows)
    assert shown[shown.index("fused") :][:3] == ["fused", "newton", "left_out"]
    text = Page(page).text
    for words in (
        "most exposed records, by fused",
        "fused puts two views of a record together: newton, what the trained model did with it, and left_out",
        "others_say is what the other records predict for this one, nearest are the records most like it",
        "All but fused and left_out look at the last linear layer only.",
        "view · view tabular",
        "view · head_is_exact False",
    ):
        assert words in text


@pytest.mark.parametrize("by", ["record", "person"])
def test_no_empty_column_of_neighbours(by):
    table = viewed(groups=np.arange(60) // 3) if by == "person" else audit(made_head("classes"))
    assert "nearest" not in headings(render(table))
    text = Page(render(table)).text
    assert "others_say" not in text
    assert ("fused puts two views of a person together" in text) is (by == "person")
    assert ("Scores look at the last linear layer only." in text) is (by == "record")


def test_a_black_box_has_a_page_of_its_own_words():
    arrays = made_arrays("classes") | {"features": None}
    table = audit(Head(**arrays), inputs=np.random.default_rng(0).normal(size=(60, 3)))
    text = Page(render(table)).text
    assert "A black box: nothing inside the model was looked at." in text
    assert "two views of a record together: the loss, what the trained model did with it" in text
    for word in ("newton", "leverage", "linear layer", "optimum", "its weights were not given"):
        assert word not in text.split("Provenance")[0]
    assert re.search(NEVER_SAID, text, flags=re.IGNORECASE) is None
    assert len(rows_of(render(audit(Head(**arrays))))) == 50


def test_notes_on_the_view():
    table = viewed()
    view = table.meta["view"]
    said, blind = notes(table)[:2]
    assert said == (
        f"The other records predict a left-out one with {100 * view['left_out_error']:.3g} % of the squared error of a "
        f"constant (columns of the table, rbf kernel, {view['method']}); training took away "
        f"{100 * view['memorized']:.3g} % of that error. In fused the model's own view counts "
        f"{view['head_weight']:.2g} and theirs 1."
    )
    assert ("no better than a constant here" in blind) is (view["left_out_error"] >= 1)
    head = made_head("classes", l2=0.5)
    exact = notes(audit(head, inputs=head.features))
    assert exact[0].endswith("% of that error.")
    assert exact[1] == (
        "The features are a linear function of the inputs: nothing was learned before the head, "
        "fused ranks as newton does."
    )
    assert notes(audit(head))[0] == "No fused score: the records themselves were not given (inputs)."
    assert not any("fused" in note for note in notes(audit(head, scores=["newton"])))


def test_names_of_neighbours_are_escaped():
    names = np.array([f"<b>{i}</b>" for i in range(60)])
    page = render(viewed(ids=names))
    assert "&lt;b&gt;" in rows_of(page)[0][-1]
    assert "<b>1</b>" not in page
