"""Searches for the best query, as the LOOD paper runs and shows them: from noise that is uniform in the box of pixels.

cars_and_planes  the networks' kernel of depth 10: where 500 searches end, one a record (Figures 1 and 14–19), and how
                 alike the model finds the end and the record (Figure 1c)
by_step          fully connected of depth 5, all ten classes: LOOD step by step (Figures 8a and 9)
convolutional    CNN of depth 5: two searches (Figure 8b)
normalized       the same where records are normalized by their own statistics, begun at the record (Figure 10)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.reproduce.lood_data import CENTRE, SCALE, cars_and_planes, ten_classes
from benchmarks.reproduce.lood_gaussian import NOISE
from benchmarks.reproduce.lood_measures import digits, spread
from benchmarks.reproduce.lood_networks import chosen_records
from benchmarks.reproduce.lood_queries import BOX, FROM_THE_RECORD, SEARCH, ten_class_images
from benchmarks.reproduce.printed_lood import BY_STEP
from benchmarks.reproduce.setting import Job, Setting, write_arrays, write_json
from giveaway.gp.attack import query_attack
from giveaway.gp.conv_nngp import ConvNNGP
from giveaway.gp.nngp import NNGP
from giveaway.gp.normalization import remove_normalized
from giveaway.gp.posterior import fit
from giveaway.gp.query import optimal_queries
from giveaway.gp.reconstruct import reconstruct
from giveaway.gp.removal import remove

FOUND = 0.99  # share of the record's KL from which an end counts as found, as in benchmarks/lood_figures.py
AROUND = 5  # pixels a side whose mean is taken away for the details of an image
AFTER = BY_STEP["after"]
STARTS = 4
SHOWN = 2  # runs of Figures 8b and 10
Part = tuple[dict[str, Any], dict[str, np.ndarray]]


def run(job: Job) -> None:
    parts: dict[str, Callable[[Job], Part]] = {
        "cars_and_planes": ends_of_searches,
        "by_step": by_step,
        "convolutional": convolutional,
        "normalized": normalized,
    }
    found: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, part in parts.items():
        file, kept = job.work / f"{name}.json", job.work / f"{name}.npz"
        if not file.exists():
            job.stop_in_time()
            with job.phase(name):
                told, made = part(job)
            write_arrays(kept, made)
            write_json(file, told)
        found[name] = json.loads(file.read_text())
        with np.load(kept) as held:
            arrays |= {f"{name}_{key}": held[key] for key in held}
    job.save("lood_searches", {"noise": NOISE, **found, "seconds": job.seconds()}, arrays)


def ends_of_searches(job: Job) -> Part:
    records, rows, depth, steps, shown = (40, 6, 2, 20, 4) if job.small else (1_000, 500, 10, 150, 16)
    pictures = cars_and_planes(job, records, 0)
    x, y = (torch.from_numpy(part).to(job.device, torch.float64) for part in (pictures.inputs, pictures.targets))
    chosen = torch.from_numpy(chosen_records(len(x), rows, job.seed)).to(job.device)
    removal = remove(fit(NNGP(depth), x, y, NOISE), chosen)
    found = optimal_queries(removal, starts=1, bounds=BOX, steps=steps, **SEARCH)
    share = (found.value / found.own).cpu().numpy()
    prediction = reconstruct(removal, found).prediction[:, 0, 0, 0].cpu().numpy()
    # by direction: without biases the kernel's KL is blind to a query's length
    nearest = (found.queries[:, 0] @ torch.nn.functional.normalize(x).T).argmax(1)
    query, record, everyone = (details(part) for part in (found.queries[:, 0], x[chosen], x))
    alike = (query * record).sum(1).cpu().numpy()
    likest = (query @ everyone.T).abs().argmax(1).eq(chosen).cpu().numpy()
    order = np.argsort(1 - share, kind="stable")[np.linspace(0, rows - 1, shown).round().astype(int)]
    told = {
        "records": len(x),
        "chosen": rows,
        "depth": depth,
        "converged": int(found.converged.sum()),
        "share_of_own_kl": spread(share),
        "largest_share": float(share.max()),
        "found": int((share > FOUND).sum()),
        "nearest_of_all_records": int((nearest == chosen).sum()),
        "not_found": {
            "searches": int((share <= FOUND).sum()),
            "record_has_the_likest_details_of_all": int(likest[share <= FOUND].sum()),
            "of_those_negative": int((likest & (alike < 0))[share <= FOUND].sum()),
        },
        "prediction_kl": spread(prediction),
        "prediction_kl_of_found": spread(prediction[share > FOUND]) if (share > FOUND).any() else None,
    }
    return told, {
        "share": share,
        "details": alike,
        "prediction_kl": prediction,
        "shown": order,
        "shown_records": pixels(x[chosen][order]),
        "shown_queries": pixels(found.queries[order, 0]),
    }


def by_step(job: Job) -> Part:
    """A search of k steps is the beginning of one of more, so each k is run by itself; a record's best start counts."""
    records, rows, depth, starts, steps = (20, 2, 2, 2, 21) if job.small else (1_000, 10, 5, STARTS, 40)
    flat, labels = ten_classes(job, records, seed=21)
    x = 4 * (torch.from_numpy(flat).to(job.device) - 0.5)
    y = (torch.nn.functional.one_hot(torch.from_numpy(labels), 10).double() - 0.1).to(job.device)
    chosen = torch.from_numpy(chosen_records(records, rows, job.seed)).to(job.device)
    removal = remove(fit(NNGP(depth), x, y, NOISE), chosen)
    searches = [optimal_queries(removal, starts=starts, bounds=BOX, steps=1 + k, **SEARCH) for k in range(steps + 1)]
    share = torch.stack([found.values / found.own[:, None] for found in searches], 2).cpu().numpy()
    best = share[:, :, -1].argmax(1)
    climbed = share[np.arange(rows), best]
    asked = (searches[-1].queries, x[chosen][:, None])
    at_query, at_record = (query_attack(removal, queries).auc.cpu().numpy() for queries in asked)
    told = {
        "records": records,
        "chosen": rows,
        "depth": depth,
        "starts": starts,
        "steps": steps,
        "share_of_own_kl_after": {str(k): _ends(climbed[:, k]) for k in (*AFTER, steps)},
        "found": int((climbed[:, -1] > FOUND).sum()),
        "starts_found": int((share[:, :, -1] > FOUND).sum()),
        "auc_at_the_record": _ends(at_record),
        "auc_lower_at_the_query": _ends(at_record - at_query),
        "shown": {str(k): digits(climbed[0, k]) for k in (*AFTER, steps)},
    }
    return told, {
        "share": share,
        "best": best,
        "auc_at_the_record": at_record,
        "auc_at_the_query": at_query,
        "record": pixels(x[chosen][:1]),
        "queries": pixels(torch.stack([searches[k].ends[0, best[0], 0] for k in AFTER])),
    }


