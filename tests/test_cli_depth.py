"""`giveaway audit --depth`: columns of a network's depths beside those of its head, as a user meets them."""

import importlib
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from giveaway import text as progress
from giveaway.auditing.depths import with_depths
from giveaway.records import ScoreTable
from tests.auditing.test_depths import audit_depths
from tests.conftest import config, refused
from tests.test_cli import folder, one_line, read_csv  # noqa: F401
from tests.test_cli_scale import killed

N = 40
SECRET = "patient"
VALUE = "7.8125"  # of a record's input, in the files alone
QUIET = (
    "--scores",
    "loss,newton,leverage,influence,gls_trace",
)

USUAL = ("influence", "newton", "leverage", "gls_trace")
CODE = f"""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def body(m):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, m)).double()

def model():
    return body(3)

def one_logit():
    return body(1)

def single():
    return body(3).float()

def inputs():
    x = torch.randn({N}, 4, generator=torch.Generator().manual_seed(0)).double()
    x[:2] *= 4.0
    x[3, 1] = {VALUE}
    return x

def data():
    return TensorDataset(inputs(), torch.arange({N}) % 3)

def singles():
    return TensorDataset(inputs().float(), torch.arange({N}) % 3)

def values():
    return TensorDataset(inputs(), inputs()[:, :3] + 0.3)

def several():
    return TensorDataset(inputs(), (inputs()[:, :3] > 0).long())

def two_classes():
    return TensorDataset(inputs(), torch.arange({N}) % 2)

def shuffled():
    return DataLoader(data(), batch_size=7, shuffle=True, generator=torch.Generator().manual_seed(3))

class Named(torch.utils.data.Dataset):
    def __len__(self):
        return {N}
    def __getitem__(self, row):
        x, y = data()[row]
        return {{"input": x, "label": y, "id": 100 + row}}

def named():
    return DataLoader(Named(), batch_size=7, shuffle=True, generator=torch.Generator().manual_seed(3))
"""


@pytest.fixture
def mine(folder, request) -> str:  # noqa: F811
    """A module of the user's in the working folder, under a name of its own."""
    name = "deep_" + re.sub(r"\W", "_", request.node.name)
    (folder / f"{name}.py").write_text(CODE)
    sys.path.insert(0, str(folder))
    return name


def command(mine: str, *options: object, model: str = "model", data: str = "data") -> tuple[object, ...]:
    return ("audit", "--model", f"{mine}:{model}", "--data", f"{mine}:{data}", *QUIET, *options)


def deeper(
    mine: str, *, model: str = "model", data: str = "data", loss: str = "cross_entropy", **options
) -> ScoreTable:
    code = importlib.import_module(mine)
    return audit_depths(getattr(code, model)(), getattr(code, data)(), loss=loss, **options)


def without_time(report: dict) -> dict:
    plain = {depth: told if isinstance(told, dict) else told.to_json() for depth, told in report.items()}
    return {depth: {name: value for name, value in told.items() if name != "seconds"} for depth, told in plain.items()}


# ------------------------------------------------------------------------------------------------ the columns


def test_columns_are_those_of_the_python_function(done, mine):
    options = ("--depth", "head, last:2,all", "--damping", 0.7, *config(depth_probes=8, seed=5, tolerance=1e-6))
    done(*command(mine, *options, "--l2", 0.7, "--out", "deep"))
    table = ScoreTable.load("deep")
    found = deeper(mine, damping=0.7, depths=("head", "last:2", "all"), probes=8, seed=5, tolerance=1e-6)
    assert list(found.columns) == [f"{name}_{depth}" for depth in ("head", "last2", "all") for name in USUAL]
    for name, column in {**found.scores, **found.attributes}.items():
        np.testing.assert_allclose(table[name], column, rtol=1e-12, atol=0)
    assert without_time(table.meta.depths) == without_time(found.meta.depths)
    assert set(read_csv(Path("deep", "scores.csv"))[0]) >= {"newton", "newton_last2", "newton_capped_all"}

    done(*command(mine, "--l2", 0.7, "--out", "plain"))
    plain = ScoreTable.load("plain")
    assert table.columns == (*plain.columns, *found.columns)
    for name in plain.columns:
        np.testing.assert_array_equal(table[name], plain[name])
    assert table.ranking() == plain.ranking() == "newton"
    assert plain.meta.depths is None
    assert plain.meta.provenance.weights_sha256 is None


