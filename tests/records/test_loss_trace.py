"""Loss traces: what is recorded is the mean loss of every record and epoch, whoever trains and whatever is killed."""

import gc
import os
import signal
import time
import weakref
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler

from giveaway import LossTrace, indexed
from giveaway.checks import InputError
from tests.conftest import refused

HALF = 1e-3  # relative rounding of float16


def expected_losses(steps: list[list[tuple[list[int], list[float]]]], records: int) -> np.ndarray:
    """The mean of every record's losses in every epoch, by plain loops; NaN where there is none."""
    found = np.full((len(steps), records), np.nan)
    for epoch, batches in enumerate(steps):
        for record in range(records):
            values = [loss for rows, losses in batches for row, loss in zip(rows, losses, strict=True) if row == record]
            if values:
                found[epoch, record] = sum(values) / len(values)
    return found


@given(st.data())
def test_every_epoch_holds_the_mean_loss_of_every_record(data: st.DataObject) -> None:
    """Any batches: repeated records, records that do not come up, epochs of any length below the number of records."""
    records = data.draw(st.integers(1, 12))
    loss = st.floats(0, 1e4, width=32)
    steps = []
    for _ in range(data.draw(st.integers(1, 4))):
        left, batches = records, []
        while left:
            rows = data.draw(st.lists(st.integers(0, records - 1), min_size=1, max_size=left))
            batches.append((rows, data.draw(st.lists(loss, min_size=len(rows), max_size=len(rows)))))
            left -= len(rows)
            if data.draw(st.booleans()):
                break
        steps.append(batches)
    trace = LossTrace(records)
    for batches in steps:
        for rows, losses in batches:
            trace.add(rows, torch.tensor(losses))
        trace.end_epoch()
    np.testing.assert_allclose(trace.losses, expected_losses(steps, records), rtol=HALF, atol=1e-6)


def test_an_epoch_ends_by_itself_and_a_further_call_ends_none() -> None:
    trace = LossTrace(4)
    for epoch in range(3):
        trace.add([3, 1], [1.0 + epoch, 2.0])
        trace.add(np.array([0, 2]), np.array([3.0, 4.0]))
        trace.end_epoch()
    assert trace.losses.tolist() == [[3.0, 2.0, 4.0, 1.0 + epoch] for epoch in range(3)]


def test_an_epoch_of_two_views_ends_after_all_of_them() -> None:
    trace = LossTrace(3, losses_per_epoch=6)
    for epoch in range(2):
        for row in (2, 0, 1):
            trace.add([row, row], [1.0 + row, 3.0 + row + epoch])
    assert trace.losses.tolist() == [[2.0, 3.0, 4.0], [2.5, 3.5, 4.5]]


def test_losses_that_are_not_finite_are_missing_and_large_ones_are_cut() -> None:
    trace = LossTrace(3)
    trace.add([0, 1, 2], torch.tensor([torch.nan, 1e9, torch.inf]))
    np.testing.assert_array_equal(trace.losses, [[np.nan, 65504.0, np.nan]])
    made = LossTrace.from_losses(np.array([[np.nan, 1e9, np.inf]]))
    np.testing.assert_array_equal(made.losses, trace.losses)


def test_what_the_caller_does_with_the_losses_afterwards_changes_nothing() -> None:
    trace, rows, losses = LossTrace(6), torch.tensor([0, 1]), torch.tensor([1.0, 2.0], requires_grad=True)
    others, values = np.array([2, 3]), np.array([3.0, 4.0], np.float32)
    trace.add(rows, losses)
    trace.add(others, values)
    with torch.no_grad():
        losses.zero_()
    values[:] = 0
    rows += 2
    others += 2
    trace.end_epoch()
    np.testing.assert_array_equal(trace.losses, [[1.0, 2.0, 3.0, 4.0, np.nan, np.nan]])


