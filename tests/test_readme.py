"""What the README shows works as it stands."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(example.strip().splitlines()) <= 12
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    table = runpy.run_path("example.py")["table"]
    assert len(table) == 569
    assert np.isfinite(table["newton"]).all()
    printed = capsys.readouterr().out
    assert "fused" in printed
    assert table.ranking() == "fused"
    assert not table.meta.view.head_is_exact
    assert table.meta.trace.epochs == 100
    assert table.meta.fusion.weights["trace"] > 0
    assert (tmp_path / "audit" / "report.html").is_file()
    assert (tmp_path / "audit" / "summary.html").is_file()


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert script[-3:] == ["make lint", "make test", "make test-slow"]
    assert "\nmake test " in README
