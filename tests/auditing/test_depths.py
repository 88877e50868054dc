"""Scores through a network as columns of an audit: those of the network's functions, of the head's closed form at depth
head, and the same again after a kill."""

import numpy as np
import pytest
import torch

import giveaway as ga
from giveaway.auditing.depths import DepthAudit, with_depths
from giveaway.curvature.choice import Dense, Sketch
from giveaway.extract import from_torch
from giveaway.network import Depths, InverseCurvature, Network, Solves, sketch_records
from giveaway.records import ScoreTable
from giveaway.storage.folder import NO_CHECKPOINT, FolderCheckpoint
from tests.conftest import refused
from tests.network.cases import dense, made, targets_for

USUAL = ("influence", "newton", "leverage", "gls_trace")
OF_METHOD = {"probes", "seed", "tolerance", "allow_unconverged", "rows", "curvature", "most_steps"}
LOSSES = ("cross_entropy", "squared", "binary_cross_entropy")


class Killed(Exception):
    pass


class Shelf(dict):
    """A checkpoint in memory, which always wants to save."""

    def load(self, name):
        return dict(self[name]) if name in self else None

    def save(self, name, tensors):
        self[name] = dict(tensors)

    def due(self) -> bool:
        return True

    def drop(self, name) -> None:
        self.pop(name, None)


def audit_depths(
    model,
    data,
    *,
    scores="default",
    method="sketch",
    checkpoint=NO_CHECKPOINT,
    on_part=lambda done, total: None,
    **options,
) -> ScoreTable:
    """The audit of a network's depths, with the options of all its objects in one call."""
    kind = {"sketch": Sketch, "exact": Solves}[method]
    own = {name: options.pop(name) for name in OF_METHOD & options.keys()}
    curvature = kind(**({"probes": 64, **own} if kind is Sketch else own))
    return DepthAudit(Depths(model, data, **options), scores, curvature).run(checkpoint, on_part)


def reports(table: ScoreTable) -> dict:
    """What the metadata say of each depth."""
    return table.meta.to_json()["depths"]


def network_of(case: tuple, depth: str) -> Network:
    return Network(case[0], case[1:], loss="cross_entropy", parameters=depth)


def test_columns_of_chosen_records_are_those_of_dense_algebra():
    case = made("mlp")
    rows = [11, 0, 7]
    depths = ("head", "last:2", "all")
    options = {"loss": "cross_entropy", "damping": 0.7, "depths": depths}
    found = audit_depths(case[0], case[1:], **options, method="exact", rows=rows, tolerance=1e-10)
    assert found.ids.tolist() == rows
    assert list(found.columns) == [f"{name}_{depth}" for depth in ("head", "last2", "all") for name in USUAL]
    assert list(found.attributes) == ["newton_capped_head", "newton_capped_last2", "newton_capped_all"]
    for depth in depths:
        network = network_of(case, depth)
        expected = dense(network).scores(0.7)
        for name in ("influence", "newton", "gls_trace"):
            column = found[f"{name}_{depth.replace(':', '')}"]
            np.testing.assert_allclose(column, expected[name][rows].numpy(), rtol=1e-7)
        assert reports(found)[depth]["parameters"] == network.size
        assert reports(found)[depth]["right_sides"] == 2 * len(rows)


def test_the_exact_hessian_of_chosen_records():
    case = made("mlp")
    options = {"loss": "cross_entropy", "damping": 8.0, "scores": "influence", "method": "exact", "rows": [2, 3]}
    found = audit_depths(case[0], case[1:], **options, curvature="hessian", tolerance=1e-10)
    exact = dense(network_of(case, "all"), hessian=True)
    inverse = torch.linalg.inv(exact.hessian + 8.0 * torch.eye(len(exact.hessian), dtype=torch.float64))
    g = exact.gradients()[[2, 3]]
    np.testing.assert_allclose(found["influence_all"], ((g @ inverse) * g).sum(1).numpy(), rtol=1e-7)
    assert not found.attributes
    assert reports(found)["all"]["right_sides"] == 2


