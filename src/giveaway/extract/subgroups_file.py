"""Which subgroup every record belongs to, from a file: the columns of a CSV, or the arrays of an .npz."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from giveaway.checks import fail
from giveaway.storage.files import read_arrays

MOST_VALUES = 200  # of one kind: more are no subgroups


def subgroups_from(path: str, n: int) -> dict[str, np.ndarray]:
    """A name a record for each kind of subgroup, as text; there must be n of each."""
    if not path.endswith((".csv", ".npz")):
        raise fail("subgroups", "FILE.csv with a heading, or FILE.npz", path, "write one column a kind of subgroup")
    found = read_arrays("subgroups", path, "numpy.savez") if path.endswith(".npz") else _read_csv(path)
    if not found:
        raise fail("subgroups", "at least one column", f"{path} without any", "write one column a kind of subgroup")
    for place, values in enumerate(found.values()):
        if values.shape != (n,):
            got = f"{len(values) if values.ndim else 0} in column {place}"
            raise fail("subgroups", f"{n} values, one a record", got, "align the file with the records")
        if len(np.unique(values)) > MOST_VALUES:
            got = f"{len(np.unique(values))} in column {place}"
            raise fail("subgroups", f"at most {MOST_VALUES} subgroups", got, "group the values, or leave it out")
    return {name: values.astype(str) for name, values in found.items()}


def _read_csv(path: str) -> dict[str, np.ndarray]:
    try:
        with open(Path(path), newline="", encoding="utf-8-sig") as stream:
            heading, *lines = csv.reader(stream)
    except (OSError, ValueError, csv.Error) as error:
        raise fail("subgroups", "a readable CSV with a heading", path, "check the file") from error
    if any(len(line) != len(heading) for line in lines):
        raise fail("subgroups", f"{len(heading)} cells a line", f"{path}, where lines differ", "repair the file")
    if len(set(heading)) < len(heading):
        raise fail("subgroups", "a different heading for each column", f"{path}, where two are equal", "rename one")
    return {name: np.array([line[place] for line in lines]) for place, name in enumerate(heading)}
