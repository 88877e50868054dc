"""`giveaway audit --trace`: what it stores, which traces it refuses, and when a folder is another audit's."""

import json
from pathlib import Path

import numpy as np
import pytest

from giveaway import LossTrace, audit
from giveaway.extract import from_file
from giveaway.records import ScoreTable
from tests.test_cli import SECRET, N, arrays, file, folder, one_line, read_csv  # noqa: F401
from tests.test_cli_scale import interrupt_after, note_loads

IDS = [f"{SECRET}-{i:03d}" for i in range(N)]


def save(path: str = "losses.trace", seed: int = 0, **identity: object) -> np.ndarray:
    """Store four epochs of losses, those of the records that `identity` names."""
    losses = np.random.default_rng(seed).exponential(size=(4, N)).astype(np.float16)
    LossTrace.from_losses(losses, **identity or {"ids": IDS}).save(path)
    return losses


def command(file: Path, *more: object, out: str = "result") -> tuple[object, ...]:  # noqa: F811
    return "audit", "--features", file, "--l2", 0.5, "--trace", "losses.trace", "--out", out, *more


def test_an_audit_with_a_trace_ranks_by_all_views(done, file):  # noqa: F811
    losses = save().astype(float)
    out = done(*command(file))
    assert "of 40 records ranked highest, by fused" in out
    table = ScoreTable.load("result")
    expected = audit(from_file(file, l2=0.5)[0], trace=LossTrace("losses.trace"))
    for name in ("trace", "fused", "newton"):
        np.testing.assert_array_equal(table[name], expected[name])
    np.testing.assert_allclose(table["trace"], np.sqrt(losses).mean(0), rtol=1e-12)
    assert [float(row["trace"]) for row in read_csv(Path("result/scores.csv"))] == table["trace"].tolist()
    assert 'trace = "losses.trace"' in Path("result/config.toml").read_text()
    meta = json.loads(Path("result/audit.json").read_text())
    assert meta["fusion"]["weights"] == expected.meta.fusion.weights
    assert (meta["trace"]["proof"], meta["trace"]["epochs"]) == ("ids", 4)
    assert SECRET not in out + Path("result/summary.json").read_text() + Path("result/summary.html").read_text()


def test_people_and_pseudonyms_have_the_trace_of_their_records(done, file):  # noqa: F811
    losses = save().astype(float)
    people = [f"{SECRET}-p{i % 7}" for i in range(N)]
    Path("people.txt").write_text("\n".join(people))
    done(*command(file, "--groups", "people.txt", "--pseudonymize", "key"))
    records, table = ScoreTable.load("result"), ScoreTable.load("result", "people")
    roots = np.sqrt(losses).mean(0)
    np.testing.assert_allclose(records["trace"], roots, rtol=1e-12)
    assert sorted(table["trace"]) == pytest.approx(sorted(np.bincount(np.arange(N) % 7, roots)))
    assert records.meta.trace.proof == "ids"
    assert not any(SECRET.encode() in path.read_bytes() for path in Path("result").iterdir())


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (
            {"ids": IDS[::-1]},
            "trace: expected losses of the head's records, by their ids, got other ids; give the trace",
        ),
        ({"targets": np.arange(N) % 2}, "trace: expected losses of the head's records, by their targets, got other"),
        ({"targets": np.arange(N) % 3}, "trace: expected losses of the head's records, got losses of training that do"),
    ],
)
def test_the_trace_of_other_records_is_one_line(giveaway, file, identity, words):  # noqa: F811
    save(**identity)
    assert one_line(giveaway(*command(file))).startswith(words)
    assert not Path("result").exists()


def test_a_file_that_is_no_trace_is_one_line(giveaway, file):  # noqa: F811
    missing = "trace: expected the file of a trace, got losses.trace, which does not exist; check the path"
    assert one_line(giveaway(*command(file))) == missing
    Path("losses.trace").write_bytes(b"not a trace" * 1000)
    assert one_line(giveaway(*command(file))).startswith("trace: expected ")
    assert not Path("result").exists()


def test_the_same_folder_is_another_audit_s_with_another_trace(giveaway, done, file):  # noqa: F811
    save()
    done(*command(file))
    done(*command(file))  # the same again
    before = Path("result/scores.npz").read_bytes()
    save(seed=1)
    line = one_line(giveaway(*command(file)))
    assert line.startswith("out: expected an audit of the same inputs and options, got inputs differ; ")
    save("other.trace")
    line = one_line(giveaway(*command(file, "--trace", "other.trace")))
    assert "got trace was 'losses.trace', is 'other.trace'; " in line
    line = one_line(giveaway("audit", "--features", file, "--l2", 0.5, "--out", "result"))
    assert line.startswith("out: expected an audit of the same inputs and options, got ")
    assert Path("result/scores.npz").read_bytes() == before


def test_an_audit_that_was_stopped_goes_on_with_the_same_trace_only(giveaway, done, file, monkeypatch):  # noqa: F811
    save()
    done(*command(file, out="whole"))
    with monkeypatch.context() as patched:
        interrupt_after(patched, 1)
        assert giveaway(*command(file, out="parts"))[0] == 130
    save(seed=1)
    line = one_line(giveaway(*command(file, "--resume", out="parts")))
    assert "resume: expected the inputs and options that the audit was begun with, got inputs differ; " in line
    save()
    read = note_loads(monkeypatch)
    done(*command(file, "--resume", out="parts"))
    assert read
    whole, parts = ScoreTable.load("whole"), ScoreTable.load("parts")
    for name in whole.columns:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-12)
    assert parts.meta.trace.to_json() == whole.meta.trace.to_json()