def test_the_exact_method(done, mine):
    options = ("--damping", 30, "--config", "depth_method=exact")
    out = done(*command(mine, "--depth", "all", *options, "--json", "--out", "deep"))
    found = deeper(mine, damping=30.0, method="exact")
    table = ScoreTable.load("deep")
    for name, column in found.scores.items():
        np.testing.assert_allclose(table[name], column, rtol=1e-12, atol=0)
    assert without_time(json.loads(out)["depths"]) == without_time(found.meta.depths)


def test_people_keep_their_records_apart(done, mine):
    Path("people.txt").write_text("\n".join(f"{SECRET} {row % 10}" for row in range(N)))
    options = ("--depth", "all", "--damping", 0.7, "--config", "depth_probes=8", "--groups", "people.txt")
    out = done(*command(mine, *options, "--out", "deep"))
    people, records = ScoreTable.load("deep", "people"), ScoreTable.load("deep")
    found = deeper(mine, damping=0.7, probes=8)
    assert len(people) == 10
    assert not [name for name in (*people.columns, *people.attributes) if name.endswith("_all")]
    np.testing.assert_allclose(records["newton_all"], found["newton_all"], rtol=1e-12, atol=0)
    assert without_time(people.meta.depths) == without_time(found.meta.depths)
    assert "of single records: they are in scores.csv and are not added up for people" in out
    assert SECRET not in out + done.err


def test_columns_stand_beside_their_own_records_alone(mine):
    found = deeper(mine, damping=0.7, probes=8)
    table = ScoreTable({"newton": np.arange(N)}, np.arange(N), meta={"unit": "record"})
    assert with_depths(table, found).columns == ("newton", *found.columns)
    some = deeper(mine, damping=0.7, method="exact", rows=[3, 1])
    people = ScoreTable({"newton": np.arange(N)}, np.arange(N), meta={"unit": "person"})
    for depths, other in ((found, table.top(5)), (found, people), (some, table.top(2))):
        words = f"table: expected a table of the {len(depths)} records that were scored, each a row, got one of"
        refused(words, with_depths, other, depths)


# ------------------------------------------------------------------------------------------------ what is shown


def test_the_report_shows_columns_and_what_was_done_and_the_terminal_no_value(done, mine):
    Path("ids.txt").write_text("\n".join(f"{SECRET}-{row}" for row in range(N)))
    options = ("--depth", "last:2,all", "--damping", 0.7, "--config", "depth_probes=16", "--ids", "ids.txt", "--json")
    out = done(*command(mine, *options, "--out", "deep"))
    assert VALUE not in out + done.err
    assert SECRET not in out + done.err
    page = Path("deep", "report.html").read_text()
    heads = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page)
    assert dict(heads)["newton_all"].endswith("if it had been left out; through all layers of the network")
    assert dict(heads)["newton_last2"].endswith("through the last 2 layers of the network")
    assert not [name for name, _ in heads if "capped" in name]
    for name, value in (("all · damping", "0.7"), ("all · probes", "16"), ("last:2 · method", "sketch")):
        assert f'>depths · {name}</td><td data-label="value">{value}</td>' in page
    for name in ("residual", "passes", "sketch_error · newton"):
        assert f">depths · all · {name}</td>" in page
    assert "provenance · weights_sha256" in page
    assert "unless they are named with a depth" in page
    note = "Columns ending in _all are scores through all layers of the network: Gauss–Newton curvature, damping 0.7"
    assert note in page
    shared = Path("deep", "summary.json").read_text()
    assert any(line.startswith(note) for line in json.loads(shared)["notes"])
    assert "weights_sha256" not in shared
    before = read_csv(Path("deep", "scores.csv"))
    done("report", "deep")
    assert Path("deep", "report.html").read_text() == page
    assert read_csv(Path("deep", "scores.csv")) == before