@pytest.mark.parametrize("kind", ["mlp", "cnn", "transformer"])
def test_columns_of_all_records_are_those_of_the_sketch(kind):
    case = made(kind)
    found = audit_depths(case[0], case[1:], loss="cross_entropy", damping=2.0, probes=24, seed=3, tolerance=1e-9)
    inverse = InverseCurvature(network_of(case, "all"), damping=2.0, tolerance=1e-9)
    expected = sketch_records(inverse, probes=24, seed=3)
    for name in USUAL:
        np.testing.assert_allclose(found[f"{name}_all"], expected[name].numpy(), rtol=1e-6)
    np.testing.assert_array_equal(found.attributes["newton_capped_all"], expected.capped.numpy())
    told = reports(found)["all"]
    for name in ("probes", "redone", "above_half", "parameters", "damping", "right_sides"):
        assert told[name] == expected.report[name]
    assert told["sketch_error"] == pytest.approx(expected.report["sketch_error"], rel=1e-4)
    assert told["residual"] < 1e-9
    assert {"method", "steps", "passes", "seconds", "notes", "seed"} <= told.keys()


@pytest.mark.parametrize("loss", LOSSES)
def test_depth_head_is_the_audit_of_the_head(loss):
    model, x, y = made("mlp", n=30)
    targets = targets_for(loss, y)
    head = from_torch(model, torch.utils.data.TensorDataset(x, targets), loss=loss, l2=0.8)
    expected = ga.audit(head, scores=list(USUAL))
    exact = audit_depths(model, (x, targets), loss=loss, damping=0.8, depths="head", method="exact", tolerance=1e-11)
    sketch = audit_depths(model, (x, targets), loss=loss, damping=0.8, depths="head", probes=512)
    for name in USUAL:
        np.testing.assert_allclose(exact[f"{name}_head"], expected[name], rtol=1e-6)
        relative = sketch[f"{name}_head"] / expected[name] - 1
        assert np.sqrt(np.mean(relative**2)) < 3 * (2 / 512) ** 0.5
    np.testing.assert_array_equal(exact.attributes["newton_capped_head"], expected["newton_capped"])


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"method": "sketch", "probes": 64}, (16, 128)),
        ({"method": "exact", "rows": range(40)}, (64, 160)),
    ],
    ids=["sketch", "exact"],
)
def test_a_killed_run_goes_on_to_the_same_columns(options, first):
    case = made("mlp", n=60)
    options = {**options, "loss": "cross_entropy", "damping": 0.05, "depths": ("last:2", "all")}
    parts: list[tuple[int, int]] = []
    whole = audit_depths(case[0], case[1:], **options, on_part=lambda done, total: parts.append((done, total)))
    assert parts[0] == first
    assert parts[-1][0] == parts[-1][1]
    assert [done for done, _ in parts] == sorted(done for done, _ in parts)
    assert all(done <= total for done, total in parts)
    for last in {0, len(parts) // 2, len(parts) - 1}:  # killed at the first part, in the middle, at the last
        shelf, count = Shelf(), 0

        def kill(done: int, total: int, last: int = last) -> None:
            nonlocal count
            count += 1
            if count > last:
                raise Killed

        with pytest.raises(Killed):
            audit_depths(case[0], case[1:], **options, checkpoint=shelf, on_part=kill)
        assert len(shelf) > 0
        again: list[int] = []
        found = audit_depths(
            case[0], case[1:], **options, checkpoint=shelf, on_part=lambda done, total, again=again: again.append(done)
        )
        for name, column in whole.scores.items():
            np.testing.assert_array_equal(found[name], column)
        for name, column in whole.attributes.items():
            np.testing.assert_array_equal(found.attributes[name], column)
        for depth, told in reports(whole).items():
            assert {**reports(found)[depth], "seconds": 0} == {**told, "seconds": 0}
        assert list(shelf) == ["depth-last2", "depth-all"]  # parts go where their depth is finished


def test_finished_work_is_not_done_again(monkeypatch):
    case = made("mlp", n=60)
    options = {"loss": "cross_entropy", "damping": 0.05, "depths": ("head", "all"), "probes": 64}
    shelf = Shelf()

    def kill(done: int, total: int) -> None:
        if "depth-all-probes-16-32" in shelf:
            raise Killed

    with pytest.raises(Killed):
        audit_depths(case[0], case[1:], **options, checkpoint=shelf, on_part=kill)
    solved = []
    plain = InverseCurvature.__call__
    monkeypatch.setattr(InverseCurvature, "__call__", lambda self, b: (solved.append(b.shape[1]), plain(self, b))[1])
    found = audit_depths(case[0], case[1:], **options, checkpoint=shelf)
    assert reports(found)["all"]["redone"] > 0
    assert sum(solved) == reports(found)["all"]["right_sides"] - 32


def test_a_checkpoint_on_disk_takes_it_up(tmp_path, monkeypatch):
    monkeypatch.setattr(FolderCheckpoint, "due", lambda self: True)
    case = made("mlp")
    options = {"loss": "cross_entropy", "damping": 0.5, "depths": ("head", "all"), "probes": 32}
    whole = audit_depths(case[0], case[1:], **options)

    def kill(done: int, total: int) -> None:
        if done > 40:
            raise Killed

    first = FolderCheckpoint(tmp_path, {"audit": 1}, resume=False)
    with pytest.raises(Killed):
        audit_depths(case[0], case[1:], **options, checkpoint=first, on_part=kill)
    found = audit_depths(case[0], case[1:], **options, checkpoint=FolderCheckpoint(tmp_path, {"audit": 1}, resume=True))
    for name, column in whole.scores.items():
        np.testing.assert_array_equal(found[name], column)


def test_records_are_read_once():
    model, x, y = made("mlp")

    class Counted(torch.utils.data.Dataset):
        reads = 0

        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, row: int):
            Counted.reads += 1
            return x[row], y[row]

    options = {"loss": "cross_entropy", "damping": 1.0, "probes": 8}
    audit_depths(model, Counted(), **options, depths="head")
    alone, Counted.reads = Counted.reads, 0
    found = audit_depths(model, Counted(), **options, depths=("head", "last:2", "all"))
    assert alone == Counted.reads
    np.testing.assert_array_equal(found["newton_all"], audit_depths(model, (x, y), **options)["newton_all"])


