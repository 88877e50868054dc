"""Large audits from the command line: their cost, processes that share them, and runs that are killed and go on."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from giveaway.auditing.cost import STEPS
from giveaway.records import LossTrace, ScoreTable
from giveaway.storage.folder import FolderCheckpoint
from tests import forked
from tests.conftest import config, torchrun
from tests.test_cli import folder  # noqa: F401

N, D, M = 3_000, 6, 4


@pytest.fixture
def arrays(folder) -> dict[str, np.ndarray]:  # noqa: F811
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(M, D))
    targets = rng.integers(M, size=N)
    features = centres[targets] + 1.2 * rng.normal(size=(N, D))
    arrays = {"features": features, "weight": centres, "bias": -0.5 * (centres**2).sum(1), "targets": targets}
    np.savez(folder / "features.npz", **arrays)
    return arrays


def two_processes(
    *arguments: object, script: Path | None = None, processes: int = 2, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Two processes, or more, of the command line, or of a script that runs it, in the environment of torchrun."""
    what = ["-m", "giveaway"] if script is None else [str(script)]
    ended = forked.team(*what, *arguments, processes=processes, **variables)
    status = next((one.returncode for one in ended if one.returncode), 0)
    return subprocess.CompletedProcess(
        what, status, *("".join(getattr(one, name) for one in ended) for name in ("stdout", "stderr"))
    )


def under_torchrun(*arguments: object, script: Path) -> subprocess.CompletedProcess[str]:
    """The same, started by torchrun itself, which takes ten seconds longer."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = torchrun(str(script), *map(str, arguments))
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def same(one: str, other: str, *, rtol: float) -> ScoreTable:
    left, right = ScoreTable.load(one), ScoreTable.load(other)
    assert left.columns == right.columns
    for name in left.columns:
        np.testing.assert_allclose(right[name], left[name], rtol=rtol, err_msg=name)
    for name in left.attributes:
        np.testing.assert_allclose(right[name].astype(float), left[name].astype(float), rtol=rtol, err_msg=name)
    return right


SKETCH = ("--curvature", "sketch", "--config", "probes=64")
KINDS = {
    "dense": ((), 1e-9),
    "sketch": ((*SKETCH, *config(precision="float64", tolerance=1e-8)), 1e-6),
}  # a solve ends at its tolerance, where it ends depends on the shares


# --------------------------------------------------------------------------------------------- several processes


LEAVING = """
import atexit, os, sys
import torch.distributed as dist
sys.argv = ["giveaway", *sys.argv[1:]]
from giveaway.reporting import folder
save = folder.save_audit
def say(line):
    os.write(1, f"{line}\\n".encode())  # at once: two processes share the stream
def saved(*arguments):
    say(f"saving with a group: {dist.is_initialized()}")
    save(*arguments)
folder.save_audit = saved
atexit.register(lambda: say(f"rank {os.environ['RANK']} ends with a group: {dist.is_initialized()}"))
from giveaway.cli import main
main()
"""


def leaving() -> Path:
    """A script that says whether each process has left the team when it ends, and the first when it saves."""
    script = Path("leaving.py")
    script.write_text(LEAVING)
    return script


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_write_the_table_that_one_writes(done, arrays, kind):
    options, rtol = KINDS[kind]
    command = ("audit", "--features", "features.npz", "--l2", 1, *options)
    done(*command, "--out", "alone")
    start = under_torchrun if kind == "dense" else two_processes
    ended = start(*command, "--out", "together", script=leaving())
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.splitlines()
    assert {f"rank {rank} ends with a group: False" for rank in range(2)} <= set(said)
    assert not any("with a group: True" in line for line in said)
    assert "saving with a group: False" in said
    table = same("alone", "together", rtol=rtol)
    assert table.meta.processes == 2
    assert ended.stdout.count("Open together/report.html") == 1
    assert not Path("together/checkpoint").exists()
    assert set(os.listdir("together")) == set(os.listdir("alone"))


@pytest.mark.slow
def test_two_processes_on_people_and_a_head_that_is_not_converged(done, arrays):
    np.save("people.npy", np.random.default_rng(1).integers(0, 1_500, N))
    options = ("--l2", 1, "--groups", "people.npy", "--config", "optimum=corrected")
    command = ("audit", "--features", "features.npz", *options)
    done(*command, "--out", "alone")
    ended = two_processes(*command, "--out", "together")
    assert ended.returncode == 0, ended.stderr
    same("alone", "together", rtol=1e-9)
    one, two = ScoreTable.load("alone", "people"), ScoreTable.load("together", "people")
    np.testing.assert_allclose(two["newton"], one["newton"], rtol=1e-9)


@pytest.mark.slow
def test_a_score_of_the_records_alone_does_not_end_the_other_process(done, arrays):
    np.savez("rows.npz", inputs=arrays["features"][:400])
    np.savez("few.npz", **{k: v[:400] if len(v) == N else v for k, v in arrays.items()})
    command = ("audit", "--features", "few.npz", "--l2", 1, "--inputs", "rows.npz", "--scores", "left_out")
    done(*command, "--out", "alone")
    ended = two_processes(*command, "--out", "together")
    assert ended.returncode == 0, ended.stderr
    same("alone", "together", rtol=1e-9)


BY_LANDMARKS = """
import os, sys
sys.argv = ["giveaway", *sys.argv[1:]]
from giveaway.storage.folder import FolderCheckpoint
from giveaway.views import left_out
FolderCheckpoint.due = lambda self: True  # every piece of work is saved
left_out.EXACT_UP_TO = 100
of_landmarks = left_out.landmark_features
def dies(*arguments, **options):
    if os.environ["RANK"] == os.environ.get("DIES"):
        os._exit(9)
    return of_landmarks(*arguments, **options)
