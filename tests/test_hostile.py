"""Text of others, wherever it comes from, stays text: in the pages, the tables, the JSON and on the screen.

The browser's side of it is in tests/reporting/test_browser.py; here parsers read what was written. Small audits and
parts that fail make a page as well.
"""

import csv
import itertools
import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from giveaway import audit
from giveaway.findings.extras import ReportExtras, contents_of
from giveaway.records import ScoreTable
from giveaway.reporting.folder import main_table
from giveaway.reporting.pages import index_page, summary_pages
from giveaway.reporting.report import render
from giveaway.reporting.validation import StoredValidation
from tests.conftest import made_head, refused, without_pictures
from tests.every_command import Run, made_arrays, made_signals, run, working_in
from tests.reporting.test_report import Page

N = 100
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31m"  # a title, an empty screen, red
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "--><!-- <b>bold</b>",
    "\"><img src=x onerror='alert(3)'>",
    "' onmouseover='alert(4)",
    "</td></tr></table><iframe src=//example.org>",
    "</title></style><link rel=stylesheet href=//example.org>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;u&gt;&#60;u>",
    "javascript:alert(5)",
    "=1+1",
    "+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    " =1+1",
    "\u00a0=1+1",
    "\uff1d1+1",
    "=cmd|' /C calc'!A0",
    'quote " and "" two',
    "comma, semicolon; bar | tab\t.",
    "line\nbreak",
    "carriage\rreturn",
    "both\r\nof them",
    "separators \u2028 and \u2029 \x85 \x0b \x0c \x1c",
    "zero \x00 in it",
    f"colours {ESCAPE}",
    "\x9b31m one byte",
    "\u202egnol\u202c \u2066x\u2069 \u200f\u061c",
    "🙂 family 👨‍👩‍👧 e\u0301",
    "\ufffe \uffff",
    "L" * 900,
    "100% %s %(x)s {0} $HOME `id` $(id)",
    "../../etc/passwd",
    "C:\\path\\n",
    "'",
]
HALVES = ["lone \ud83d half", "\udfff"]  # of surrogate pairs, which no file in UTF-8 can hold
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FORMULA = re.compile(r"[\s\x00-\x20]*[=+\-@＝＋－＠]")
CONTENT_POLICY = "default-src 'none'"


def hostile_names(n: int = N) -> list[str]:
    """n different names, each hostile from its first letter on."""
    return [f"{HOSTILE[i % len(HOSTILE)]}{i // len(HOSTILE) or ''}" for i in range(n)]


# ------------------------------------------------------------------------------------------------ what is checked