WRONG = [
    ({"depths": "middle"}, "depths: expected head, all or last:k, got 'middle'; say how many layers, as last:2"),
    ({"depths": ["last:0"]}, "depths: expected head, all or last:k, got 'last:0'"),
    ({"depths": []}, "depths: expected at least one depth, got none"),
    ({"depths": ["head", "last:9"]}, "got 'last:9'; the model has 3 layers with parameters"),
    ({"damping": 0}, "damping: expected a number above 0, got 0; n times the weight decay suits a mean loss"),
    ({"damping": -1.0}, "damping: expected a finite number of at least 0, got -1.0"),
    ({"scores": ["newtn"]}, "scores: expected a known name, got 'newtn'; did you mean newton?"),
    ({"scores": ["fused"]}, "scores: expected a known name, got 'fused'"),
    ({"scores": []}, "scores: expected at least one score, got none"),
    ({"curvature": "fisher", "method": "exact"}, "curvature: expected a known name, got 'fisher'"),
    ({"rows": [99], "method": "exact"}, "rows: expected record numbers from 0 to 17, got others"),
    ({"probes": 5}, "probes: expected an even number of at least 4, got 5"),
    ({"memory": 0}, "memory: expected a number above 0, got 0; give gigabytes"),
    ({"tolerance": 0, "method": "exact"}, "tolerance: expected a number above 0, got 0"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=[words[:40] for _, words in WRONG])
def test_words_of_mistakes(options, words):
    model, x, y = made("mlp")
    message = refused("expected", audit_depths, model, (x, y), **{"loss": "cross_entropy", "damping": 1.0, **options})
    assert words in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimum": "refit"}, "optimum: expected a head beside it, got a network; leave optimum out"),
        ({"kernel": "rbf"}, "kernel: expected a head beside it, got a network; leave kernel out"),
        (
            {"curvature": Dense()},
            "curvature: expected Sketch(), or Solves() of ga.network, for a network, got",
        ),
        (
            {"curvature": Sketch(precision="float64")},
            "curvature: expected a sketch without options of a head's alone, got",
        ),
        (
            {"curvature": Sketch(memory=1.0)},
            "curvature: expected a sketch without options of a head's alone, got memory",
        ),
    ],
)
def test_what_a_network_does_not_take(options, words):
    model, x, y = made("mlp")
    deep = Depths(model, (x, y), loss="cross_entropy", damping=1.0)
    assert refused("expected", ga.audit, deep, **options).startswith(words)


def test_the_same_call_takes_heads_and_networks():
    model, x, y = made("mlp")
    deep = Depths(model, (x, y), loss="cross_entropy", damping=1.0, depths=["head", "all"])
    table = ga.audit(deep, scores=["newton", "loo_gap", "margin"], curvature=Solves(tolerance=1e-10))
    head = from_torch(model, torch.utils.data.TensorDataset(x, y), l2=1.0)
    expected = ga.audit(head, scores=["newton", "loo_gap", "margin"])
    for name in expected.columns:
        np.testing.assert_allclose(table[f"{name}_head"], expected[name], rtol=1e-6)
    both = with_depths(expected, table)
    assert both.columns == (*expected.columns, *table.columns)
    assert both.meta.depths.keys() == {"head", "all"}