left_out.landmark_features = dies
from giveaway.cli import main
main()
"""


@pytest.mark.slow
def test_processes_share_sketch_views_and_trace_and_go_on_after_one_has_died(done, arrays, monkeypatch):
    few = {name: values[:600] if len(values) == N else values for name, values in arrays.items()}
    np.savez("few.npz", **few)
    rng = np.random.default_rng(2)
    images = rng.integers(0, 200, (600, 8, 8)) + 10 * few["targets"][:, None, None]
    np.save("images.npy", images.astype(np.uint8))
    outputs = few["features"] @ few["weight"].T + few["bias"]
    losses = np.log(np.exp(outputs).sum(1)) - outputs[np.arange(600), few["targets"]]
    trace = LossTrace(600, targets=few["targets"])
    for epoch in range(4):
        trace.add(np.arange(600), losses + rng.exponential(size=600) / (1 + epoch))
    trace.save("losses.trace")
    options, rtol = KINDS["sketch"]
    records = ("--inputs", "images.npy", "--trace", "losses.trace")
    command = ("audit", "--features", "few.npz", "--l2", 1, *records, *options)
    with monkeypatch.context() as patch:
        patch.setattr("giveaway.views.left_out.EXACT_UP_TO", 100)
        done(*command, "--out", "alone")
    script = Path("landmarks.py")
    script.write_text(BY_LANDMARKS)
    ended = two_processes(*command, "--out", "together", script=script, DIES="1")
    assert ended.returncode != 0
    assert "Open together" not in ended.stdout
    assert not Path("together/scores.npz").exists()
    assert not Path("together/audit.json").exists()
    assert len(os.listdir("together/checkpoint")) > 2
    for out, processes, more in (("together", 2, ("--resume",)), ("four", 4, ())):
        ended = two_processes(*command, "--out", out, *more, script=script, processes=processes)
        assert ended.returncode == 0, ended.stderr
        table, alone = ScoreTable.load(out), ScoreTable.load("alone")
        assert {"fused", "left_out", "trace", "newton"} <= set(table.columns)
        assert (table.meta.processes, table.meta.view.method) == (processes, "landmarks")
        for name in alone.columns:
            np.testing.assert_allclose(table[name], alone[name], rtol=max(rtol, 1e-4), atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(table["others_say"], alone["others_say"])


@pytest.mark.slow
@pytest.mark.parametrize(("more", "status"), [(("--dry-run",), 0), (("--config", "by=person"), 1)])
def test_every_process_leaves_the_team_before_it_ends(arrays, more, status):
    """One that does not may be aborted at its end, and the first killed while it writes (after an audit: above)."""
    command = ("audit", "--features", "features.npz", "--l2", 1, "--out", "together", *more)
    ended = two_processes(*command, script=leaving())
    assert (ended.returncode != 0) == status, ended.stderr
    said = ended.stdout.splitlines()
    for rank in range(2):
        assert f"rank {rank} ends with a group: True" not in said
        assert f"rank {rank} ends with a group: False" in said or status
    assert not any(line.startswith("saving") for line in said)


@pytest.mark.slow
def test_a_model_s_features_are_made_by_both_processes(done, folder):  # noqa: F811
    (folder / "mine.py").write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "def model():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))\n"
        "def data():\n"
        "    rng = torch.Generator().manual_seed(1)\n"
        "    return TensorDataset(torch.randn(301, 5, generator=rng), torch.randint(3, (301,), generator=rng))\n"
    )
    command = ("audit", "--model", "mine:model", "--data", "mine:data", "--l2", 0.3)
    plain = ("--scores", "loss,newton,leverage,gls_trace")
    done(*command, *plain, "--out", "alone")
    refused = two_processes(*command, *plain, "--out", "together")
    assert refused.returncode != 0
    assert (
        "cache: expected a folder that all processes see, beside a model, got none; add --cache DIR" in refused.stderr
    )
    ended = two_processes(*command, *plain, "--cache", "kept", "--out", "together")
    assert ended.returncode == 0, ended.stderr
    same("alone", "together", rtol=1e-5)  # the network's float32 sums depend on how many records it sees at once
    assert sorted(os.listdir("kept")) == ["part-0-of-2", "part-1-of-2"]
    out = done("purge", "kept")
    assert out.startswith("Removed ")
    assert not Path("kept").exists()


# ------------------------------------------------------------------------------------------------- going on


KILLED = """
import os, signal, sys
sys.argv = ["giveaway", *sys.argv[1:]]
from giveaway.storage.folder import FolderCheckpoint
FolderCheckpoint.due = lambda self: True  # every piece of work is saved
save, left = FolderCheckpoint.save, [int(os.environ["SAVES"])]
def saves(self, name, tensors):
    save(self, name, tensors)
    left[0] -= name.startswith(os.environ["OF"])
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
FolderCheckpoint.save = saves
from giveaway.curvature import dense, sketch
dense.MOST_ROWS = 700
sketch.MOST_AT_ONCE = 32
from giveaway.cli import main
main()
"""


def killed(saves: int, command: tuple[object, ...], of: str = "") -> None:
    """Run a command that is killed once so many pieces of work, whose names begin with `of`, have been saved."""
    Path("killed.py").write_text(KILLED)
    ended = forked.python("killed.py", *command, SAVES=str(saves), OF=of, OMP_NUM_THREADS="1")
    assert ended.returncode == -signal.SIGKILL


def interrupt_after(monkeypatch, saves: int) -> None:
    """Ctrl-C in this process, once so many pieces of work have been saved."""
    save, left = FolderCheckpoint.save, [saves]

    def saved(self, name, tensors):
        save(self, name, tensors)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(FolderCheckpoint, "due", lambda self: True)
    monkeypatch.setattr(FolderCheckpoint, "save", saved)


def note_loads(monkeypatch) -> list[str]:
    """The names of what is read from a checkpoint from now on."""
    load, read = FolderCheckpoint.load, []

    def noted(self, name):
        stored = load(self, name)
        read.extend(stored or ())
        return stored

    monkeypatch.setattr(FolderCheckpoint, "load", noted)
    return read


@pytest.mark.parametrize(
    ("kind", "saves", "really"),
    [
        ("dense", 2, False),
        ("sketch", 1, False),
        pytest.param("dense", 3, True, marks=pytest.mark.slow),
        pytest.param("sketch", 4, True, marks=pytest.mark.slow),
    ],
)
def test_an_audit_that_was_stopped_goes_on_where_it_was(giveaway, done, arrays, monkeypatch, kind, saves, really):
    monkeypatch.setattr("giveaway.curvature.dense.MOST_ROWS", 700)
    monkeypatch.setattr("giveaway.curvature.sketch.MOST_AT_ONCE", 32)
    options, _ = KINDS[kind]
    command = ("audit", "--features", "features.npz", "--l2", 1, *options)
    done(*command, "--out", "whole")
    if really:
        killed(saves, (*command, "--out", "parts"))
    else:
        with monkeypatch.context() as patched:
            interrupt_after(patched, saves)
            assert giveaway(*command, "--out", "parts")[0] == 130
    kept = os.listdir("parts/checkpoint")
    assert "checkpoint.json" in kept
    assert len(kept) > 1
    assert oct(os.stat("parts/checkpoint").st_mode)[-3:] == "700"

    code, _, error = giveaway(*command, "--out", "parts")
    assert code == 2
    assert "out: expected a folder without unfinished work, got an unfinished audit in parts/checkpoint; " in error
    assert "add --resume to go on with it, or remove it with giveaway purge" in error
    code, _, error = giveaway(*command, "--out", "parts", "--resume", "--config", "optimum=corrected")
    assert code == 2
    begun = "resume: expected the inputs and options that the audit was begun with"
    assert f"{begun}, got optimum was None, is 'corrected'" in error

    read = note_loads(monkeypatch)
    done(*command, "--out", "parts", "--resume")
    assert read  # something of the stopped run was used
    same("whole", "parts", rtol=1e-12)
    assert not Path("parts/checkpoint").exists()


def test_other_records_are_refused_and_purge_removes_what_is_unfinished(giveaway, arrays, monkeypatch):
    command = ("audit", "--features", "features.npz", "--out", "parts")
    with monkeypatch.context() as patched:
        interrupt_after(patched, 2)
        assert giveaway(*command)[0] == 130
    arrays["features"][3, 2] += 1e-3
    np.savez("features.npz", **arrays)
    code, _, error = giveaway(*command, "--resume")
    assert code == 2
    assert "resume: expected the inputs and options that the audit was begun with, got inputs differ; " in error
    assert len(os.listdir("parts/checkpoint")) > 1  # nothing was lost
    code, out, _ = giveaway("purge", "parts")
    assert (code, out.split()[0]) == (0, "Removed")
    assert not Path("parts").exists()


def test_a_run_killed_before_anything_was_saved_begins_again(done, arrays):
    Path("parts/checkpoint").mkdir(parents=True)
    Path("parts/checkpoint/checkpoint.json").write_text("{}")
    done("audit", "--features", "features.npz", "--out", "parts")
    assert Path("parts/scores.npz").is_file()
    done("audit", "--features", "features.npz", "--out", "new", "--resume")  # there is nothing to resume


# --------------------------------------------------------------------------------------------------- the cost


def test_a_dry_run_tells_the_cost_and_does_nothing(done, arrays):
    out = done("audit", "--features", "features.npz", "--dry-run")
    assert out.startswith(f"audit: {N:,} records × 7 features × 4 classes; dense curvature; about ")
    assert "operations" in out
    assert "at a measured rate" in out
    told = json.loads(done("audit", "--features", "features.npz", "--dry-run", "--json", *SKETCH))
    # maths.md: two products of 2·n·d·m·q a step
    assert told["operations"] > STEPS * 4 * N * 7 * M * 64
    assert (told["curvature"], told["probes"], told["records"]) == ("sketch", 64, N)
    assert told["seconds"] > 0
    assert told["views"] == []
    np.savez("records.npz", inputs=np.random.default_rng(0).normal(size=(N, 3)))
    viewed = (
        "audit",
        "--features",
        "features.npz",
        "--inputs",
        "records.npz",
        "--scores",
        "fused,lood_kl",
        "--dry-run",
    )
    lines = done(*viewed).splitlines()
    assert re.fullmatch(rf"second view of {N:,} records: about .*; most of it only if the model memorizes", lines[1])
    assert re.fullmatch(rf"Gaussian process of {N:,} records: about .* records timed here", lines[2])
    assert [view["records"] for view in json.loads(done(*viewed, "--json"))["views"]] == [N, N]
    assert sorted(os.listdir(".")) == ["features.npz", "records.npz"]


def test_a_black_box_is_not_audited_by_a_dry_run(giveaway, arrays):
    logarithms = np.log(np.random.default_rng(0).dirichlet(np.ones(M), N))
    np.savez("box.npz", outputs=logarithms, targets=arrays["targets"])
    code, _, error = giveaway("audit", "--features", "box.npz", "--dry-run")
    assert code == 2
    assert error.splitlines()[-1] == (
        "giveaway: dry_run: expected a linear head, got a black box, which has no curvature to estimate; leave it out"
    )
    assert not Path("giveaway-audit").exists()


def test_what_a_sketch_is_worth_is_said(done, arrays):
    out = done("audit", "--features", "features.npz", "--l2", 1, *SKETCH, "--out", "sketched")
    assert "note: Scores of the head are estimates from 64 random probes of its curvature, off by about " in out
    summary = json.loads(Path("sketched/summary.json").read_text())
    assert any("estimates from 64 random probes" in note for note in summary["notes"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--config probes=5", "probes: expected a whole number of at least 32, got 5; 256 suits most heads"),
        ("--cache there", "cache: expected --model beside it, got --features; drop cache"),
    ],
)
def test_the_words_of_errors(giveaway, arrays, options, words):
    code, _, error = giveaway("audit", "--features", "features.npz", *options.split())
    assert (code, error) == (2, f"giveaway: {words}\n")
