"""Nothing is called safe, anonymous, compliant or passed, and no count comes from anything but a measured attack."""

from __future__ import annotations

import ast
import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest

from giveaway.cli import cli
from tests.reporting.test_report import Page
from tests.test_hostile import Shape
from tests.test_leaks import RULES, Run, made_arrays, made_signals, run, working_in

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "giveaway"
NEVER = re.compile(
    r"\b(safe|safely|safer|anonymous|anonymously|(?:de-?)?anonymi[sz](?:e[ds]?|ing|ation)|compliant|passed|"
    r"(?:no|zero|without) risk|risk-free)\b",
    re.IGNORECASE,
)
ALLOWED = {  # literals that need one of the words, and why
    "pip install giveaway[safe]": "the name of an extra in pyproject.toml"
}
# A number of rows, or of exposed ones, and a verb that makes it a finding.
COUNTED = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b\d[\d,.]*(?: %)?(?: of (?:the |all )?\d[\d,]*| of the)? (?:records|people|rows|members)\b[^.;:]{0,40}"
        r"\b(?:are|is|were|was|have been|seem|look|count as|found)\b[^.;:]{0,30}"
        r"\b(?:exposed|vulnerable|at risk|memori[sz]ed|identifiable|outliers?|recognised)\b",
        r"\b\d[\d,.]* (?:exposed|vulnerable|memori[sz]ed|identifiable|outlying) (?:records|people|rows)\b",
        r"\bat least \d[\d,]* (?:of \d[\d,]* )?(?:records|people|rows)\b",
        r"\b(?:exposed|vulnerable|at risk|outliers?)\s*[:=]\s*\d",
    )
]


def never_said(text: str) -> list[str]:
    """Every place where one of the words stands, with what is around it."""
    return [text[max(0, found.start() - 40) : found.end() + 40] for found in NEVER.finditer(text)]


def counted(text: str) -> list[str]:
    """Every place that states how many are exposed."""
    return [found.group() for pattern in COUNTED for found in pattern.finditer(" ".join(text.split()))]


def test_the_search_knows_the_words():
    for words in ("This is SAFE.", "anonymised data", "Compliant with", "the gate passed", "there is no risk", "Safe,"):
        assert never_said(words)
    low = "A low rank is not evidence of safety, and this is no finding on anonymity or compliance."
    for words in (low, "two passes", "keyed pseudonyms", "safetensors", "unsafe-inline", "pseudonymized", "passing"):
        assert not never_said(words.replace("unsafe-", ""))