def test_a_dry_run_says_what_it_leaves_out(giveaway, done, mine):
    options = ("--depth", "head,all", "--damping", 1, "--dry-run")
    for method, solves in {"sketch": 64, "exact": 80}.items():
        out = done(*command(mine, *options, "--config", f"depth_method={method}"))
        last = out.splitlines()[-1]
        assert (
            last
            == f"depths: head (18 parameters), all (83 parameters): {solves} solves or more each; not in this estimate"
        )
    _, out, _ = giveaway(*command(mine, *options, "--config", f"depth_method={method}", "--json"))
    assert last in json.loads(out)["notes"]
    assert not Path("giveaway-audit").exists()


def test_progress_tells_the_time_that_is_left(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.parts_of(enabled=True, work="depths", unit="solve") as on_part:
        for seconds, done, total in ((1, 32, 64), (11, 40, 64), (12, 48, 64), (31, 48, 160), (91, 64, 160)):
            now[0] = float(seconds)
            on_part(done, total)
    assert capsys.readouterr().err.splitlines() == [
        "depths: 40 of 64 solves, 7 s left",
        "depths: 48 of 160 solves, 5 minutes left",
        "depths: 64 of 160 solves, 6 minutes left",
    ]
    with progress.parts_of(enabled=False, work="depths", unit="solve") as on_part:
        on_part(1, 2)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.parts_of(enabled=True, work="depths", unit="solve") as on_part:
        on_part(16, 64)
        on_part(64, 80)


def test_a_tolerance_below_the_network_s_precision(giveaway, mine):
    few = ("--depth", "all", "--damping", 1, "--config", "tolerance=1e-9", "--out", "deep")
    line = one_line(giveaway(*command(mine, *few, model="single", data="singles")))
    assert line.startswith("tolerance: expected a finite number of at least 1.19209e-07, got 1e-09; 1e-3 suits most")


@pytest.mark.slow
def test_solves_that_do_not_get_there(giveaway, done, mine):
    options = ("--depth", "all", "--damping", 1e-5, *config(tolerance=1.3e-7, depth_probes=4), "--out", "deep")
    line = one_line(giveaway(*command(mine, *options, model="single", data="singles")), code=1)
    assert line.startswith("solve: expected a residual of 1.3e-07 for every right side, got")
    assert not Path("deep").exists()
    allowed = (*options, "--config", "allow_unconverged=true")
    out = done(*command(mine, *allowed, model="single", data="singles"))
    assert "solves did not reach their tolerance, which was allowed" in out


# ------------------------------------------------------------------------------------------------ going on


@pytest.mark.slow
@pytest.mark.parametrize("saves", [2, 7])  # within the first depth, and within the second
def test_a_killed_audit_goes_on_inside_a_depth(giveaway, done, mine, monkeypatch, saves):
    code = importlib.import_module(mine)
    weights = code.model().state_dict()
    weights["2.weight"][4], weights["2.bias"][4] = 1.0, -1e3  # a unit that is never on
    torch.save(weights, "weights.pt")
    options = ("--weights", "weights.pt", "--l2", 0.7, "--depth", "head,all", "--damping", 0.7)
    done(*command(mine, *options, "--out", "whole"))
    killed(saves, command(mine, *options, "--out", "parts"), of="depth-")
    kept = os.listdir("parts/checkpoint")
    assert any(name.startswith("depth-head") for name in kept)
    assert any(name.startswith("depth-all") for name in kept) is (saves > 5)

    again = command(mine, *options, "--out", "parts", "--resume")
    line = one_line(giveaway(*again, "--damping", 0.8))
    assert "got damping was 0.7, is 0.8; give the same again" in line
    line = one_line(giveaway(*again, "--depth", "all"))
    assert "got depth was 'head,all', is 'all'" in line
    weights["2.weight"][4] = 2.0  # outputs stay what they were
    torch.save(weights, "weights.pt")
    line = one_line(giveaway(*again))
    assert line.startswith("resume: expected the inputs and options that the audit was begun with, got weights differ")
    line = one_line(giveaway(*command(mine, *options, "--out", "whole")))
    assert line.startswith("out: expected an audit of the same inputs and options, got weights differ; ")
    weights["2.weight"][4] = 1.0
    torch.save(weights, "weights.pt")

    taken = []
    load = importlib.import_module("giveaway.storage.folder").FolderCheckpoint.load

    def noted(self, name):
        found = load(self, name)
        taken.extend([name] if found is not None and name.startswith("depth-") else [])
        return found

    monkeypatch.setattr("giveaway.storage.folder.FolderCheckpoint.load", noted)
    done(*again)
    assert taken
    assert ("depth-head" in taken) is (saves > 5)
    whole, parts = ScoreTable.load("whole"), ScoreTable.load("parts")
    assert whole.columns == parts.columns
    for name in whole.columns:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-12, atol=0)
    told = [without_time(table.meta.depths) for table in (whole, parts)]
    assert told[0]["all"]["right_sides"] == told[1]["all"]["right_sides"]
    assert not Path("parts/checkpoint").exists()


