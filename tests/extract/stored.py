"""Arrays of one head, written as a file or a folder in each form that from_file reads."""

from itertools import pairwise

import numpy as np
import torch
from safetensors.torch import save_file

from giveaway.extract import from_file
from tests.conftest import refused

N, D, M = 23, 4, 3
FILES = ["npz", "safetensors"]
FOLDERS = ["npy folder", "npz folder", "safetensors folder"]
ONCE = ("weight", "bias", "l2")


def made(dtype=np.float32):
    """A head's arrays, without outputs."""
    rng = np.random.default_rng(4)
    return {
        "features": rng.normal(size=(N, D)).astype(dtype),
        "targets": np.arange(N) % M,
        "ids": np.arange(N) + 100,
        "groups": np.arange(N) // 2,
        "sample_weight": np.linspace(1, 2, N),
        "weight": rng.normal(size=(M, D)),
        "bias": rng.normal(size=M),
        "l2": np.array(0.25),
    }


def plain(**changes):
    """Features, targets, weight and bias, with changes; None leaves an array out."""
    arrays = {name: made()[name] for name in ("features", "targets", "weight", "bias")} | changes
    return {name: value for name, value in arrays.items() if value is not None}


def linear(arrays):
    return arrays["features"].astype(np.float64) @ arrays["weight"].T + arrays.get("bias", 0)


def save(path, arrays):
    """One .npz or .safetensors file."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file({name: torch.as_tensor(np.ascontiguousarray(value)) for name, value in arrays.items()}, path)
    return path


def written(place, arrays, form="npz", cuts=(0, 9, 9, 15, N), once="shard"):
    """A file head.* in `place`, or a folder cut at `cuts`, with weight, bias and l2 in its last file or a head file."""
    kind, _, folder = form.partition(" ")
    if not folder:
        return save(place / f"head.{kind}", arrays)
    place = place / "rows"
    place.mkdir(exist_ok=True)
    single = {name: arrays[name] for name in ONCE if name in arrays}
    rows = {name: value for name, value in arrays.items() if name not in single}
    for number, (low, high) in enumerate(pairwise(cuts)):
        shard = {name: value[low:high] for name, value in rows.items()}
        if kind == "npy":
            for name, value in shard.items():
                np.save(place / f"{name}-{number:03d}.npy", value)
        else:
            last = number == len(cuts) - 2 and once == "shard"
            save(place / f"part-{number:03d}.{kind}", shard | (single if last else {}))
    if kind == "npy":
        for name, value in single.items():
            np.save(place / f"{name}.npy", value)
    elif once == "head":
        save(place / f"head.{kind}", single)
    return place


def refusal(path, **options):
    """The one line that from_file refuses `path` with."""
    return refused("; ", from_file, path, **options)