def test_the_search_knows_a_count():
    for words in (
        "At least 12 of 100 records are exposed under this training recipe",
        "12 of 100 records were found to be at risk",
        "3 exposed records",
        "1,200 people seem vulnerable",
        "5 % of the records are memorized",
        "outliers: 7",
        "at least 3 records",
    ):
        assert counted(words), words
    for words in (
        "The 10 most exposed of 100 records, by fused",
        "Ranking only: 100 records, ordered by estimated exposure to an attacker",
        "so no number of exposed records is stated",
        "Among the 5 most exposed (5 %). 1 × is an even share",
        "Without the 5 most exposed (5 %), 2 records that newton ranked lower enter the top 5 of the rest",
    ):
        assert not counted(words), words


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module, docstrings and the pieces of f-strings among them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("package", sorted({path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")}))
def test_no_string_of_the_source_says_it(package):
    place = SOURCE / package
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {words}"
        for path in ([place] if place.is_file() else sorted(place.rglob("*.py")))
        for line, text in literals(path)
        if text not in ALLOWED
        for words in never_said(text)
    ]
    assert found == []


def test_what_is_allowed_is_still_needed():
    held = {text for path in SOURCE.rglob("*.py") for _, text in literals(path)}
    assert set(ALLOWED) <= held


def test_no_template_says_it():
    pages = [path for path in (SOURCE / "reporting" / "templates").iterdir() if path.suffix in (".html", ".js", ".css")]
    assert len(pages) >= 5
    for path in pages:
        assert never_said(path.read_text(encoding="utf-8").replace("'unsafe-inline'", "")) == [], path.name


def test_no_help_says_it():
    def walk(command: click.Command, name: str) -> Iterator[str]:
        yield command.get_help(click.Context(command, info_name=name))
        for inner, sub in getattr(command, "commands", {}).items():
            yield from walk(sub, f"{name} {inner}")

    helps = list(walk(cli, "giveaway"))
    assert len(helps) > 12
    assert [words for text in helps for words in never_said(text)] == []


def test_neither_the_readme_nor_the_documentation_says_it():
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    found = {str(path.relative_to(ROOT)): never_said(path.read_text(encoding="utf-8")) for path in files}
    assert {name: words for name, words in found.items() if words} == {}


N = 100
WAIVER = '[[waiver]]\nrule = "few exposed"\nowner = "Ada"\nexpires = 9999-01-01\nreason = "a fix is on its way"\n'
MORE = ("--access", "labels", "--scores", "default,predicted_success")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("words")
    rng = np.random.default_rng(3)
    np.savez(place / "features.npz", **made_arrays(N), ids=np.array([f"row-{i}" for i in range(N)]))
    np.savez(place / "records.npz", inputs=rng.normal(size=(N, 3)), targets=np.arange(N) % 2)
    np.savez(place / "signals.npz", **made_signals(N, models=10))
    (place / "people.txt").write_text("".join(f"person {i // 2}\n" for i in range(N)))
    (place / "subgroups.csv").write_text("ward\n" + "".join(f"{'ab'[i % 2]}\n" for i in range(N)))
    for name, text in (("met", RULES.format(at_most=N)), ("missed", RULES.format(at_most=0))):
        (place / f"{name}.toml").write_text(text)
    (place / "waived.toml").write_text(RULES.format(at_most=0) + WAIVER)
    return place


@pytest.fixture(scope="module")
def unmeasured(folder) -> list[Run]:
    """Audits that were never validated."""
    source = ("audit", "--features", "features.npz", "--l2", 0.5, "--config", "map=pca")
    with working_in(folder):
        done = [
            run(*source, "--inputs", "records.npz", "--subgroups", "subgroups.csv", *MORE, "--out", "records"),
            run(*source, "--groups", "people.txt", "--json", "--out", "people"),
            run("lood", "records.npz", "--kernel", "rbf", "--out", "lood"),
            run("canaries", "records", "--out", "records"),
            run("weights", "records", "--out", "records"),
            run("compare", "records", "records", "--out", "records"),
            run("compare", "records", "records", "--json"),
            run("report", "records"),
            run("index", "records", "people", "--out", "index.html"),
        ]
    assert [each.code for each in done] == [0] * len(done), [each.err for each in done]
    return done


@pytest.fixture(scope="module")
def pages(folder, unmeasured) -> dict[str, str]:
    """What the unmeasured audits wrote, as text, before anything was measured."""
    names = ("records/report.html", "records/summary.html", "people/report.html", "people/summary.html", "index.html")
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


@pytest.fixture(scope="module")
def measured(folder, pages) -> list[Run]:
    """The same with shadow models, gates, and the theory."""
    with working_in(folder):
        done = [
            run("validate", "records", "--signals", "signals.npz", "--gate", "met.toml"),
            run("validate", "records", "--signals", "signals.npz", "--target-model", 0, "--target-model", 1, "--json"),
            *(run("gate", "records", f"{name}.toml") for name in ("met", "missed", "waived")),
            run("gate", "records", "missed.toml", "--json"),
            run("report", "records"),
            run("index", "records", "people", "--out", "measured.html"),
            run("theory", "tradeoff", "--h", "0.1,0.5"),
            run("theory", "gap", "--leverage", "1,5", "--error", "1", "--freedom", "50", "--draws", "100"),
            run("theory", "privacy", "--h", "0.3"),
            run("purge", "lood"),
        ]
    return done


def visible(text: str) -> str:
    """What a reader of a page meets: text, titles, words in pictures, and what the maps show; no third party's code."""
    shape = Shape(text)
    drawn = [base64.b64decode(a.split(",", 1)[1]).decode() for a in shape.addresses if a.startswith("data:image/svg")]
    said = [part.replace("'unsafe-inline'", "") for part in shape.said]
    return "\n".join([*said, *drawn, shape.scripts.get("maps-data", "")])


@pytest.mark.slow
@pytest.mark.slow
def test_no_command_says_it(unmeasured, measured):
    codes = {"validate": 0, "report": 0, "index": 0, "theory": 0, "purge": 0}
    for done in measured:
        assert done.code in ((0, 3) if done.arguments[0] == "gate" else (codes[done.arguments[0]],)), done.err
    assert [done.code for done in measured[2:6]] == [0, 3, 0, 3]
    for done in (*unmeasured, *measured):
        assert never_said(done.said) == [], done.arguments


@pytest.mark.slow
@pytest.mark.slow
def test_no_file_says_it(folder, pages, measured):
    written = [path for name in ("records", "people") for path in (folder / name).iterdir()]
    written += [folder / "index.html", folder / "measured.html"]
    kinds = {path.suffix for path in written}
    assert {".html", ".json", ".csv", ".md", ".toml", ".npz", ".png"} == kinds
    for path in written:
        if path.suffix == ".html":
            assert never_said(visible(path.read_text(encoding="utf-8"))) == [], path.name
        elif path.suffix not in (".npz", ".png"):
            assert never_said(path.read_text(encoding="utf-8")) == [], path.name
    for name, text in pages.items():
        assert never_said(visible(text)) == [], name


@pytest.mark.slow
def test_without_an_attack_no_page_says_it_or_states_a_count(pages):
    for name, text in pages.items():
        words = Page(text).text
        assert counted(words) == [], name
        assert "no number of exposed records is stated" in words
        assert counted(visible(text)) == [], name
        assert never_said(visible(text)) == [], name


@pytest.mark.slow
def test_without_an_attack_no_command_says_it_or_states_a_count(unmeasured):
    for done in unmeasured:
        assert counted(done.said) == [], done.arguments
        assert never_said(done.said) == [], done.arguments
    people = json.loads(unmeasured[1].out)
    assert "no number of exposed records is stated" in people["statement"]


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return {*map(str, value)}.union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


@pytest.mark.slow
@pytest.mark.slow
def test_the_count_and_its_key_are_there_only_once_measured(folder, pages, measured):
    people = json.loads((folder / "people" / "summary.json").read_text(encoding="utf-8"))
    assert people["measured"] is False
    assert not {"at_least_exposed", "validation", "lira", "agreement"} & keys_of(people)
    records = json.loads((folder / "records" / "summary.json").read_text(encoding="utf-8"))
    assert records["measured"] is True
    assert "at_least_exposed" in keys_of(records)
    for name in ("report", "summary"):
        assert counted(Page((folder / "records" / f"{name}.html").read_text(encoding="utf-8")).text)
    assert "not measured" in Page(pages["index.html"]).text
    assert counted(measured[0].out)
