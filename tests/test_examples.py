"""The scripts of examples/ run as a user would run them, the libraries imported beforehand."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from giveaway.records import ScoreTable
from tests import forked

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SHARED = Path(os.environ.get("GIVEAWAY_SHARED", ROOT.parent / "shared"))
TOLD = {  # by each of them
    "audit_torch": "fused",
    "audit_sklearn": "predicted attack success",
    "audit_black_box": "the same 20 most exposed from arrays: True",
    "people": "by person: rank 1 of 569",
    "validate_shadow": "The audited model is not one of the 16.",
    "california_housing": "median error",
    "audit_language_model": "the two odd texts have the ranks 1 2 of 120",
}
REAL = {"california_housing.py": "california_housing.npz"}


def _run(script: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    alone = {name: value for name, value in os.environ.items() if name != "GIVEAWAY_SHARED"}
    return forked.python("-W", "error::RuntimeWarning", script, *arguments, folder=folder, env=alone)


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_example_runs(script: Path, tmp_path: Path) -> None:
    arguments = ["--out", "audit"]
    if script.name in REAL:
        if not (SHARED / "data" / REAL[script.name]).is_file():
            pytest.skip(f"needs {REAL[script.name]}: set GIVEAWAY_SHARED to a folder whose data/ has it")
        arguments += ["--data", str(SHARED / "data")]
    done = _run(script, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["audit"], "everything goes into the folder asked for"
    table = ScoreTable.load(tmp_path / "audit")
    assert len(table) >= 100
    assert TOLD[script.stem] in done.stdout


@pytest.mark.slow
def test_real_data_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = _run(ROOT / "examples" / "california_housing.py", tmp_path)
    assert done.returncode == 2
    assert "expected a folder with california_housing.npz" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_example_runs_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["people.py", "--out", "audit"])
    runpy.run_path(str(ROOT / "examples" / "people.py"), run_name="__main__")
    assert TOLD["people"] in capsys.readouterr().out
    assert len(ScoreTable.load(tmp_path / "audit")) == 569


def test_examples_are_short() -> None:
    assert len(EXAMPLES) == 7
    for script in EXAMPLES:
        assert len(script.read_text(encoding="utf-8").splitlines()) <= 62, script.name
