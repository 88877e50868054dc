"""Data sets whose items come with their row number, so that a loss finds its record under any sampler."""

from typing import Any

from torch.utils.data import Dataset

from giveaway.checks import fail


class Indexed(Dataset):
    """A data set whose items come with their row number; made by `indexed`."""

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


def indexed(dataset: Any) -> Indexed:
    """Return the data set with each item's row number added: last in a tuple, under "row" in a dictionary."""
    return Indexed(dataset)