class Shape(HTMLParser):
    """What a browser would build: tags with the names of their attributes, addresses, texts and scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.named: set[tuple[str, str]] = set()
        self.addresses: list[str] = []
        self.inside: list[str] = []
        self.scripts: dict[str, str] = {}
        self.said: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.named |= {(tag, name) for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        self.said += [value or "" for _, value in attrs]
        if tag == "script":
            self.scripts[dict(attrs).get("id") or f"script {len(self.scripts)}"] = ""
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self.inside[-1:] == ["script"]:
            self.scripts[[*self.scripts][-1]] += data
        elif self.inside[-1:] != ["style"]:
            self.said.append(data)

    def handle_comment(self, data):
        self.tags.append("a comment")


def check_page(text: str, like: str) -> Shape:
    """A page of the same tags as the one of friendly names, that asks for nothing and hides nothing."""
    Page(text)  # every tag is closed in order
    found, plain = Shape(text), Shape(like)
    assert set(found.tags) <= set(plain.tags)
    for tag in ("script", "style", "img", "link", "meta", "a comment", "table", "tr", "b", "u"):
        assert found.tags.count(tag) == plain.tags.count(tag), tag
    assert found.named <= plain.named
    assert all(address.startswith(("data:", "#")) for address in found.addresses)
    assert CONTENT_POLICY in text
    assert not HIDDEN.search(" ".join(found.said))
    for name, content in found.scripts.items():
        if name != "maps-data":
            assert content == plain.scripts[name]
    assert "49" not in re.findall(r"\d+", " ".join(part for part in found.said if "7 * 7" in part))
    return found


def read_rows(path: Path) -> list[list[str]]:
    """A table as the csv module reads it, strictly; bytes are UTF-8."""
    csv.field_size_limit(2**30)
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream, strict=True))


def check_table(path: Path, texts: tuple[str, ...]) -> list[dict[str, str]]:
    """Rows as wide as the heading; no cell of the columns of text, and no heading, starts a formula."""
    heading, *rows = read_rows(path)
    assert {len(row) for row in rows} == {len(heading)}
    assert not any(FORMULA.match(name) for name in heading)
    found = [dict(zip(heading, row, strict=True)) for row in rows]
    for row in found:
        for name, cell in row.items():
            if name in texts or name.startswith(("subgroup_", "'")):
                assert not FORMULA.match(cell), (path.name, name, cell)
            else:
                assert name == "nearest" or cell in ("True", "False") or np.isfinite(float(cell)), (name, cell)
    return found


def check_screen(done: Run, code: int = 0) -> None:
    assert done.code == code, done.err
    assert not HIDDEN.search(done.said), done.arguments
    assert "Traceback" not in done.said


def escaped(text: str) -> str:
    """With what no file can hold as an escape."""
    return re.sub("[\ud800-\udfff]", lambda found: found.group().encode("unicode_escape").decode(), text)


def stored(text: str) -> str:
    """How a table holds a text: an apostrophe before every formula, also where a tab or a line would end a cell."""
    starts = [0, *(place + 1 for place, sign in enumerate(text) if sign in ";|\t\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029")]
    marked = {place for place in starts if FORMULA.match(text[place:])}
    return escaped("".join("'" * (place in marked) + sign for place, sign in enumerate(text)))


# ------------------------------------------------------------------------------------------------ audits of it


KINDS: dict[str, tuple[str, ...]] = {
    "shown": ("--inputs", "text.npz", "--subgroups", "subgroups.csv", "--show-records"),
    "people": ("--inputs", "text.npz", "--groups", "people.npy", "--json"),
    "table": ("--inputs", "table.npz", "--show-records"),
}
EXPORTS = [("--to", kind, "--by", "<u>Ada</u>\n# one") for kind in ("json", "model-card")]
ODD = "fo ld\nline\u202eer \x1b[31m<b>&\"'=1+1"
FRIENDLY = [f"name {i:03d}" for i in range(N)]


def write_inputs(folder: Path, names: list[str]) -> None:
    arrays = made_arrays(N)
    np.savez(folder / "features.npz", **arrays, ids=np.array(names))
    np.save(folder / "people.npy", np.array([names[i // 2] for i in range(N)]))
    np.savez(folder / "text.npz", inputs=np.array([f"{name} red cat {i % 7}" for i, name in enumerate(names)]))
    cells = [name[:50] for name in names]
    np.savez(folder / "table.npz", inputs=np.c_[arrays["features"][:, 0].astype(str), cells])
    wards = {f"{names[k][:60]} {k}": [names[(k + i % 3) % N][:60] for i in range(N)] for k in range(0, len(HOSTILE), 3)}
    with (folder / "subgroups.csv").open("w", newline="", encoding="utf-8") as stream:
        lines = csv.writer(stream, quoting=csv.QUOTE_ALL)
        lines.writerows([[*wards], *zip(*wards.values(), strict=True)])


@pytest.fixture(scope="module")
def audits(tmp_path_factory) -> dict[str, list[Run]]:
    """Two folders, of hostile and of friendly names, in which every command was run; what each of them said."""
    said: dict[str, list[Run]] = {}
    for name, names in (("hostile", hostile_names()), ("friendly", FRIENDLY)):
        folder = tmp_path_factory.mktemp(name)
        write_inputs(folder, names)
        np.savez(folder / "signals.npz", **made_signals(N))
        (folder / "rules.toml").write_text(
            'schema = 1\n[[rule]]\nname = "<b>few</b> =1+1"\nmeasure = "measured_count"\nat_most = 0\n'
            '[[waiver]]\nrule = "<b>few</b> =1+1"\nowner = "<i>Ada</i>"\nexpires = 9999-01-01\nreason = "@SUM(A1)"\n'
        )
        source = ("audit", "--features", "features.npz", "--l2", 0.5)
        with working_in(folder):
            done = [run(*source, *more, "--out", kind) for kind, more in KINDS.items()]
            done += [
                run("validate", "shown", "--signals", "signals.npz"),
                run("gate", "shown", "rules.toml"),
                *(run("export", "shown", *more, "--gate", "rules.toml") for more in EXPORTS),
                run("index", *KINDS, "--out", "index.html"),
            ]
            if name == "hostile":
                done += [
                    run("canaries", "shown", "--out", "shown"),
                    run("weights", "shown", "--out", "shown"),
                    run("compare", "shown", "table", "--out", "shown"),
                    run("weights", "people", "--out", "people"),
                ]
        said[str(folder)] = done
    return said


@pytest.fixture(scope="module")
def hostile(audits) -> Path:
    return Path(next(iter(audits)))


@pytest.fixture(scope="module")
def friendly(audits) -> Path:
    return Path([*audits][1])


@pytest.mark.slow
def test_no_command_minds_and_no_screen_is_touched(audits):
    for done in itertools.chain.from_iterable(audits.values()):
        check_screen(done)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_page_stays_whole(hostile, friendly, kind):
    for name in ("report.html", "summary.html"):
        texts = [(folder / kind / name).read_text(encoding="utf-8") for folder in (hostile, friendly)]
        found = check_page(*texts)
        if name == "summary.html":
            continue
        maps = json.loads(found.scripts["maps-data"])
        assert not set("<>&\u2028\u2029") & set(found.scripts["maps-data"])
        assert maps["root_id"]
        shown = " ".join(found.said)
        for text in ("<script>alert(1)</script>", "{{ 7 * 7 }}{% raw %}", "=cmd|' /C calc'!A0", "\\u202egnol\\u202c"):
            assert text in shown
        assert "L" * 1_000 not in shown
    check_page(*((folder / "index.html").read_text(encoding="utf-8") for folder in (hostile, friendly)))
    if "--show-records" in KINDS[kind]:
        assert 'class="text held"' in (hostile / kind / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tables_hold_what_they_were_given_and_no_formula(hostile, kind):
    rows = check_table(hostile / kind / "scores.csv", ("id", "nearest"))
    assert [row["id"] for row in rows] == [stored(name) for name in hostile_names()]
    if kind == "people":
        rows = check_table(hostile / kind / "people.csv", ("id",))
        assert [row["id"] for row in rows] == [stored(name) for name in np.unique(hostile_names()[: N // 2])]


@pytest.mark.slow
def test_the_other_tables_hold_no_formula(hostile):
    known = {stored(name) for name in hostile_names()}
    for name in ("canaries.csv", "weights.csv", "changes.csv"):
        assert {row["id"] for row in check_table(hostile / "shown" / name, ("id",))} <= known
    assert len(read_rows(hostile / "shown" / "weights.csv")) == N + 1
    rows = read_rows(hostile / "shown" / "validation.csv")
    assert len({len(row) for row in rows}) == 1
    assert not any(FORMULA.match(row[0]) for row in rows)


@pytest.mark.slow
def test_json_and_toml_are_read_again(hostile):
    for kind in KINDS:
        found = json.loads((hostile / kind / "audit.json").read_text(encoding="utf-8"))
        assert found["rows"] == (N // 2 if kind == "people" else N)
        config = tomllib.loads((hostile / kind / "config.toml").read_text(encoding="utf-8"))
        assert config == found["provenance"]["config"]
        told = json.loads((hostile / kind / "summary.json").read_text(encoding="utf-8"))
        assert told["rows"] == found["rows"]
    gate = json.loads((hostile / "shown" / "gate.json").read_text(encoding="utf-8"))
    assert gate["rules"][0]["waived_by"] == "<i>Ada</i>"
    table = ScoreTable.load(hostile / "shown")
    assert [name.rstrip("\0") for name in hostile_names()] == table.ids.tolist()


# ------------------------------------------------------------------------------------------------ one at a time


def table_of(texts: list[str], headings: list[str]) -> ScoreTable:
    """Each text as an id, a class, a value below every heading, and in the metadata."""
    n = len(texts)
    scores = {"newton": np.arange(n, 0.0, -1.0), "loss": np.arange(1.0, n + 1), "leverage": np.full(n, 0.5)}
    names = np.array(texts)
    attributes = {"class": names, **{f"subgroup_{text}": names for text in headings}}
    return ScoreTable(scores, names, {text: text for text in texts} | {"list": texts}, attributes)


@pytest.mark.parametrize(
    ("texts", "headings"),
    [
        (HOSTILE, HOSTILE[::12]),
        (HALVES, ["of 0", "of 1"]),  # no file can have a heading of halves
        pytest.param(HOSTILE, HOSTILE, marks=pytest.mark.slow),
    ],
    ids=["hostile", "halves", "hostile headings"],
)
def test_every_text_as_a_name_a_heading_a_value_and_a_record(tmp_path, texts, headings):
    plain = [f"name {i}" for i in range(len(texts))]
    table, friendly = table_of(texts, headings), table_of(plain, [f"of {i}" for i in range(len(headings))])
    check_page(render(table), render(friendly))
    check_page(*(summary_pages(each)["summary.html"] for each in (table, friendly)))
    json.loads(summary_pages(table)["summary.json"])
    shown = "".join(contents_of(texts, np.arange(len(texts))).held) + repr(table)
    assert not HIDDEN.search(shown)
    table.save(tmp_path / "audit")
    rows = check_table(tmp_path / "audit" / "scores.csv", ("id", "class"))
    assert [row["id"] for row in rows] == [stored(text) for text in texts]
    assert [row["class"] for row in rows] == [stored(text) for text in texts]
    assert ScoreTable.load(tmp_path / "audit").ids.tolist() == texts
    json.loads((tmp_path / "audit" / "audit.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text",
    [
        "L" * 2_100_000,
        pytest.param("L" * 10_000_000, marks=pytest.mark.slow),
        pytest.param("<b>" * 3_300_000, marks=pytest.mark.slow),
    ],
    ids=["letters", "ten megabytes", "markup"],
)
def test_megabytes_in_one_text_do_not_fill_the_page(text):
    columns = {"newton": np.array([2.0, 1.0]), "loss": np.array([1.0, 2.0]), "leverage": np.array([0.5, 0.6])}
    names = np.array([text, "b"])
    attributes = {"class": names, "others_say": names, f"subgroup_{text}": names}
    refused("ids: expected names of at most 1,000 letters, got one of [0-9,]+ in row 0", ScoreTable, columns, names)
    table = ScoreTable(columns, np.array(["a", "b"]), {text: text}, attributes)
    page = render(table)
    assert len(page.encode()) < 2_000_000
    assert len(summary_pages(table)["summary.html"]) < 100_000
    assert len(repr(table)) < 10_000
    assert len(contents_of([text], np.array([0])).held[0]) <= 400
    Page(page)


@pytest.mark.parametrize("where", ["ids", "groups", "inputs"])
def test_halves_of_letters_go_through_an_audit(tmp_path, where):
    names = {key: np.array([f"{key} {i}" for i in range(40)]) for key in ("ids", "groups", "inputs")}
    names[where] = np.array([f"{text}{HALVES[i % 2]}" for i, text in enumerate(names[where])])
    np.savez(tmp_path / "features.npz", **made_arrays(40), ids=names["ids"])
    np.save(tmp_path / "people.npy", names["groups"])
    np.savez(tmp_path / "text.npz", inputs=names["inputs"])
    more = ("--groups", "people.npy") if where == "groups" else ("--inputs", "text.npz")
    with working_in(tmp_path), without_pictures():
        source = ("audit", "--features", "features.npz", *more, "--show-records")
        check_screen(run(*source, "--out", "audit"))
        check_screen(run("report", "audit"))
    found = Page((tmp_path / "audit" / "report.html").read_text(encoding="utf-8"))
    assert "\\ud83d half" in found.text
    read_rows(tmp_path / "audit" / "scores.csv")


# ------------------------------------------------------------------------------------------------ names of files


@pytest.mark.parametrize(
    "name", [ODD, pytest.param(os.fsdecode(b"latin \xe9"), marks=pytest.mark.slow)], ids=["odd", "latin"]
)
def test_hostile_names_of_files_and_folders(tmp_path, name):
    np.savez(tmp_path / f"{name}.npz", **made_arrays(40))
    (tmp_path / f"{name}.txt").write_text("\n".join(str(i // 2) for i in range(40)))
    out = f"./{name}"
    with working_in(tmp_path), without_pictures():
        groups = ("--groups", f"./{name}.txt")
        check_screen(run("audit", "--features", f"./{name}.npz", *groups, "--out", out))
        check_screen(run("canaries", out, "-k", 3, "--out", out))
        check_screen(run("weights", out, "--out", out, "--json"))
        check_screen(run("compare", out, out, "--top", 1))
        check_screen(run("report", out))
        check_screen(run("index", out, "--out", f"./{name}.html"))
        check_screen(run("audit", "--features", f"./{name}.npz", "--l2", 3, "--out", out), code=2)
    page = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
    assert not HIDDEN.search(" ".join(Shape(page).said))
    Page(page)
    Page((tmp_path / name / "report.html").read_text(encoding="utf-8"))
    found = json.loads((tmp_path / name / "audit.json").read_text(encoding="utf-8"))
    saved = tomllib.loads((tmp_path / name / "config.toml").read_text(encoding="utf-8"))
    given = found["provenance"]["config"]
    assert saved == {key: escaped(value) if isinstance(value, str) else value for key, value in given.items()}
    assert given["features"] == f"./{name}.npz"
    with working_in(tmp_path):
        check_screen(run("purge", out))
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("audit", "--features", f"{ESCAPE}.npz"),
        ("audit", "--features", "features.npz", "--inputs", f"{ESCAPE}.npz"),
        ("audit", "--features", "features.npz", "--groups", f"{ESCAPE}.txt"),
        ("audit", "--features", "features.npz", "--subgroups", f"{ESCAPE}.csv"),
        ("audit", "--features", "features.npz", "--config", f"{ESCAPE}.toml"),
        ("audit", "--features", "features.npz", "--scores", ESCAPE),
        ("audit", "--features", "features.npz", "--gate", f"{ESCAPE}.toml"),
        ("audit", "--features", "features.npz", "--config", f"by={ESCAPE}"),
        ("audit", "--features", "features.npz", f"--{ESCAPE}"),
        ("audit", "--model", f"{ESCAPE}:model", "--data", "os:getcwd"),
        ("audit", "--features", "headings.npz", "--subgroups", "headings.csv"),
        ("report", ESCAPE),
        ("purge", f"\u202e{ESCAPE}"),
        ("index", ESCAPE),
        ("validate", ESCAPE),
        ("compare", ESCAPE, ESCAPE),
        ("lood", f"{ESCAPE}.npz"),
        ("theory", "tradeoff", "--h", ESCAPE),
        (ESCAPE,),
    ],
    ids=lambda arguments: re.sub(r"[^a-z. -]", "", " ".join(arguments)),
)
def test_an_error_repeats_no_escape(tmp_path, arguments):
    np.savez(tmp_path / "features.npz", **made_arrays(20))
    np.savez(tmp_path / "headings.npz", **made_arrays(20))
    (tmp_path / "headings.csv").write_text(f"{ESCAPE}\n1\n")
    with working_in(tmp_path):
        done = run(*arguments)
    check_screen(done, code=2)
    assert done.out == ""


def test_keys_of_a_file_repeat_no_escape(tmp_path):
    np.savez(tmp_path / "keys.npz", **made_arrays(20), **{f"extra {ESCAPE}": np.zeros(3)})
    np.savez(tmp_path / "none.npz", **{f"extra {ESCAPE}": np.zeros(3)})
    with working_in(tmp_path), without_pictures():
        check_screen(run("audit", "--features", "keys.npz", "--out", "audit"))
        check_screen(run("audit", "--features", "none.npz"), code=2)
        check_screen(run("audit", "--features", "keys.npz", "--inputs", "none.npz"), code=2)
        check_screen(run("validate", "audit", "--signals", "none.npz"), code=2)


# ------------------------------------------------------------------------------------------------ the index of others


@pytest.mark.parametrize("hidden", ["\u202e", "\x1b[2J", "\x00", "</td></tr></table><script>alert(1)</script>"])
def test_an_index_of_summaries_that_others_wrote(tmp_path, hidden):
    made = json.loads(summary_pages(audit(made_head("classes", n=40)))["summary.json"])
    for name, text in (("friendly", "words"), ("hostile", hidden)):
        changed = made | {"statement": text, "date": text, "ranked_by": text, "access": text, "rows": text}
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(changed))
    check_page(*(index_page([tmp_path / name]) for name in ("hostile", "friendly")))


@pytest.mark.parametrize("content", ["{}", "[]", "null", "{", '{"schema": "giveaway.summary/1"}', "\udcff"])
def test_an_index_of_a_broken_summary_is_refused_in_a_line(tmp_path, content):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "summary.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with working_in(tmp_path):
        check_screen(run("index", "broken"), code=2)


# ------------------------------------------------------------------------------------------------ the smallest audits


def small(n: int, kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    features = rng.normal(size=(n, 1 if kind == "one feature" else 3))
    if kind == "values":
        return {"features": features, "outputs": rng.normal(size=(n, 1)), "targets": rng.normal(size=n)}
    targets = np.zeros(n, dtype=int) if kind == "one class" else np.arange(n) % 2
    return {"features": features, "outputs": rng.normal(size=(n, 2)), "targets": targets}


@pytest.mark.parametrize(
    ("n", "kind", "more"),
    [
        pytest.param(2, "classes", ("--show-records",), marks=pytest.mark.slow),
        pytest.param(2, "classes", ("--inputs", "inputs.npz", "--show-records"), marks=pytest.mark.slow),
        (2, "classes", ("--inputs", "inputs.npz", "--groups", "people.txt")),
        (2, "one feature", ("--inputs", "inputs.npz", "--scores", "default,predicted_success")),
        pytest.param(2, "values", ("--inputs", "inputs.npz"), marks=pytest.mark.slow),
        (2, "values", ("--groups", "people.txt")),
        pytest.param(3, "classes", ("--groups", "people.txt", "--inputs", "text.npz"), marks=pytest.mark.slow),
        pytest.param(3, "one feature", ("--inputs", "text.npz", "--show-records"), marks=pytest.mark.slow),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_two_records_make_a_page(tmp_path, n, kind, more):
    np.savez(tmp_path / "features.npz", **small(n, kind))
    np.savez(tmp_path / "inputs.npz", inputs=np.arange(2.0 * n).reshape(n, 2) ** 2)
    np.savez(tmp_path / "text.npz", inputs=np.array([f"words {'of ' * i}{i}" for i in range(n)]))
    (tmp_path / "people.txt").write_text("".join(f"person {i % 2}\n" for i in range(n)))
    with working_in(tmp_path):
        check_screen(run("audit", "--features", "features.npz", "--l2", 0.1, *more, "--out", "audit"))
        check_screen(run("index", "audit"))
    for name in ("report.html", "summary.html"):
        text = (tmp_path / "audit" / name).read_text(encoding="utf-8")
        page = Page(text)
        assert f"trained on {n if name == 'report.html' else 'fewer than 10'} records" in page.text
        assert "This is a ranking: it says where to look first, not how many are exposed." in page.text
        assert "Traceback" not in text
        assert "could not be made" not in page.text
        assert not re.search(r"\b(nan|NaN|inf)\b", page.text)
    listed = (tmp_path / "audit" / "report.html").read_text(encoding="utf-8").split('<table id="listing"')[1]
    assert listed.split("</table>")[0].count("<tr data-row=") == (2 if "--groups" in more else n)


# ------------------------------------------------------------------------------------------------ parts that fail


@pytest.fixture(scope="module")
def audited(tmp_path_factory) -> Iterator[tuple[Path, str]]:
    """A validated audit, and its report; pictures are left out of all pages."""
    folder = tmp_path_factory.mktemp("audited")
    write_inputs(folder, FRIENDLY)
    np.savez(folder / "signals.npz", **made_signals(N))
    with working_in(folder), without_pictures():
        source = ("audit", "--features", "features.npz", "--l2", 0.5)
        check_screen(run(*source, *KINDS["shown"], "--out", "shown"))
        check_screen(run("validate", "shown", "--signals", "signals.npz"))
        yield folder / "shown", (folder / "shown" / "report.html").read_text(encoding="utf-8")


SECTIONS = ("exposed", "groups", "basis", "details", "review")
PARTS = {"maps": "details", "breakdowns": "groups", "draw_roc": "details"}
FAILED = "This section could not be made (ZeroDivisionError: &lt;script&gt;alert(6)&lt;/script&gt;"


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError(f"<script>alert(6)</script>{ESCAPE}")


def sections(text: str) -> dict[str, str]:
    """Every section's text by its place in the page."""
    text = text.split("<script")[0]
    places = [text.index(f'<h2 id="{name}"') for name in SECTIONS]
    return {name: text[start:end] for name, start, end in zip(SECTIONS, places, [*places[1:], None], strict=True)}


