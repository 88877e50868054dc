"""Nothing is called safe, anonymous, compliant or passed, and no count comes from anything but a measured attack."""

import ast
import base64
import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from giveaway.cli import cli
from tests.every_command import AUDITS
from tests.reporting.test_report import Page
from tests.test_hostile import Shape

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "giveaway"
NEVER = re.compile(
    r"\b(safe|safely|safer|anonymous|anonymously|(?:de-?)?anonymi[sz](?:e[ds]?|ing|ation)|compliant|passed|"
    r"(?:no|zero|without) risk|risk-free)\b",
    re.IGNORECASE,
)
# Sentences that readers stumbled over; docs/reading-the-report.md says what stands in their place.
STUMBLED_OVER = re.compile(
    r"which is no share of records|told with over|balanced success of an attack|worth more than the measured|"
    r"what they would follow from|are not told\b|stands behind this|pulls? the head|not shown to be hidden",
    re.IGNORECASE,
)
ALLOWED: dict[str, str] = {}  # literals that need one of the words, and why
# A number of rows, or of exposed ones, and a verb that makes it a finding.
COUNTED = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b\d[\d,.]*(?: %)?(?: of (?:the |all )?\d[\d,]*| of the)? (?:records|people|rows|members)\b[^.;:]{0,40}"
        r"\b(?:are|is|were|was|have been|seem|look|count as|found)\b[^.;:]{0,30}"
        r"\b(?:exposed|vulnerable|at risk|memori[sz]ed|identifiable|outliers?|recogni[sz]ed)\b",
        r"\b\d[\d,.]* (?:exposed|vulnerable|memori[sz]ed|identifiable|outlying) (?:records|people|rows)\b",
        r"\bat least \d[\d,]* (?:of \d[\d,]* )?(?:records|people|rows)\b",
        r"\b(?:exposed|vulnerable|at risk|outliers?)\s*[:=]\s*\d",
    )
]


def never_said(text: str) -> list[str]:
    """Every place where one of the words or sentences stands, with what is around it."""
    found = itertools.chain(NEVER.finditer(text), STUMBLED_OVER.finditer(" ".join(text.split())))
    return [one.string[max(0, one.start() - 40) : one.end() + 40] for one in found]


def counted(text: str) -> list[str]:
    """Every place that states how many are exposed."""
    return [found.group() for pattern in COUNTED for found in pattern.finditer(" ".join(text.split()))]


def test_the_search_knows_the_words():
    for words in ("This is SAFE.", "anonymised data", "Compliant with", "the gate passed", "there is no risk", "Safe,"):
        assert never_said(words)
    low = "A low rank is not evidence of safety, and this is no finding on anonymity or compliance."
    for words in (low, "two passes", "keyed pseudonyms", "safetensors", "unsafe-inline", "pseudonymized", "passing"):
        assert not never_said(words.replace("unsafe-", ""))


@pytest.mark.parametrize(
    "sentence",
    [
        "training took away 93.1 % of that error, which is no share of records",
        "membership told with over 70 % balanced success",
        "worth more than the measured shadow models",
        "Counts below 10, and what they would follow from, are not told",
        "What stands behind this",
        "pulls the head",
        "A record that is not counted is not shown to be hidden",
    ],
)
def test_the_search_knows_the_sentences_that_nobody_understood(sentence):
    assert never_said(sentence)


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
        "The 10 of 100 records ranked highest, by fused",
        "Ranking only: 100 records, ordered by estimated exposure to an attacker",
        "so no number of exposed records is stated",
        "Among the 5 most exposed (5 %). 1 × is an even share",
        "Without the 5 most exposed (5 %), 2 records that newton ranked lower enter the top 5 of the rest",
    ):
        assert not counted(words), words


@cache
def literals(path: Path) -> list[tuple[int, str]]:
    """Every string of a module, docstrings and the pieces of f-strings among them."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [(one.lineno, one.value) for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)]


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


def visible(text: str) -> str:
    """What a reader of a page meets: text, titles, words in pictures, and what the maps show; no third party's code."""
    shape = Shape(text)
    drawn = [base64.b64decode(a.split(",", 1)[1]).decode() for a in shape.addresses if a.startswith("data:image/svg")]
    said = [part.replace("'unsafe-inline'", "") for part in shape.said]
    return "\n".join([*said, *drawn, shape.scripts.get("maps-data", "")])


MEASURED = ("records", "people")  # by shadow models; the other audits were not


@pytest.mark.slow
def test_no_command_and_no_file_says_it(world):
    for done in itertools.chain.from_iterable(world.runs.values()):
        assert never_said(done.said) == [], done.arguments
    kinds = {path.suffix for path in world.written()}
    assert {".html", ".json", ".csv", ".md", ".toml", ".npz", ".png"} <= kinds
    for path in world.written():
        if path.suffix not in (".npz", ".npy", ".png", ""):
            text = path.read_text(encoding="utf-8")
            assert never_said(visible(text) if path.suffix == ".html" else text) == [], path


@pytest.mark.slow
def test_without_an_attack_nothing_states_a_count(world):
    without = [name for name in (*AUDITS, "later", "frame", "frame-shown") if name not in MEASURED]
    for name in without:
        for page in ("report.html", "summary.html"):
            text = (world.folder / name / page).read_text(encoding="utf-8")
            assert counted(Page(text).text) + counted(visible(text)) == [], name
            assert "no number of exposed records is stated" in Page(text).text
        summary = json.loads((world.folder / name / "summary.json").read_text(encoding="utf-8"))
        assert summary["measured"] is False
        assert not {"at_least_exposed", "validation", "lira", "agreement"} & keys_of(summary)
    before = [done for name in world.runs for done in world.runs[name] if done.arguments[0] not in ("validate", "gate")]
    for done in before:
        assert counted(done.said) == [] or done.arguments[0] in ("report", "index"), done.arguments
    assert "no number of exposed records is stated" in json.loads(world.runs["people"][0].out)["statement"]
    assert "not measured" in Page((world.folder / "index.html").read_text(encoding="utf-8")).text


@pytest.mark.slow
def test_once_measured_the_count_is_stated(world):
    records = json.loads((world.folder / "records" / "summary.json").read_text(encoding="utf-8"))
    assert records["measured"] is True
    assert "at_least_exposed" in keys_of(records)
    for name in ("report", "summary"):
        assert counted(Page((world.folder / "records" / f"{name}.html").read_text(encoding="utf-8")).text)
    (validated,) = [done for done in world.runs["records"] if done.arguments[0] == "validate"]
    assert counted(validated.out)


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return {*map(str, value)}.union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()