CLASSES = torch.tensor([2, 0, 1, 1])
LOGITS = torch.tensor([[1.0, -1.0, 0.5], [2.0, 0.0, 0.0], [0.3, 0.2, 0.1], [-1.0, 3.0, 1.0]])
CASES = {
    "cross-entropy": (nn.CrossEntropyLoss(), CLASSES),
    "weights of classes and label smoothing": (
        nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.5]), label_smoothing=0.1),
        CLASSES,
    ),
    "a class that is ignored": (nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.5]), ignore_index=0), CLASSES),
    "log-probabilities": (nn.NLLLoss(torch.tensor([1.0, 5.0, 0.5])), CLASSES),
    "soft labels": (nn.CrossEntropyLoss(label_smoothing=0.2), LOGITS.softmax(1).flip(1)),
    "several labels": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0])), (LOGITS > 0.2).float()),
    "probabilities": (nn.BCELoss(), (LOGITS > 0.2).float()),
    "values": (nn.MSELoss(reduction="sum"), LOGITS.flip(0)),
    "values with outliers": (nn.HuberLoss(delta=0.5), LOGITS.flip(0)),
}
ACTIVATIONS = {"log-probabilities": lambda f: f.log_softmax(1), "probabilities": torch.sigmoid}


def own_loss(case: str, f: np.ndarray, y: np.ndarray) -> float:
    """The loss of one record as a textbook writes it, in float64."""
    p = np.exp(f) / np.exp(f).sum()
    if case in ("values", "values with outliers"):
        d = np.abs(f - y)
        return float((d**2 if case == "values" else np.where(d < 0.5, d**2 / 2, 0.5 * (d - 0.25))).mean())
    if case in ("several labels", "probabilities"):
        q = 1 / (1 + np.exp(-f))
        return float(-(y * np.log(q) + (1 - y) * np.log(1 - q)).mean())
    if y.ndim:
        return float(-(y * np.log(p)).sum())
    return np.nan if case == "a class that is ignored" and y == 0 else float(-np.log(p[y]))


@pytest.mark.parametrize("case", CASES)
def test_the_loss_to_train_with_is_that_of_the_criterion(case: str) -> None:
    """Value and gradient are the criterion's own to the last bit; recorded is what the model says of each record."""
    criterion, targets = CASES[case]
    outputs = ACTIVATIONS.get(case, torch.clone)(LOGITS).requires_grad_()
    trace = LossTrace(4)
    returned = trace.loss(criterion, outputs, targets, torch.arange(4))
    plain = criterion(outputs, targets)
    assert torch.equal(returned, plain)
    assert torch.equal(*(torch.autograd.grad(one, outputs)[0] for one in (returned, plain)))
    expected = [own_loss(case, f, y) for f, y in zip(LOGITS.double().numpy(), targets.numpy(), strict=True)]
    np.testing.assert_allclose(trace.losses[0], expected, rtol=HALF)


def test_losses_of_half_precision_outputs_are_computed_in_single() -> None:
    trace, outputs = LossTrace(4), LOGITS.bfloat16()
    trace.loss(nn.CrossEntropyLoss(), outputs, CLASSES, range(4))
    expected = [own_loss("", f, y) for f, y in zip(outputs.double().numpy(), CLASSES.numpy(), strict=True)]
    np.testing.assert_allclose(trace.losses[0], expected, rtol=HALF)
    with torch.autocast("cpu", torch.bfloat16):
        logits = nn.functional.linear(LOGITS, torch.eye(3))
        assert logits.dtype == torch.bfloat16
        trace.loss(nn.CrossEntropyLoss(), logits, CLASSES, range(4))
    np.testing.assert_array_equal(trace.losses[1], trace.losses[0])


