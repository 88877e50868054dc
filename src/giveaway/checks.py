"""Input checks shared by every entry point, in one wording: argument, expected, got, what to do."""

import difflib
import math
import os
import sysconfig
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROWS_PER_CHECK = 16_384
CHECK_BYTES = 2**23  # of an array at a time, if that is fewer rows
MEMORY = "/proc/meminfo"
MOST_LETTERS = 1_000  # of a name: an array of names is as wide as its longest
OURS = str(Path(__file__).parent)
LIBRARIES = ("<", *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")))
CPU = torch.device("cpu")
LARGEST = 1e100  # of what is handed over: squares of features times weights must exist


class InputError(ValueError):
    """Something the user handed over cannot be used; the message is one line and says what to do."""


def fail(argument: str, expected: str, got: str, remedy: str) -> InputError:
    """Return the error for `argument`, worded as everywhere in giveaway, for the caller to raise."""
    return InputError(f"{argument}: expected {expected}, got {got}; {remedy}")


def raised_at(error: BaseException) -> str:
    """Name an error by its type and the line that raised it, of the user's code if any: its words may hold values."""
    frames = traceback.extract_tb(error.__traceback__)
    users, ours = users_frames(error), [frame for frame in frames if frame.filename.startswith(OURS)]
    through = users or ours or frames
    where = f"line {through[-1].lineno} of {Path(through[-1].filename).name}" if through else "an unknown line"
    inside = f", in {Path(frames[-1].filename).name}" if through is ours and ours[-1] != frames[-1] else ""
    return f"{type(error).__name__} at {where}{inside}"


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return where the error went through code that is neither ours nor a library's: a path in it may be a value."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith((OURS, *LIBRARIES))]


def nearest(name: str, choices: Iterable[str]) -> str:
    """Suggest names near a misspelt one, else list the names to choose from."""
    known = list(choices)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6 if len(name) > 3 else 0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"choose from {listed(known)}"


def listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")


def as_tensor(argument: str, value: Any) -> torch.Tensor:
    """Return `value` as a CPU or device tensor that shares its memory where possible (NumPy, memory maps, torch)."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if (array := np.asarray(value)).dtype.kind not in "fiub":
        raise fail(argument, "an array of numbers", f"dtype {array.dtype}", "convert it to float or integer")
    if array.dtype in (np.uint16, np.uint32, np.uint64, np.longdouble) or not array.dtype.isnative:
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    if any(step < 0 for step in array.strides):
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        # torch warns that a read-only buffer (a memory map) could be written to; nothing here writes to it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(array)


def rows_at_a_time(rows: Any) -> int:
    """Return how many rows of a tensor or of lazy rows a pass over them should read at a time."""
    return max(1, min(ROWS_PER_CHECK, CHECK_BYTES * len(rows) // max(1, rows.nbytes)))


def check_finite(argument: str, tensor: Any, first: int | torch.Tensor = 0) -> None:
    """Refuse NaN, infinity and what is beyond LARGEST, block by block; `first` is the number of the first row, or the
    numbers of all of them."""
    if not tensor.is_floating_point() or getattr(tensor, "checked_when_read", False):
        return
    size = rows_at_a_time(tensor)
    for start in range(0, len(tensor), size):
        block = tensor[start : start + size]
        # the extremes need no copy of the block, which isfinite makes
        if block.numel() == 0 or bool((torch.stack(torch.aminmax(block)).double().abs() <= LARGEST).all()):
            continue
        bad = ~(block.double().abs() <= LARGEST).reshape(len(block), -1).all(dim=1)
        at = start + int(bad.nonzero()[0])
        row = first + at if isinstance(first, int) else int(first[at])
        what = f"numbers beyond {LARGEST:g}" if bool(block.isfinite().all()) else "NaN or infinity"
        got = f"{what} first in row {row} ({int(bad.sum())} such rows in its block of {len(block)})"
        raise fail(argument, "finite numbers", got, "repair or drop those records")


def check_shape(argument: str, tensor: Any, expected: tuple[int | None, ...], meaning: str) -> None:
    """Refuse a shape that does not match `expected` (None matches any size)."""
    if tensor.ndim != len(expected) or any(e not in (None, s) for e, s in zip(expected, tensor.shape, strict=True)):
        raise fail(argument, f"shape {meaning}", f"shape {tuple(tensor.shape)}", "align it with the other arrays")


def check_number(argument: str, value: Any, *, minimum: float, remedy: str) -> float:
    """Return `value` as a finite number; refuse one below `minimum`."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < minimum:
        raise fail(argument, f"a finite number of at least {minimum:g}", repr(value), remedy)
    return number


def check_positive(argument: str, value: Any, *, expected: str = "a number above 0", remedy: str) -> float:
    """Return a finite number above 0, else refuse it."""
    number = check_number(argument, value, minimum=0.0, remedy=remedy)
    if number == 0.0:
        raise fail(argument, expected, repr(value), remedy)
    return number


def check_penalty(argument: str, value: Any) -> float:
    """Return 0 or a number between 1/LARGEST and LARGEST, else refuse it."""
    number = check_number(argument, value, minimum=0.0, remedy="give the penalty in summed-loss units")
    if number and not 1 / LARGEST <= number <= LARGEST:
        raise fail(argument, f"0, or {1 / LARGEST:g} to {LARGEST:g}", f"{number:g}", "rescale the features, or give 0")
    return number


def check_kind(argument: str, value: Any, kinds: type | tuple[type, ...], remedy: str) -> None:
    """Refuse an object of another class, and a class in place of an object."""
    if not isinstance(value, kinds):
        names = [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise fail(argument, f"a {' or '.join(names)}", got, remedy)


@contextmanager
def errors_about(words: str) -> Iterator[None]:
    """Put `words` before the message of every InputError that is raised inside."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{words}{error}") from error


def check_whole(argument: str, value: Any, minimum: int = 1, *, remedy: str = "give how many there should be") -> int:
    """Return a whole number of at least `minimum`, else refuse it."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise fail(argument, f"a whole number of at least {minimum}", repr(value), remedy)
    return int(value)


def check_choice(argument: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`; else suggest the near ones."""
    known = list(choices)
    if value not in known:
        raise fail(argument, "a known name", repr(value), nearest(str(value), known))
    return value


def check_names(argument: str, value: Any, n: int, *, unique: bool) -> np.ndarray:
    """Return `value` as an array of n integer or string names (ids or groups)."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, list | tuple) or getattr(value, "dtype", 0) == np.dtype(object):
        _check_letters(argument, [len(name) if isinstance(name, str) else 0 for name in value])
    names = np.asarray(value)
    if names.dtype.kind == "U" and names.dtype.itemsize > 4 * MOST_LETTERS:
        names = names.astype(f"U{_check_letters(argument, np.char.str_len(names))}")
    if names.dtype.kind == "O" and all(isinstance(name, str) for name in names.ravel()):
        names = names.astype(str)
    if names.ndim != 1 or len(names) != n:
        raise fail(argument, f"one name a record, {n} in all", f"shape {names.shape}", "align it with the features")
    if names.dtype.kind not in "iuU":
        raise fail(argument, "integers or strings", f"dtype {names.dtype}", "convert the names to str or int")
    if unique and not bool((names[1:] > names[:-1]).all()):  # in order, they are all different
        _, first, counts = np.unique(names, return_index=True, return_counts=True)
        if len(first) < n:
            got = f"{int((counts > 1).sum())} repeated ids, the first at row {int(first[counts > 1].min())}"
            remedy = "make ids unique, and pass groups= to say which records belong to one person"
            raise fail(argument, "a different id for every record", got, remedy)
    return names


def _check_letters(argument: str, lengths: Any) -> int:
    """Return the length of the longest name; refuse one that would make the array of all of them huge."""
    if (longest := int(np.max(lengths, initial=1))) > MOST_LETTERS:
        got = f"one of {longest:,} in row {int(np.argmax(lengths))}"
        raise fail(argument, f"names of at most {MOST_LETTERS:,} letters", got, "give row numbers, or hashes of them")
    return longest


def check_memory(argument: str, needed: int, *, what: str, got: str, remedy: str, device: torch.device = CPU) -> None:
    """Refuse work that needs more bytes than are free on `device`."""
    available = free_memory(device)
    if needed > available:
        expected = f"{what} within the {available / 1e9:.1f} GB of free memory"
        raise fail(argument, expected, f"{got}, which need {needed / 1e9:.1f} GB", remedy)


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping; the page cache counts as free where the system tells."""
    with suppress(OSError, StopIteration), open(MEMORY, encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory(device: torch.device) -> int:
    """Return the bytes that can be allocated on `device`."""
    if device.type == "cuda":
        # torch's own cache is free to this process
        spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + spare
    return available_memory()
