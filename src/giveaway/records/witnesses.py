"""Witnesses: what a head may hold beside outputs and targets to tell what its model would say without a record.

They are outputs on variants of the records (relatives), on records that the model was not trained on (held out), and of
the part of a bagged model that never saw the record (out of bag).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from giveaway.checks import as_tensor, check_finite, check_shape, errors_about, fail, rows_at_a_time
from giveaway.records.examples import check_targets
from giveaway.records.rows import Rows, as_float_rows

LOGARITHMS = "np.log(np.clip(p, 1e-12, None))"  # of probabilities p
HELD_OUT = ("held_out_outputs", "held_out_targets")  # keys of files
ALONE = "relatives"  # the name, and the key, of variants that came as one array
PREFIX = "relatives_"  # of the keys of variants with a name


def _relatives(value: Any, n: int, m: int, loss: str) -> dict[str, Rows] | None:
    """Return outputs (n, m) on every variant of the records by the variant's name; an array alone is one variant."""
    given = value if isinstance(value, Mapping) else {ALONE: value}
    outputs: dict[str, Rows] = {}
    for name, array in given.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise fail("relatives", "variants named by a plain word", repr(name), "call it mirror, shift, or the like")
        argument, meaning = f"relatives[{name!r}]", f"({n}, {m}), the outputs on that variant of every record"
        outputs[name] = _outputs(ALONE if name == ALONE else argument, array, (n, m), meaning, loss)
    return outputs or None


def _held_out(value: Any, n: int, m: int, loss: str) -> tuple[Rows, torch.Tensor]:
    """Return outputs (k, m) and targets of records that the model was not trained on."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        got = f"{len(value)} parts" if isinstance(value, tuple | list) else f"a {type(value).__name__}"
        raise fail("held_out", "(outputs, targets) of records held out", got, "pass both, in one order")
    rows = _outputs("held_out outputs", value[0], (None, m), f"(records held out, {m})", loss)
    if len(rows) == 0:
        raise fail("held_out", "at least one record", "none", "pass a validation set, or None")
    with errors_about("held_out "):
        return rows, check_targets(as_tensor("targets", value[1]), rows, loss, one_class=True)


def _out_of_bag(value: Any, n: int, m: int, loss: str) -> torch.Tensor:
    """Return what never saw each record says of it (n, m); a row of NaN where nothing is left to ask."""
    rows = as_tensor("out_of_bag", value)
    rows = rows.unsqueeze(1) if rows.ndim == 1 else rows
    rows = rows if rows.is_floating_point() else rows.to(torch.float64)
    check_shape("out_of_bag", rows, (n, m), f"({n}, {m}), as the outputs")
    silent = rows.isnan().all(dim=1, keepdim=True)
    if bool(silent.all()):
        raise fail("out_of_bag", "a prediction for some records", "NaN in every row", "fit more estimators, or drop it")
    told = torch.where(silent, 1.0 / m, rows)  # passes for a row of probabilities, as for one of finite logits
    check_logarithms(told, loss, "out_of_bag")
    check_finite("out_of_bag", told)
    return rows


# of every field of a head: what brings it into one form, and refuses what cannot be used
WITNESSES: dict[str, Callable[[Any, int, int, str], Any]]
WITNESSES = {"relatives": _relatives, "held_out": _held_out, "out_of_bag": _out_of_bag}


def _outputs(argument: str, value: Any, shape: tuple[int | None, ...], meaning: str, loss: str) -> Rows:
    rows = as_float_rows(argument, value)
    check_shape(argument, rows, shape, meaning)
    check_logarithms(rows, loss, argument)
    check_finite(argument, rows)
    return rows


def check_logarithms(outputs: Rows, loss: str, argument: str = "outputs") -> None:
    """Refuse probabilities in place of logits, and logarithms of 0."""
    if loss != "cross_entropy" or len(outputs) == 0:
        return
    probable, size = outputs.shape[1] > 1, rows_at_a_time(outputs)
    for start in range(0, len(outputs), size):
        block = outputs[start : start + size]
        if bool((lowest := block == -torch.inf).any()):
            row = start + int(lowest.any(dim=1).nonzero()[0])
            raise fail(argument, "finite logits", f"minus infinity first in row {row}", f"clip them: {LOGARITHMS}")
        probable = probable and bool(((block >= 0) & (block <= 1)).all())
        # 1e-3: probabilities in half precision
        probable = probable and bool(((block.sum(1, dtype=torch.float64) - 1).abs() < 1e-3).all())
    if probable:
        raise fail(argument, "logits", "probabilities, rows that sum to 1", f"pass their logarithms: {LOGARITHMS}")


def arrays_of_witnesses(head: Any) -> dict[str, Any]:
    """Return the witnesses of a head as arrays under the keys that files have for them; only those that are there."""
    arrays = {ALONE if name == ALONE else PREFIX + name: rows for name, rows in (head.relatives or {}).items()}
    if head.held_out is not None:
        arrays |= dict(zip(HELD_OUT, head.held_out, strict=True))
    return arrays if head.out_of_bag is None else arrays | {"out_of_bag": head.out_of_bag}


def is_relatives(key: str) -> bool:
    """Whether a file has outputs on a variant of the records under this key."""
    return key == ALONE or key.startswith(PREFIX)


def witnesses_in(stored: dict[str, Any]) -> dict[str, Any]:
    """Take the witnesses out of the arrays of a file, and return them as arguments of Head."""
    variants = {key.removeprefix(PREFIX): stored.pop(key) for key in sorted(filter(is_relatives, stored))}
    fields: dict[str, Any] = {"relatives": variants} if variants else {}
    if given := [key for key in HELD_OUT if key in stored]:
        if len(given) == 1:
            raise fail("held_out", f"{' and '.join(HELD_OUT)} together", f"{given[0]} alone", "add the other")
        fields["held_out"] = tuple(stored.pop(key) for key in HELD_OUT)
    return fields | ({"out_of_bag": stored.pop("out_of_bag")} if "out_of_bag" in stored else {})