@pytest.mark.parametrize("part", [*PARTS, "all of them"])
def test_a_part_that_fails_leaves_a_note_in_its_place(audited, monkeypatch, part):
    folder, before = audited
    failing = [part] if part in PARTS else [*PARTS]
    for name in failing:
        monkeypatch.setattr(f"giveaway.reporting.{'validation' if name == 'draw_roc' else 'report'}.{name}", broken)
    text = render(main_table(folder), extras=ReportExtras.load(folder), measured=StoredValidation.load(folder))
    page = Page(text)
    assert "Traceback" not in text
    assert not HIDDEN.search(page.text)
    assert text.count("<script") == before.count("<script") - 2 * ("maps" in failing)
    whole, now = sections(before), sections(text)
    for name in SECTIONS:
        assert now[name].count(FAILED) == sum(PARTS[each] == name for each in failing), name
        # without a map, rows have no button to show them on it
        changed = {PARTS[each] for each in failing} | ({"exposed"} if "maps" in failing else set())
        assert now[name] == whole[name] or name in changed, name
    assert now["exposed"].count("<tr data-row=") == N
    assert "At least" in page.text


def test_a_part_of_the_summary_that_fails_leaves_both_pages(audited, tmp_path, monkeypatch):
    folder = shutil.copytree(audited[0], tmp_path / "audit")
    for place in ("report", "pages"):
        monkeypatch.setattr(f"giveaway.reporting.{place}.breakdowns", broken)
    done = run("report", folder)
    check_screen(done)
    for name in ("report.html", "summary.html"):
        assert "At least" in Page((folder / name).read_text(encoding="utf-8")).text
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8"))["rows"] == N