@pytest.mark.parametrize(("kept", "pending"), [(2**18, 2**22), (0, 2**22), (2**18, 1), (40, 50)])
def test_losses_that_are_computed_later_are_those_of_their_batch(
    monkeypatch: pytest.MonkeyPatch, kept: int, pending: int
) -> None:
    """Texts of several lengths, under criteria that change on the way, kept for the end of the epoch or not."""
    monkeypatch.setattr("giveaway.records.loss_trace.MOST_KEPT", kept)
    monkeypatch.setattr("giveaway.records.loss_trace.MOST_PENDING", pending)
    rng = torch.Generator().manual_seed(0)
    criteria = [nn.CrossEntropyLoss(ignore_index=1), nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]))]
    trace, expected, losses = LossTrace(40), np.full(40, np.nan), torch.rand(40, generator=rng)
    for step, rows in enumerate(torch.randperm(40, generator=rng).split(4)):
        if step % 4 == 3:
            trace.add(rows, losses[rows])
            expected[rows] = losses[rows]
            continue
        length = (1, 1, 5)[step % 3]
        outputs = torch.randn(4, 3, length, generator=rng)
        targets = torch.randint(3, (4, length), generator=rng)
        each, counted = -outputs.log_softmax(1), np.ones((4, length), bool)
        own = np.array([[each[i, targets[i, t], t] for t in range(length)] for i in range(4)])
        if step < 5:
            counted = targets.numpy() != 1
        with np.errstate(invalid="ignore"):
            expected[rows] = (own * counted).sum(1) / counted.sum(1)
        trace.loss(criteria[step >= 5], outputs, targets, rows)
        outputs.zero_()
        targets.zero_()
    np.testing.assert_allclose(trace.losses[0], expected, rtol=HALF, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True], ids=["model", "step"])
def test_a_compiled_model_and_a_compiled_step_give_the_same_trace(whole: bool) -> None:
    """Compiled by dynamo alone: what it makes of the Python around add is what could go wrong."""
    model, criterion, trace = nn.Linear(3, 3), nn.CrossEntropyLoss(), LossTrace(4)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
        model.bias.zero_()
    compiled = model if whole else torch.compile(model, backend="eager")

    def step(x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return trace.loss(criterion, compiled(x), y, rows)

    run = torch.compile(step, backend="eager") if whole else step
    for half in (slice(0, 2), slice(2, 4)) * 2:
        run(LOGITS[half], CLASSES[half], torch.arange(4)[half]).backward()
    expected = [own_loss("", f, y) for f, y in zip(LOGITS.double().numpy(), CLASSES.numpy(), strict=True)]
    np.testing.assert_allclose(trace.losses, [expected] * 2, rtol=HALF)


def test_padding_does_not_count_in_the_mean_over_tokens() -> None:
    logits = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, 2, 0, 4], [3, -100, -100, -100], [-100] * 4])
    trace = LossTrace(3)
    trace.loss(nn.CrossEntropyLoss(), logits, targets, range(3))
    each = -logits.log_softmax(1)
    first = torch.stack([each[0, targets[0, t], t] for t in range(4)]).mean()
    np.testing.assert_allclose(trace.losses[0], [first, each[1, 3, 0], np.nan], rtol=HALF)


def test_a_function_of_the_user_gives_one_loss_a_record() -> None:
    trace = LossTrace(4)
    returned = trace.loss(lambda outputs, targets: (outputs - targets).abs().sum(1), LOGITS, LOGITS.flip(0), range(4))
    each = (LOGITS - LOGITS.flip(0)).abs().sum(1)
    torch.testing.assert_close(returned, each.mean())
    np.testing.assert_allclose(trace.losses[0], each, rtol=HALF)