def convolutional(job: Job) -> Part:
    x, y, chosen, depth, steps = ten_class_images(job)
    chosen = chosen[:SHOWN]
    removal = remove(fit(ConvNNGP(depth), x, y, NOISE), chosen)
    found = optimal_queries(removal, starts=STARTS, bounds=BOX, steps=steps, **SEARCH)
    at_query, at_record = (query_attack(removal, asked).auc for asked in (found.queries, x[chosen][:, None]))
    return {
        "records": len(x),
        "depth": depth,
        "starts": STARTS,
        "share_of_own_kl": [digits(value) for value in (found.value / found.own).tolist()],
        "auc_at_the_record": [digits(value) for value in at_record.tolist()],
        "auc_at_the_query": [digits(value) for value in at_query.tolist()],
    }, {"records": pixels(_last(x[chosen])), "queries": pixels(_last(found.queries[:, 0]))}


def normalized(job: Job) -> Part:
    x, y, chosen, depth, steps = ten_class_images(job)
    chosen = chosen[:SHOWN]
    removal = remove_normalized(ConvNNGP(depth), x, y, NOISE, chosen)
    own = x[chosen].unsqueeze(1).unsqueeze(1)
    found = optimal_queries(removal, starts=own, bounds=BOX, steps=steps, tolerance=FROM_THE_RECORD)
    brighter = (found.queries[:, 0].mean((1, 2, 3)) - x[chosen].mean((1, 2, 3))) * SCALE
    records, queries = pixels(_last(x[chosen])), pixels(_last(found.queries[:, 0]))
    return {
        "records": len(x),
        "depth": depth,
        "over_the_record": [round(value, 6) for value in (found.value / found.own).tolist()],
        "brighter_by_pixel_values": [digits(value) for value in brighter.tolist()],
        "contrast_over_the_records": [digits(q.std() / r.std()) for q, r in zip(queries, records, strict=True)],
    }, {"records": records, "queries": queries}


def details(inputs: torch.Tensor) -> torch.Tensor:
    """Images (n, 3072) less the mean around each pixel, of length 1: products tell shapes, negative for a negative."""
    images = inputs.unflatten(1, (32, 32, 3)).permute(0, 3, 1, 2)
    around = torch.nn.functional.avg_pool2d(images, AROUND, 1, AROUND // 2, count_include_pad=False)
    return torch.nn.functional.normalize((images - around).flatten(1))


def pixels(inputs: torch.Tensor) -> np.ndarray:
    """Inputs (n, 3072) as the images (n, 32, 32, 3) that they were scaled from."""
    values = (inputs * SCALE + CENTRE).round().clamp(0, 255)
    return values.to(torch.uint8).cpu().numpy().reshape(-1, 32, 32, 3)


def _last(images: torch.Tensor) -> torch.Tensor:
    """(n, 3, 32, 32) with colours last, flat."""
    return images.permute(0, 2, 3, 1).flatten(1)


def _ends(values: np.ndarray) -> list[float]:
    """The smallest, the median and the largest."""
    return [digits(value) for value in np.quantile(values, (0, 0.5, 1))]


SETTINGS = {"lood_searches": Setting("lood_searches", "Where searches for the best query end, and how", run)}
