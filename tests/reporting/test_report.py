"""The page of an audit: plain, self-contained, escaped, and careful with its words."""

import base64
import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from giveaway import Head, LossTrace, audit, report, validate
from giveaway.records import ScoreTable, Signals
from giveaway.reporting.pages import summary_pages
from giveaway.reporting.report import render
from giveaway.reporting.validation import StoredValidation
from giveaway.reporting.words import notes
from tests.conftest import made_arrays, made_head, without_pictures
from tests.reporting.test_answers import QUESTIONS

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
        if not {"style", "script"} & set(self.open):
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())


def listing_of(page: str) -> str:
    return page.split('<table id="listing"')[1].split("</table>")[0]


def rows_of(page: str) -> list[list[str]]:
    """The cells of the rows ranked highest, without the button that shows a row in the map."""
    body = listing_of(page).split("<tbody>")[1]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in body.split("<tr ")[1:]]
    return [[cell for cell in row if "<button" not in cell] for row in rows]


def headings(page: str) -> list[str]:
    return re.findall(r"<button type=\"button\">(.*?)</button></th>", listing_of(page).split("</thead>")[0])


@pytest.fixture(autouse=True)
def quick(request) -> Iterator[None]:
    """Draw no pictures, and no maps, for tests that do not look at them."""
    with contextlib.nullcontext() if "drawn" in request.fixturenames else without_pictures():
        yield


@pytest.fixture(scope="module", params=["records", "people"])
def table(request) -> ScoreTable:
    groups = np.arange(60) // 3 if request.param == "people" else None
    return audit(made_head("classes", l2=0.5, groups=groups))


@pytest.fixture(scope="module")
def whole(table) -> str:
    return render(table)


def test_nothing_comes_from_the_network(table, whole):
    text = whole
    page = Page(text)
    assert not {"iframe", "object", "embed", "form", "base", "video", "audio"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "srcset", "action"):
            assert value.startswith(("data:", "#"))
    assert "default-src 'none'; img-src data:;" in text
    assert "@import" not in text


def test_summary_and_top_table_are_plain_html(table):
    text = render(table, top=7)
    rows = rows_of(text)
    order = table.order()[:7]
    assert [row[0] for row in rows] == [str(rank) for rank in range(1, 8)]
    assert [row[1] for row in rows] == [str(table.ids[row]) for row in order]
    place = headings(text).index("newton")
    assert [row[place] for row in rows] == [f"{table['newton'][row]:.4g}" for row in order]
    for k, row in enumerate(rows, start=1):
        assert f"percentile {100 * (len(table) - k) / len(table):.4g} · " in row[-1]
    words = Page(text).text
    for heading in (*QUESTIONS, "What the columns and numbers mean", "Provenance", "ranked highest", "Reviewed by"):
        assert heading in words
    assert f"{table['newton'].max():.4g}" in words


def test_the_headline_is_a_ranking_never_a_count(table, whole):
    text = Page(whole).text
    assert "How many are exposed? Not known. No attack was measured on this model" in text
    assert "no number of exposed records is stated" in text
    assert "A low rank is not evidence of safety" in text
    assert not re.search(r"\b\d+ (records|people)[^.]{0,20} (are|is) (exposed|vulnerable|at risk)", text)
    unit = "people" if table.meta.unit == "person" else "records"
    assert f"The {unit} ranked highest" in text


def test_nothing_is_called_safe():
    for kind in ("squared", "one_logit", "soft_labels", "multi_label"):
        page = Page(render(audit(made_head(kind, l2=0.5)))).text
        assert re.search(NEVER_SAID, page, flags=re.IGNORECASE) is None


HOSTILE = ["<script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>", "{{ 7 * 7 }}", "a & b", "</td></tr>"]


def test_text_is_escaped_wherever_it_comes_from(drawn):
    names = np.array(HOSTILE)
    scores = {"newton": np.arange(5.0), "leverage": np.arange(5.0)}
    meta = {"unit": "record", "records": 5, "<b>key</b>": "<script>alert(2)</script>", "list": ["<i>x</i>"]}
    text = render(ScoreTable(scores, names, meta, {"<u>class</u>": names}))
    page = Page(text)
    assert {"i", "u"}.isdisjoint(page.tags)
    plain = Page(render(ScoreTable(scores, np.arange(5), {}, {})))
    assert {tag: page.tags.count(tag) for tag in ("b", "img")} == {tag: plain.tags.count(tag) for tag in ("b", "img")}
    assert page.tags.count("script") == plain.tags.count("script")
    for hostile in [*HOSTILE, "<script>alert(2)</script>", "<b>key</b>", "<i>x</i>", "<u>class</u>"]:
        assert " ".join(hostile.split()) in page.text
    assert "49" not in page.text


