"""Training examples: their targets in one form for each loss, their inputs as numbers or texts, and their rows."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from giveaway.checks import MOST_LETTERS, InputError, as_tensor, check_choice, check_finite, check_shape, fail
from giveaway.records.rows import LazyRows, Rows
from giveaway.storage.arrays import to_numpy

LOSSES = ("squared", "cross_entropy", "binary_cross_entropy")
CHANNELS = (1, 3, 4)
TEXT_BYTES = 2**31  # strings are saved as wide as the longest of them, up to this size in all


def as_numbers(inputs: np.ndarray) -> np.ndarray:
    """Return inputs as float64, images with their channels first."""
    if inputs.dtype.kind not in "fiub":
        remedy = "embed them, and pass the vectors"
        raise fail("inputs", "images or a matrix of numbers", f"dtype {inputs.dtype}", remedy)
    images = _as_images(inputs)
    return inputs.astype(np.float64) if images is None else np.ascontiguousarray(images) / 255.0


def as_records(inputs: np.ndarray) -> Any:
    """Return inputs in their own type, uncopied: uint8 images with channels first, one string a record as a list."""
    if inputs.dtype.kind not in "fiubU":
        raise fail("inputs", "images, numbers or strings", f"dtype {inputs.dtype}", "convert them to numbers or str")
    if inputs.dtype.kind == "U" and inputs.ndim == 1:
        return inputs.tolist()
    images = _as_images(inputs)
    return inputs if images is None else images


def _as_images(inputs: np.ndarray) -> np.ndarray | None:
    """Return bytes of three or four axes as images with their channels first; None for everything else."""
    if inputs.dtype != np.uint8 or inputs.ndim not in (3, 4):
        return None
    if inputs.ndim == 3:
        return inputs[:, None]
    if inputs.shape[3] in CHANNELS:
        return inputs.transpose(0, 3, 1, 2)
    if inputs.shape[1] in CHANNELS:
        return inputs
    expected = "images with 1, 3 or 4 channels, last or first"
    raise fail("inputs", expected, f"shape {inputs.shape}", "pass floats if they are no images")


def check_inputs(value: Any, n: int) -> Any:
    """Return the records themselves, n rows, as a tensor, an array, a DataFrame, or a list of strings."""
    if isinstance(value, torch.Tensor):
        value = value.detach().float() if value.dtype == torch.bfloat16 else value.detach()  # NumPy has no bfloat16
    elif hasattr(value, "iloc"):
        value = value.to_numpy() if value.ndim == 1 else value
    elif isinstance(value, list | tuple) and all(isinstance(row, str) for row in value):
        value = list(value)
    elif isinstance(value, list | tuple) or hasattr(value, "__array__"):
        try:
            value = np.asanyarray(value)
        except (ValueError, TypeError, RuntimeError) as error:
            expected, got = "rows that make one array", "rows of several shapes or of other things"
            raise fail("inputs", expected, got, "make all records alike, and pass an array") from error
    else:
        remedy = "pass the records themselves, dense, in the order of the outputs"
        raise fail("inputs", "an array, a DataFrame or a list of strings", f"a {type(value).__name__}", remedy)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "fiubSUO":
        raise fail("inputs", "numbers, strings or objects", f"dtype {value.dtype}", "convert them to numbers or str")
    line = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "UO"
    if line and all(isinstance(text, str) for text in value):
        value = value.tolist()  # not an array, which is as wide as its longest string
    rows = "shape ()" if getattr(value, "ndim", 1) == 0 else f"{len(value)} rows"
    if rows != f"{n} rows":
        raise fail("inputs", f"{n} rows, one a record", rows, "align them with the outputs")
    if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        check_finite("inputs", as_tensor("inputs", value))
    return value


def check_class_names(value: Any, m: int, loss: str) -> tuple[str, ...]:
    """Return what the classes are called, one different name each; two of them where there is one logit."""
    names, count = tuple(map(str, np.atleast_1d(value).tolist())), 2 if (m, loss) == (1, "cross_entropy") else m
    if loss == "squared":
        raise fail("class_names", "classes", "values (loss='squared')", "drop class_names=")
    if len(names) != count:
        remedy = "name them in the order of the outputs"
        raise fail("class_names", f"{count} names, one a class", f"{len(names)}", remedy)
    if len({*names, ""}) <= count or max(map(len, names)) > MOST_LETTERS:
        expected = f"different names of 1 to {MOST_LETTERS:,} letters"
        raise fail("class_names", expected, "equal, empty or longer ones", "call each class by a name of its own")
    return names


def saveable(inputs: Any) -> np.ndarray:
    """Return inputs as an array of numbers or strings that an .npz can hold without pickle."""
    stored = to_numpy(inputs) if isinstance(inputs, torch.Tensor) else inputs
    if isinstance(inputs, list) and 4 * len(inputs) * max(map(len, inputs)) <= TEXT_BYTES:
        stored = np.array(inputs)
        if stored.tolist() != inputs:  # NumPy drops zeros at the end of a string
            stored = inputs
    if not isinstance(stored, np.ndarray) or stored.dtype.kind not in "fiubU":
        got = f"dtype {stored.dtype}" if isinstance(stored, np.ndarray) else f"a {type(stored).__name__}"
        got = "strings that are too long, or end in zeros" if isinstance(stored, list) else got
        remedy = "save dataclasses.replace(head, inputs=None), and the records apart"
        raise fail("inputs", "numbers or strings, which need no pickle", got, remedy)
    return stored


def infer_loss(targets: Any, outputs: Any) -> str:
    """Infer the loss that `loss="auto"` stands for from the type of the targets; refuse ambiguous ones."""
    y, f = as_tensor("targets", targets), outputs if isinstance(outputs, LazyRows) else as_tensor("outputs", outputs)
    width = f.shape[1] if f.ndim == 2 else 1
    column = y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y
    whole, binary = not column.is_floating_point(), bool(((column == 0) | (column == 1)).all())
    if column.ndim == 1 and whole and (width > 1 or binary):
        return "cross_entropy"
    if column.ndim == 2 and width == column.shape[1]:
        rows = column.to(torch.float64)
        if bool(((rows >= 0) & (rows <= 1)).all()) and bool(((rows.sum(1) - 1).abs() <= 1e-4).all()):
            return "cross_entropy"
    if not whole and not binary:
        if column.ndim == 1 and width > 1:
            raise _float_labels(column)
        return "squared"
    expected = "targets that tell the loss (integer labels, float values, or rows of probabilities)"
    got = f"{str(y.dtype).removeprefix('torch.')} targets of shape {tuple(y.shape)} with {width} outputs"
    raise fail("loss", expected, got, "say which: loss='squared', 'cross_entropy' or 'binary_cross_entropy'")


def check_targets(y: torch.Tensor, outputs: Rows, loss: str, *, one_class: bool = False) -> torch.Tensor:
    """Return class indices (n,) int64, or floats (n, m); refuse labels that are all the same unless `one_class`."""
    check_choice("loss", loss, LOSSES)
    n, m = outputs.shape
    if y.ndim == 0 or len(y) != n:
        raise fail("targets", f"{n} rows, one a record", f"shape {tuple(y.shape)}", "align them with the features")
    check_finite("targets", y)
    if loss != "cross_entropy":
        y = y.unsqueeze(1) if y.ndim == 1 else y
        each = "value" if loss == "squared" else "0/1 label"
        check_shape("targets", y, (n, m), f"({n}, {m}), one {each} an output")
        if loss == "squared":
            return y.to(torch.float64)
        return _two_classes(_check_probabilities(y), one_class or m > 1)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.ndim == 2:
        if m == 1:
            raise fail("targets", "0/1 labels (n,) for one logit", f"shape {tuple(y.shape)}", "pass class indices")
        check_shape("targets", y, (n, m), f"({n},) class indices or ({n}, {m}) probabilities")
        y = _check_probabilities(y)
        worst = float((y.sum(1) - 1).abs().max())
        if worst > 1e-4:
            raise fail("targets", "probability rows that sum to 1", f"a row off by {worst:.3g}", "normalize them")
        return _two_classes(y, one_class) / y.sum(1, keepdim=True)
    if y.is_floating_point() and (m > 1 or bool((y != y.round()).any())):
        raise _float_labels(y)
    y = y.to(torch.int64)
    classes = max(m, 2)
    if int(y.min()) < 0 or int(y.max()) >= classes:
        bad = int(((y < 0) | (y >= classes)).nonzero()[0])
        expected, got = f"class labels from 0 to {classes - 1}", f"another label in row {bad}"
        raise fail("targets", expected, got, "number the classes from 0 in the order of the outputs")
    return _two_classes(y, one_class)


def _two_classes(y: torch.Tensor, one_class: bool) -> torch.Tensor:
    """Return the labels; refuse those that are all the same and certain, unless `one_class`."""
    if not one_class and bool((y == y[0]).all()) and bool((y[0] == y[0].round()).all()):
        raise fail("targets", "at least two classes", "one class only", "pass the whole training set")
    return y


def _float_labels(y: torch.Tensor) -> InputError:
    kind = str(y.dtype).removeprefix("torch.")
    return fail("targets", "integer class labels", f"{kind} labels", "cast them to int, or set loss='squared'")


def _check_probabilities(y: torch.Tensor) -> torch.Tensor:
    y = y.to(torch.float64)
    if bool(((y < 0) | (y > 1)).any()):
        bad = int(((y < 0) | (y > 1)).any(dim=1).nonzero()[0])
        raise fail("targets", "labels between 0 and 1", f"another value in row {bad}", "pass 0/1 or probabilities")
    return y


class Indexed(Dataset):
    """The data set with each item's row number added: last in a tuple, under "row" in a dictionary."""

    def __init__(self, dataset: Any) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            remedy = "give each item its place yourself, and hand it to trace.add"
            raise fail("dataset", "one whose items have row numbers", f"a {type(dataset).__name__}", remedy)
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        return _with_row(self.dataset[row], row)

    def __getitems__(self, rows: list[int]) -> list[Any]:
        fetch = getattr(self.dataset, "__getitems__", None)  # what loaders ask for a whole batch, where there is one
        items = [self.dataset[row] for row in rows] if fetch is None else fetch(rows)
        return [_with_row(item, row) for item, row in zip(items, rows, strict=True)]


def _with_row(item: Any, row: int) -> Any:
    if isinstance(item, dict):
        if "row" in item:
            raise fail("dataset", 'items without a "row" of their own', 'a dictionary with "row"', "rename that key")
        return {**item, "row": row}
    return (*item, row) if isinstance(item, tuple | list) else (item, row)


indexed = Indexed
