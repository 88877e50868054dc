"""What the pages of docs/ show works as it stands: Python runs, commands and options exist."""

import importlib.util
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from giveaway.cli import cli
from giveaway.cli.options import RARE
from giveaway.findings.gate import read_rules

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", flags=re.DOTALL | re.MULTILINE)


def _blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def _name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "python")], ids=_name)
def test_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All blocks of a page, in order and in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    text, names = page.read_text(encoding="utf-8"), dict[str, Any](__name__=page.stem)
    with warnings.catch_warnings():  # a page may set filters of its own
        for found in FENCE.finditer(text):
            if found[1] == "python":
                capsys.readouterr()
                lines_before = text.count("\n", 0, found.start(2))  # so that a traceback names the page's line
                exec(compile("\n" * lines_before + found[2], str(page), "exec"), names)
            elif found[1] == "text":  # what the block before it prints
                _check_printed(capsys.readouterr().out, found[2])
    if page.name == "dp.md":
        _check_privacy(names)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_of_a_page_exist(page: Path) -> None:
    for line in _command_lines(page):
        _check_command(line)


def test_a_command_that_does_not_exist_is_noticed() -> None:
    _check_command("giveaway theory tradeoff --h 0.1,0.5 --figure x.png")
    _check_command("giveaway audit ... --show-records   # anything")
    _check_command("giveaway audit --config probes=64 --config options.toml")
    unknown = ("giveaway adit", "giveaway audit --leyer x", "giveaway audit --config prob=64", "giveaway theory --h 1")
    for wrong in (*unknown, "giveaway report", "giveaway"):
        with pytest.raises(AssertionError, match=r"no such|argument"):
            _check_command(wrong)


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    for page in PAGES:
        kinds = {language for language, _ in FENCE.findall(page.read_text(encoding="utf-8"))}
        assert kinds <= {"", "python", "console", "toml", "text", "yaml"}, _name(page)


def test_rules_of_the_gate_page_are_rules(tmp_path: Path) -> None:
    (text,) = _blocks(DOCS / "gate.md", "toml")
    (tmp_path / "RULE.toml").write_text(text, encoding="utf-8")
    found = read_rules(tmp_path / "RULE.toml")
    assert [rule.measure for rule in found.rules] == [
        "measured_count",
        "predicted_success",
        "predicted_share",
    ]
    assert len(found.waivers) == 1


def test_commands_page_is_up_to_date() -> None:
    written = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    assert written == _hooks().commands_page(), "run: python docs/hooks.py"


def test_commands_page_has_every_command_and_option() -> None:
    written = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    for path, command in _all_commands(cli, "giveaway"):
        section = written.split(f"\n## {path}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            for name in (*parameter.opts, *parameter.secondary_opts):
                shown = f"`{name}`" if isinstance(parameter, click.Option) else parameter.metavar or name.upper()
                assert shown in section, f"{path}: {name}"


def _check_printed(printed: str, shown: str) -> None:
    """The same words; numbers may differ as far as another machine's arithmetic makes trained models differ."""
    number = re.compile(r"\d+(?:\.\d+)?")
    assert number.sub("#", printed).split() == number.sub("#", shown).split()
    for new, old in zip(number.findall(printed), number.findall(shown), strict=True):
        assert float(new) == pytest.approx(float(old), abs=0.15, rel=0.4)


def _check_privacy(names: dict[str, Any]) -> None:
    """What the page on differential privacy says of its numbers."""
    plain, private = names["measured"]["plain"], names["measured"]["DP-SGD"]
    canaries = names["chosen"]
    assert private.attack.auc.value < plain.attack.auc.value
    assert private.effect_size[canaries].mean() < 0.5 * plain.effect_size[canaries].mean()
    assert names["before"].meta.predicted_by == "both views"
    assert "predicted_success" not in names["after"].columns


def _hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _all_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from _all_commands(inner, f"{path} {name}")


def _command_lines(page: Path) -> list[str]:
    """Commands of the page's blocks, and those in backticks with an option."""
    text = page.read_text(encoding="utf-8")
    if page.name == "changes.md":  # its first column tells what there was before
        text = re.sub(r"^\|.*? \| ", "", text, flags=re.MULTILINE)
    joined = [body.replace("\\\n", " ") for body in _blocks(page, "", "console", "yaml")]
    usage = page.parts[-2:] == ("reference", "commands.md")
    lines = [] if usage else [line.strip().removeprefix("$ ") for body in joined for line in body.splitlines()]
    lines = [line.removeprefix("- run: ") for line in lines]
    inline = re.findall(r"`(giveaway [a-z][^`\n]* --[^`\n]*)`", text)
    return [line for line in (*lines, *inline) if line.startswith("giveaway ")]


def _check_command(line: str) -> None:
    words = shlex.split(line, comments=True)
    command, path = cli, [words.pop(0)]
    while isinstance(command, click.Group):
        name = words.pop(0) if words else ""
        assert name in command.commands, f"no such command: {line}"
        command = command.commands[name]
        path.append(name)
    options = {name: p for p in command.params for name in (*p.opts, *p.secondary_opts) if name.startswith("-")}
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    given, whole = 0, True
    while words:
        word, _, value = words.pop(0).partition("=")
        if word in ("...", "…", "|", ">"):
            whole = False
            break
        if not word.startswith("-"):
            given += 1
            continue
        assert word in (*options, "--help", "-h"), f"no such option {word}: {line}"
        option = options.get(word)
        if option is not None and not value and not (isinstance(option, click.Option) and option.is_flag):
            assert words, f"no such value for {word}: {line}"
            value = words.pop(0)
        if word == "--config" and "=" in value:
            assert value.partition("=")[0] in RARE, f"no such option {value}: {line}"
    least = sum(argument.required for argument in arguments)
    most = float("inf") if any(argument.nargs < 0 for argument in arguments) else len(arguments)
    assert not whole or least <= given <= most, f"{given} arguments of {least}: {line}"
    for word in words:
        assert not word.startswith("-") or word in options, f"no such option {word}: {line}"