def test_provenance_names_rank_cut_and_options(table, whole):
    text = Page(whole).text
    facts = {
        "curvature · rank": table.meta.curvature.rank,
        "curvature · rank_relative_cut": table.meta.curvature.rank_relative_cut,
        "l2": 0.5,
        "loss": "cross_entropy",
        "options · scores": ", ".join(table.columns),
    }
    for name, value in facts.items():
        assert f"{name} {value}" in text
    assert all(note in text for note in notes(table))
    assert len(notes(table)) == 2


def test_a_table_of_few_columns():
    for scores in (["loss"], ["leverage"], ["newton", "leverage"], ["margin", "entropy"]):
        text = render(audit(made_head("classes"), scores=scores))
        assert f"Ranked by the score {'newton' if 'newton' in scores else scores[0]}" in Page(text).text
        assert len(rows_of(text)) == 60
    text = render(ScoreTable({"mine": [3.0, 1.0, 2.0]}, ["a", "b", "c"]), top=2)
    assert [row[1] for row in rows_of(text)] == ["a", "c"]


def viewed(kind: str = "classes", **options) -> ScoreTable:
    head = made_head(kind, l2=0.5, **options)
    return audit(replace(head, inputs=np.maximum(head.features.numpy(), 0.0)))


def test_a_row_holds_few_columns_and_tells_the_rest_on_request():
    table = viewed(ids=np.array([f"r{i:02d}" for i in range(60)]))
    page = render(table, top=12)
    assert headings(page) == ["rank", "id", "class", "fused", "why"]
    for row, cells in zip(table.order()[:12], rows_of(page), strict=True):
        why, more = cells[-1].split('<details class="more-numbers"><summary>more</summary>')
        assert "Nearest: " not in why
        told = dict(part.split(" ", 1) for part in more.removesuffix("</details>").split(" · "))
        assert told["others_say"] == str(table["others_say"][row])
        assert told["nearest"] == table["nearest"][row]
        for name in ("newton", "left_out", "loss", "leverage"):
            assert told[name] == f"{table[name][row]:.4g}"
    text = Page(page).text
    for words in (
        "Ranked by the score fused, which puts all views of a record together: the higher, the more exposed.",
        "left_out how wrongly the other records predict it",
        "others_say what the other records predict for it",
        "leverage and their like use the last linear layer only",
        "view · view tabular",
        "view · head_is_exact False",
    ):
        assert words in text


def test_twenty_rows_stand_before_the_rest():
    table = audit(made_head("classes"))
    assert '<details class="rest" id="rest"><summary>Show 40 more</summary>' in render(table)
    assert 'id="rest"' not in render(table, top=20)


def traced(**options) -> ScoreTable:
    """An audit of 60 records with a trace in which row 7 stays hard until the last epoch."""
    head = made_head("classes", l2=0.5, **options)
    losses = np.random.default_rng(0).random((5, 60))
    losses[:, 7] = 9.0, 9.0, 9.0, 9.0, 0.25
    return audit(head, trace=LossTrace.from_losses(losses, ids=head.ids))


def test_when_the_most_exposed_were_learned(drawn):
    table = traced(ids=np.array([f"secret-{i:02d}" for i in range(60)]))
    page = render(table, top=12)
    picture = page.split('id="learned"')[1].split("base64,")[1].split('"')[0]
    assert "rank 1: secret-07" in base64.b64decode(picture).decode()
    text = Page(page).text
    for words in (
        "When were they learned? A line is one of the records ranked highest",
        "The losses of training are those of 5 epochs, matched to these records by ids.",
        "trace how large its losses were while the model was trained",
        "leverage and their like use the last linear layer only",
        "trace · epochs 5",
    ):
        assert words in text
    assert "trace · losses" not in text  # the picture shows them
    shared = "".join(summary_pages(table).values())
    assert "secret" not in shared
    assert not {str(loss) for row in table.meta.trace.losses for loss in row[:1]} & set(re.findall(r"[\d.]+", shared))


def test_trees_that_never_saw_a_record_stand_in_for_the_loss():
    arrays = made_arrays("classes") | {"features": None}
    arrays["inputs"] = np.random.default_rng(0).normal(size=(60, 3))
    text = Page(render(audit(Head(**arrays, out_of_bag=np.roll(arrays["outputs"], 1, axis=0))))).text
    assert "out_of_bag the loss of what the trees that never saw it predict for it" in text
    assert "A black box: nothing inside the model was used but which records each of its trees saw." in text