def test_a_trace_keeps_neither_the_model_nor_its_graph() -> None:
    """What outlives its process group can hang at the end of a run; a trace must not be what keeps it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def own(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return (self.layer(outputs) - targets).abs().sum(1)

    trace, model = LossTrace(4, losses_per_epoch=99), Model()
    for criterion in (nn.MSELoss(), model.own):
        trace.loss(criterion, model.layer(LOGITS), LOGITS, range(4))
    left = weakref.ref(model)
    del model, criterion
    gc.collect()
    assert left() is None
    trace.end_epoch()
    assert trace.epochs == 1


def test_indexed_items_find_their_records_under_any_sampler() -> None:
    x = torch.arange(40.0)
    data = indexed(TensorDataset(x, x.long() % 3))
    drawn = WeightedRandomSampler(torch.linspace(0, 1, 40), 40, generator=torch.Generator().manual_seed(0))
    half = Subset(TensorDataset(torch.cat([x + 40, x]), torch.zeros(80)), range(40, 80))  # fetches whole batches
    loaders = [
        DataLoader(data, 7, sampler=drawn),
        *(DataLoader(each, 7, shuffle=True) for each in (data, indexed(half))),
    ]
    for loader in loaders:
        trace = LossTrace(40)
        for inputs, _, rows in loader:
            trace.add(rows, inputs / 10)
        came_up = ~np.isnan(trace.losses[0])
        assert came_up.sum() > 10
        np.testing.assert_allclose(trace.losses[0][came_up], (x / 10)[came_up], rtol=HALF)
    assert indexed([{"text": "a"}, {"text": "b"}])[1] == {"text": "b", "row": 1}
    assert indexed(["a", "b"])[1] == ("b", 1)


def training(path: Path, done: int, kill_at: int, environment: dict[str, str]) -> None:
    """Train from epoch `done` to 5, and note every finished epoch as a training loop saves its checkpoint."""
    os.environ |= environment
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    trace = LossTrace(60, path, targets=np.arange(60) % 7, resume=done or None)
    steps = count()
    for epoch in range(done, 5):
        order = np.random.default_rng(epoch).permutation(60)[rank::world]
        for rows in np.array_split(order, 6):
            if next(steps) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            trace.add(rows, np.sqrt(rows + epoch / 8))
        path.with_suffix(".done").write_text(str(epoch + 1))


def train(path: Path, done: int = 0, kill_at: int = -1, **environment: str) -> int:
    """Train in a process of its own; return how many epochs it had finished."""
    process = get_context("fork").Process(target=training, args=(path, done, kill_at, environment))
    process.start()
    process.join()
    assert process.exitcode == (0 if kill_at < 0 else -signal.SIGKILL)
    noted = path.with_suffix(".done")
    return int(noted.read_text()) if noted.exists() else 0


@pytest.mark.parametrize("kill_at", [3, 14, 29])
def test_a_killed_training_goes_on_with_the_same_trace(tmp_path: Path, kill_at: int) -> None:
    train(tmp_path / "whole")
    done = train(tmp_path / "killed", kill_at=kill_at)
    if done == 0:
        (tmp_path / "killed").unlink()
    train(tmp_path / "killed", done)
    whole, killed = LossTrace(tmp_path / "whole"), LossTrace(tmp_path / "killed")
    assert whole.epochs == 5
    assert whole.identity == killed.identity != {}
    np.testing.assert_array_equal(killed.losses, whole.losses)
    assert (tmp_path / "killed").stat().st_mode & 0o777 == 0o600


def test_half_an_epoch_that_a_kill_left_does_not_count(tmp_path: Path) -> None:
    train(tmp_path / "trace")
    whole = np.array(LossTrace(tmp_path / "trace").losses)
    with open(tmp_path / "trace", "ab") as stream:
        stream.write(b"\0" * 7)
    np.testing.assert_array_equal(LossTrace(tmp_path / "trace").losses, whole)


def test_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    losses = np.array([[0.5, np.nan, 2.0], [0.25, 1.0, 0.0]], np.float16)
    made = LossTrace.from_losses(losses, targets=[0, 1, 0], ids=["a", "b", "c"])
    made.save(tmp_path / "made")
    read = LossTrace(tmp_path / "made")
    np.testing.assert_array_equal(read.losses, losses)
    assert isinstance(read.losses, np.memmap)
    assert read.identity == made.identity
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o600
    LossTrace(3).save(tmp_path / "none")
    assert LossTrace(tmp_path / "none").losses.shape == (0, 3)


def test_a_trace_takes_other_names_for_its_records_only(tmp_path: Path) -> None:
    trace = LossTrace.from_losses([[0.5, 1.0, 2.0]], ids=["a", "b", "c"], targets=[0, 1, 1])
    renamed = trace.renamed(["a", "b", "c"], ["x", "y", "z"])
    renamed.save(tmp_path / "renamed.trace")
    expected = LossTrace(3, ids=["x", "y", "z"], targets=[0, 1, 1]).identity
    assert renamed.identity == LossTrace(tmp_path / "renamed.trace").identity == expected
    assert renamed.losses.tolist() == [[0.5, 1.0, 2.0]]
    assert trace.identity == LossTrace(3, ids=["a", "b", "c"], targets=[0, 1, 1]).identity
    assert trace.renamed(["b", "a", "c"], ["x", "y", "z"]) is trace
    assert trace.renamed(["a", "b"], ["x", "y"]) is trace
    unnamed = LossTrace(3, targets=[0, 1, 1])
    assert unnamed.renamed(["a", "b", "c"], ["x", "y", "z"]) is unnamed


def test_the_same_rows_have_one_identity_and_permuted_ones_another() -> None:
    def identity(**names: object) -> dict[str, str]:
        return LossTrace(3, **names).identity

    assert identity() == {}
    same = [np.array([0.0, 1.0, 0.5]), torch.tensor([[0.0], [1.0], [0.5]], dtype=torch.float64), [0, 1, 0.5]]
    assert len({identity(targets=each)["targets"] for each in same}) == 1
    assert identity(targets=[True, False, False]) == identity(targets=torch.tensor([1.0, 0.0, 0.0]))
    named = [["7", "8", "9"], [7, 8, 9], np.array(["7", "8", "9"], "<U12"), torch.tensor([7, 8, 9])]
    assert len({identity(ids=each)["ids"] for each in named}) == 1
    assert identity(ids=[7, 8, 9])["ids"] != identity(ids=[8, 7, 9])["ids"]
    assert identity(targets=[0, 1, 2]) != identity(targets=[1, 0, 2])


def test_workers_of_a_killed_training_do_not_hold_its_trace(tmp_path: Path) -> None:
    trace = LossTrace(3, tmp_path / "trace")
    trace.add(range(3), [1.0, 2.0, 3.0])
    worker = get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    worker.start()
    time.sleep(0.1)
    trace._file.close()  # as a kill does
    assert LossTrace(3, tmp_path / "trace", resume=1).losses.tolist() == [[1.0, 2.0, 3.0]]
    worker.kill()


def test_two_processes_record_the_trace_of_one(tmp_path: Path) -> None:
    train(tmp_path / "one")
    for rank in "01":
        train(tmp_path / "two", RANK=rank, WORLD_SIZE="2")
    two = LossTrace(tmp_path / "two")
    np.testing.assert_array_equal(two.losses, LossTrace(tmp_path / "one").losses)
    (tmp_path / "two.1-of-2").unlink()
    refused("expected the files of all 2 processes of one training, got 1 beside", LossTrace, tmp_path / "two")


def test_a_file_is_not_overwritten_nor_continued_by_another_training(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    train(path)
    refused(r"expected a new file, got .*, which exists; choose another, or give resume=", LossTrace, 60, path)
    words = r"path: expected the trace that this training began, got targets differ; choose another file"
    refused(words, LossTrace, 60, path, targets=np.arange(60) % 5, resume=2)
    with pytest.raises(InputError, match="resume: expected at most the epochs of the trace"):
        LossTrace(60, path, targets=np.arange(60) % 7, resume=6)
    made = LossTrace(3, tmp_path / "made", made_of={"learning rate": 0.1})
    made.close()
    refused(r"trace: expected one that is being recorded, got one that was read", made.add, [0], [1.0])
    with pytest.raises(InputError, match=r"got learning rate was 0\.1, is 0\.2; records was 3, is 4; choose another"):
        LossTrace(4, tmp_path / "made", made_of={"learning rate": 0.2}, resume=0)
    (tmp_path / "diary").write_text("Dear diary")
    refused(r"expected a file that ga\.LossTrace wrote", LossTrace, 60, tmp_path / "diary", resume=0)
    assert (tmp_path / "diary").read_text() == "Dear diary"
    with pytest.raises(InputError, match=r"the trace that this training began, got .*, which does not exist"):
        LossTrace(60, tmp_path / "missing", resume=1)
    assert not (tmp_path / "missing").exists()
    first = LossTrace(60, path, targets=np.arange(60) % 7, resume=5)
    with pytest.raises(InputError, match=r"path: expected a file of its own, got .*, in use by another run"):
        LossTrace(60, path, targets=np.arange(60) % 7, resume=5)
    assert first.epochs == 5
    first.close()
    assert first.epochs == 5
    kept = np.array(first.losses[:3])
    earlier = LossTrace(60, path, targets=np.arange(60) % 7, resume=3)
    np.testing.assert_array_equal(earlier.losses, kept)  # what came after the checkpoint is dropped
    earlier.close()
    assert LossTrace(60, path, targets=np.arange(60) % 7, resume=0).epochs == 0


X = torch.ones(2, 1)
REFUSED = {
    "losses: expected 2 losses, one a row, got shape ()": lambda t: t.add([0, 1], torch.tensor(1.0)),
    "rows: expected row numbers (b,), got float32 of shape (2,)": lambda t: t.add(torch.rand(2), torch.ones(2)),
    "rows: expected 2 row numbers, one an output, got 3": lambda t: t.loss(nn.MSELoss(), X, X, [0, 1, 2]),
    "rows: expected row numbers from 0 to 2, got 3": lambda t: t.add([0, 1, 3], torch.ones(3)),
    "losses: expected losses of at least 0, got -1": lambda t: t.add([0, 1, 2], torch.tensor([1.0, -1.0, 0.0])),
    "records: expected a whole number of at least 1, got 0": lambda t: LossTrace(0),
    "targets: expected 3 targets, one a record, got shape (2,)": lambda t: LossTrace(3, targets=[0, 1]),
    "trace: expected a file that ga.LossTrace wrote": lambda t: LossTrace(__file__),
    "trace: expected the file of a trace, got nowhere, which does not exist": lambda t: LossTrace("nowhere"),
    "losses: expected floating-point numbers (epochs, records)": lambda t: LossTrace.from_losses([1.0, 2.0]),
    "losses: expected losses of at least 0, got -0.5": lambda t: LossTrace.from_losses([[1.0, -0.5]]),
    "path: expected a file beside resume, got none": lambda t: LossTrace(3, resume=1),
    "resume: expected a whole number of at least 0, got -1": lambda t: LossTrace(3, "nowhere", resume=-1),
    "losses_per_epoch: expected a whole number of at least 1, got 0": lambda t: LossTrace(3, losses_per_epoch=0),
    "made_of: expected less than 4096 bytes": lambda t: LossTrace(3, made_of={"text": "a" * 5000}).save("nowhere"),
    "dataset: expected one whose items have row numbers, got a generator": lambda t: indexed(i for i in range(3)),
    'dataset: expected items without a "row" of their own': lambda t: indexed([{"row": 1}])[0],
    "trace: expected one that is being recorded": lambda t: LossTrace.from_losses([[1.0]]).add([0], [1.0]),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals_say_what_to_do(words: str) -> None:
    with pytest.raises(InputError) as error:
        REFUSED[words](LossTrace(3))
    assert words in str(error.value)
    assert "; " in str(error.value)
