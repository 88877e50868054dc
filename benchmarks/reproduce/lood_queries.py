"""What the LOOD paper says of queries and is not among the pictures of docs/lood.md.

multiple      the best q = 1, 2, 4, 8 queries for one record at depths 2 to 10 (Appendix E.1)
normalized    the best query where records are normalized by their own statistics, CNN of depth 5 (Figure 10)
convolutional the same kernel without the normalization (Figure 8b)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.reproduce.lood_data import cars_and_planes, ten_classes
from benchmarks.reproduce.lood_gaussian import NOISE
from benchmarks.reproduce.lood_measures import digits
from benchmarks.reproduce.lood_networks import chosen_records
from benchmarks.reproduce.setting import Job, Setting, write_json
from giveaway.gp.conv_nngp import ConvNNGP
from giveaway.gp.nngp import NNGP
from giveaway.gp.normalization import remove_normalized
from giveaway.gp.posterior import fit
from giveaway.gp.query import optimal_queries
from giveaway.gp.removal import remove

BOX = (-2.0, 2.0)  # of pixels as `lood_data.scaled` leaves them
SEARCH: dict[str, Any] = {"tolerance": 1e-3, "seed": 4}
FROM_THE_RECORD = 1e-9  # tolerance
ABOVE = 1e-6  # relative; less is rounding


def run(job: Job) -> None:
    parts: dict[str, Callable[[Job], dict]] = {
        "multiple": multiple,
        "normalized": normalized,
        "convolutional": convolutional,
    }
    found = {}
    for name, part in parts.items():
        file = job.work / f"{name}.json"
        if not file.exists():
            job.stop_in_time()
            with job.phase(name):
                made = part(job)
            write_json(file, made)
        found[name] = json.loads(file.read_text())
    job.save("lood_queries", {"noise": NOISE, **found, "seconds": job.seconds()})


def multiple(job: Job) -> dict:
    """Every (depth, q) from starts that are uniform in the box of pixels."""
    records, rows, depths, counts, steps = (40, 2, (2,), (1, 2), 20) if job.small else (
        1_000, 10, (2, 4, 6, 8, 10), (1, 2, 4, 8), 150
    )  # fmt: skip
    pictures = cars_and_planes(job, records, 0)
    x, y = (torch.from_numpy(part).to(job.device, torch.float64) for part in (pictures.inputs, pictures.targets))
    chosen = torch.from_numpy(chosen_records(len(x), rows, job.seed)).to(job.device)
    shares: dict[str, dict[str, Any]] = {}
    for depth in depths:
        removal = remove(fit(NNGP(depth), x, y, NOISE), chosen)
        for count in counts:
            found = optimal_queries(removal, queries=count, starts=2, bounds=BOX, steps=steps, **SEARCH)
            share = found.values / found.own[:, None]
            shares.setdefault(str(depth), {})[str(count)] = {
                "largest": digits(share.max()),
                "best_of_the_starts_median": digits(share.amax(1).median()),
                "above_the_record": int((share > 1 + ABOVE).sum()),
                "searches": share.numel(),
            }
    return {"records": len(x), "chosen": rows, "share_of_own_kl": shares}


def normalized(job: Job) -> dict:
    """Starts at the record itself, where the slope is small and the search has to be told to go on, and around it."""
    x, y, chosen, depth, steps = ten_class_images(job)
    removal = remove_normalized(ConvNNGP(depth), x, y, NOISE, chosen)
    own = x[chosen].unsqueeze(1).unsqueeze(1)
    near = optimal_queries(removal, starts=own, bounds=BOX, steps=steps, tolerance=FROM_THE_RECORD)
    far = optimal_queries(removal, starts=2, origin="removed", bounds=BOX, steps=steps, **SEARCH)
    value = torch.maximum(near.value, far.value)
    best = torch.where((near.value >= far.value)[:, None, None, None, None], near.queries, far.queries)
    brightness = best.mean((1, 2, 3, 4)) - x[chosen].mean((1, 2, 3))
    return {
        "records": len(x),
        "chosen": len(chosen),
        "depth": depth,
        "over_the_record": [round(share, 6) for share in sorted((value / near.own).tolist())],
        "darker_than_the_record": int((brightness < 0).sum()),
    }


def convolutional(job: Job) -> dict:
    x, y, chosen, depth, steps = ten_class_images(job)
    removal = remove(fit(ConvNNGP(depth), x, y, NOISE), chosen)
    found = optimal_queries(removal, starts=4, bounds=BOX, steps=steps, **SEARCH)
    best = found.queries[:, 0].flatten(1)
    nearest = torch.cdist(best, x.flatten(1)).argmin(1)
    return {
        "records": len(x),
        "chosen": len(chosen),
        "depth": depth,
        "share_of_own_kl": [digits(share) for share in sorted((found.value / found.own).tolist())],
        "nearest_to_its_record": int((nearest == chosen).sum()),
    }


def ten_class_images(job: Job) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int]:
    """50 images of every class (n, 3, 32, 32), one-hot targets less 1/10, the records left out, depth and steps."""
    records, rows, depth, steps = (20, 1, 1, 5) if job.small else (500, 10, 5, 40)
    pixels, labels = ten_classes(job, records, seed=21)
    images = 4 * (torch.from_numpy(pixels).to(job.device).view(records, 32, 32, 3).permute(0, 3, 1, 2) - 0.5)
    hot = torch.nn.functional.one_hot(torch.from_numpy(labels), 10).double() - 0.1
    chosen = torch.from_numpy(chosen_records(records, rows, job.seed)).to(job.device)
    return images.contiguous(), hot.to(job.device), chosen, depth, steps


SETTINGS = {"lood_queries": Setting("lood_queries", "Several queries, normalization", run)}