def test_people_and_audits_without_a_trace_have_no_such_picture():
    names = np.array([f"r{i:02d}" for i in range(60)])
    people = Page(render(traced(ids=names, groups=np.arange(60) // 3))).text
    assert "When were they learned? Not shown: table: expected rows that are records, got people" in people
    assert "When were they learned" not in Page(render(audit(made_head("classes")))).text


def test_a_black_box_has_a_page_of_its_own_words():
    arrays = made_arrays("classes") | {"features": None}
    table = audit(replace(Head(**arrays), inputs=np.random.default_rng(0).normal(size=(60, 3))))
    text = Page(render(table)).text
    assert "A black box: nothing inside the model was used." in text
    for word in ("newton", "leverage", "linear layer", "optimum", "its weights were not given"):
        assert word not in text.split("Details")[0]
    assert re.search(NEVER_SAID, text, flags=re.IGNORECASE) is None
    assert len(rows_of(render(audit(Head(**arrays))))) == 60


def test_names_of_neighbours_are_escaped():
    names = np.array([f"<b>{i}</b>" for i in range(60)])
    page = render(viewed(ids=names))
    assert "nearest &lt;b&gt;" in rows_of(page)[0][-1]
    assert "<b>1</b>" not in page


def test_after_a_validation_the_page_counts_and_shows_what_was_measured():
    rng = np.random.default_rng(0)
    members = rng.random((32, 120)) < 0.5
    table = audit(made_head("classes", n=120))
    exposure = np.linspace(0, 5, 120)[table.rank("loss") - 1]
    signals = Signals(rng.normal(size=(32, 120)) + members * exposure, members, kind="phi")
    found = validate(signals, table)
    page = render(table, measured=StoredValidation.of(found), top=120)
    text = Page(page).text
    assert f"At least {found.count.at_least} of 120 records are exposed (" in text
    assert "Not known" not in text.split("Whose are they?")[0]
    assert "A low rank is not evidence of safety" in text
    assert found.conclusion() in text
    shown, rows = headings(page), rows_of(page)
    order = table.order()
    assert [float(row[shown.index("measured success")]) for row in rows] == pytest.approx(
        found.success[order], rel=1e-3
    )
    flags = [row[shown.index("found exposed")] for row in rows]
    assert flags.count("yes") == found.count.flagged.sum()
    assert {flag == "yes" for flag, row in zip(flags, order, strict=True) if found.count.flagged[row]} == {True}
    assert "fewer than 2" in text.split("worth in shadow models")[1]
    assert page.count('<img src="data:image/svg+xml') == 2


def test_people_have_no_measured_columns_of_records():
    rng = np.random.default_rng(0)
    members = rng.random((16, 120)) < 0.5
    head = made_head("classes", n=120, groups=np.arange(120) // 2)
    table = audit(replace(head, groups=None))
    phi = rng.normal(size=(16, 120)) + 0.02 * table.rank("loss")  # what is hard is hard, trained on or not
    found = validate(Signals(phi, members, kind="phi"), table)
    page = render(audit(head), measured=StoredValidation.of(found))
    assert "measured success" not in headings(page)
    assert "does not mean that none of the 120 records is exposed" in Page(page).text


def test_the_report_takes_a_head_and_a_validation(tmp_path):
    head = made_head("classes", n=120, l2=0.5)
    table = audit(head)
    report(table, tmp_path / "plain.html")
    report(table, tmp_path / "whole.html", head=head, access="weights")
    plain, whole = (Page((tmp_path / f"{name}.html").read_text(encoding="utf-8")).text for name in ("plain", "whole"))
    assert "pass head= to have it" in plain
    assert "has the model's weights." in whole
    assert (tmp_path / "whole.html").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_fifty_thousand_records_make_a_page_of_less_than_three_megabytes():
    rng = np.random.default_rng(0)
    n = 50_000
    names = np.array([f"somebody-with-a-long-name-{i:06d}" for i in range(n)])
    scores = {name: rng.lognormal(size=n) for name in ("fused", "newton", "left_out", "leverage", "loss")}
    table = ScoreTable(scores | {"leverage": rng.random(n)}, names, {}, {"class": rng.integers(0, 300, n)})
    assert len(render(table).encode()) < 3_000_000