# ------------------------------------------------------------------------------------------------ refusals


WRONG = [
    (
        "--depth all",
        "damping: expected --damping beside --depth, got none; give one: n times the weight decay that a mean loss was "
        "trained with, as docs/network.md says",
    ),
    ("--damping 1", "damping: expected --depth beside it, got none; name a depth, or drop damping"),
    (
        "--config depth_probes=8",
        "depth_probes: expected --depth beside it, got none; name a depth, or drop depth_probes",
    ),
    (
        "--config depth_method=exact",
        "depth_method: expected --depth beside it, got none; name a depth, or drop depth_method",
    ),
    (
        "--depth all --damping 1 --layer 4",
        "depth: expected the network as it is, in memory, got layer, by which the head may be another layer than the "
        "network's; drop layer, or --depth",
    ),
    (
        "--depth middle --damping 1",
        "depth: expected head, all or last:k, got 'middle'; say how many layers, as last:2",
    ),
    ("--depth head,,all --damping 1", "depth: expected head, all or last:k, got ''"),
    ("--depth all --damping 0", "damping: expected a number above 0, got 0.0; n times the weight decay"),
    ("--depth all --damping -1", "damping: expected a finite number of at least 0, got -1.0"),
    (
        "--depth all --damping 1 --config depth_probes=5",
        "probes: expected an even number of at least 4, got 5; 64 suits a ranking",
    ),
    (
        "--depth all --damping 1 --config depth_method=exact --config depth_probes=8",
        "depth_probes: expected a sketch, got depth_method=exact; drop one of them",
    ),
    (
        "--depth last:9 --damping 1",
        "parameters: expected last:k, as \"last:2\", got 'last:9'; the model has 3 layers with parameters",
    ),
    (
        "--depth all --damping 1 --config depth_method=kfac",
        "depth_method: expected a known name, got 'kfac'",
    ),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=[words[:40] for _, words in WRONG])
def test_words_of_refusals(giveaway, mine, options, words):
    line = one_line(giveaway(*command(mine, *options.split(), "--out", "deep")))
    assert line.startswith(words)
    assert not Path("deep").exists()


def test_depths_need_a_model(giveaway, folder):  # noqa: F811
    np.savez("some.npz", features=np.eye(4), outputs=np.eye(4)[:, :2], targets=np.arange(4) % 2)
    line = one_line(giveaway("audit", "--features", "some.npz", "--depth", "all"))
    assert line == "depth: expected --model beside it, got --features; drop depth"


def test_a_shuffling_loader_without_ids_is_refused(giveaway, mine):
    line = one_line(giveaway(*command(mine, "--depth", "all", "--damping", 1, data="shuffled")))
    assert line.startswith("data: expected every record once, in dataset order, got a sampler RandomSampler")


def test_a_model_that_remembers_its_calls_is_refused(giveaway, mine):
    with open(f"{mine}.py", "a") as code:
        code.write(
            "class model(nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.body, self.head, self.calls = nn.Linear(4, 5).double(), nn.Linear(5, 3).double(), 0\n"
            "    def forward(self, x):\n"
            "        self.calls += 1\n"
            "        return self.head(self.body(x) + (100.0 if self.calls > 30 else 0.0))\n"
        )
    line = one_line(giveaway(*command(mine, "--depth", "all", "--damping", 1, "--config", "batch_size=8")))
    assert line.startswith("model: expected the same outputs of the model in every pass, got others where the network")
    assert not Path("giveaway-audit").exists()
