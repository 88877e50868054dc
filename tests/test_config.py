"""Options from TOML and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giveaway.cli.options import RARE
from giveaway.cli.source import read_config, to_toml
from tests.conftest import refused

KINDS = {"features": str, "scores": str, "l2": float, "top": int, "refit": bool, "batch_size": int}


def written(tmp_path, text: str):
    path = tmp_path / "options.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_every_kind_and_both_spellings(tmp_path):
    text = 'features = "a.npz"\nl2 = 2\ntop = 3\nrefit = false\nbatch-size = 8\nscores = ["newton", "loss"]\n'
    assert read_config([written(tmp_path, text)], KINDS) == {
        "features": "a.npz",
        "l2": 2,
        "top": 3,
        "refit": False,
        "batch_size": 8,
        "scores": "newton,loss",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("l3 = 1", r"config: expected options of this command, got 'l3'; did you mean l2"),
        ("l2 = 'much'", r"config: expected a number for l2, got 'much'; correct it"),
        ("l2 = true", r"config: expected a number for l2, got True"),
        ("top = 2.5", r"config: expected a whole number for top, got 2\.5"),
        ("refit = 'no'", r"config: expected true or false for refit, got 'no'"),
        ("refit = 0", r"config: expected true or false for refit, got 0"),
        ("features = 3", r"config: expected text for features, got 3"),
        ("scores = [1]", r"config: expected text for scores, got \[1\]"),
        ("[features]\nname = 'a'", r"config: expected text for features"),
        ("l2 = ", r"config: expected a readable TOML file, or NAME=VALUE, got .*options\.toml"),
    ],
)
def test_refused(tmp_path, text, words):
    refused(words, read_config, [written(tmp_path, text)], KINDS)


def test_settings_on_the_command_line_go_before_earlier_ones(tmp_path):
    file = written(tmp_path, "top = 3\nl2 = 1.0\n")
    given = [file, "top=4", "refit=TRUE", "batch-size=8", "features=a=b.npz"]
    expected = {"top": 4, "l2": 1.0, "refit": True, "batch_size": 8, "features": "a=b.npz"}
    assert read_config(given, KINDS) == expected


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("l3=1", "config: expected options of this command, got 'l3'; did you mean l2"),
        ("l2=much", "config: expected a number for l2, got 'much'; correct it"),
        ("top=2.5", "config: expected a whole number for top, got '2.5'; correct it"),
        ("refit=no", "config: expected true or false for refit, got 'no'; correct it"),
    ],
)
def test_settings_refused(setting, words):
    assert refused("expected", read_config, [setting], KINDS).startswith(words)


def test_files_that_cannot_be_read(tmp_path):
    refused(
        r"config: expected a readable TOML file, or NAME=VALUE, got .*missing\.toml",
        read_config,
        [str(tmp_path / "missing.toml")],
        KINDS,
    )
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    refused("config: expected a readable TOML file", read_config, [str(tmp_path / "bytes.toml")], KINDS)


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    return tmp_path_factory.mktemp("config") / "config.toml"


@given(
    features=st.text(st.characters(codec="utf-8")),
    l2=st.floats(allow_nan=False, allow_infinity=False),
    top=st.integers(-(2**60), 2**60),
    refit=st.booleans(),
)
def test_what_is_written_comes_back(config_file, features, l2, top, refit):
    options = {"features": features, "l2": l2, "top": top, "refit": refit}
    config_file.write_bytes(to_toml(options).encode())
    assert read_config([str(config_file)], KINDS) == options


def test_every_option_that_an_audit_writes_is_taken_back(tmp_path):
    kinds = {name: kind for name, (kind, _) in RARE.items()}
    values = {str: 'mod:function, "x"\\\x7f\n', int: 2**63 - 1, float: 1e-05, bool: False}
    chosen = {name: values[kind] for name, kind in kinds.items()}
    assert chosen["seed"] == 2**63 - 1
    assert read_config([written(tmp_path, to_toml(chosen))], kinds) == chosen
    whole = {name: 3.0 for name, kind in kinds.items() if kind is float}
    assert read_config([written(tmp_path, to_toml(whole))], kinds) == whole
