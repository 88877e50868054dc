"""Searches for the best query, as the LOOD paper runs and shows them: from noise uniform in the box of pixels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import avg_pool2d, normalize, one_hot

from benchmarks.measuring import digits
from benchmarks.reproduce.job import Job, Piece
from benchmarks.reproduce.lood.measures import NOISE, ends, spread
from benchmarks.reproduce.lood.networks import CENTRE, SCALE, cars_and_planes, chosen_records, ten_classes
from benchmarks.reproduce.lood.normalized import remove_normalized
from benchmarks.reproduce.lood.query_attack import query_attack
from benchmarks.reproduce.lood.reconstruction import reconstruct
from giveaway.gp.distinguishability import remove
from giveaway.gp.nngp import NNGP, ConvNNGP
from giveaway.gp.posterior import fit
from giveaway.gp.query import optimal_queries

BOX = (-2.0, 2.0)  # of pixels as `lood.data.scaled` leaves them
SEARCH: dict[str, Any] = {"bounds": BOX, "tolerance": 1e-3, "seed": 4}
FROM_THE_RECORD = 1e-9  # tolerance
ABOVE = 1e-6  # relative; less is rounding
FOUND = 0.99  # share of the record's KL from which an end counts as found, as in benchmarks/lood_figures.py
AROUND = 5  # pixels a side whose mean is taken away for the details of an image
AFTER = (0, 10, 20)  # steps that Figure 9 shows
STARTS = 4
SHOWN = 2  # runs of Figure 10


def multiple(job: Job) -> Piece:
    """Search for every (depth, q) from starts that are uniform in the box of pixels."""
    records, rows, depths, counts, steps = (40, 2, (2,), (1, 2), 20) if job.small else (
        1_000, 10, (2, 4, 6, 8, 10), (1, 2, 4, 8), 150
    )  # fmt: skip
    x, y = cars_and_planes(job, records, 0).trained(job.device)
    chosen = torch.from_numpy(chosen_records(len(x), rows, job.seed)).to(job.device)
    shares: dict[str, dict[str, Any]] = {}
    for depth in depths:
        removal = remove(fit(NNGP(depth), x, y, NOISE), chosen)
        for count in counts:
            found = optimal_queries(removal, queries=count, starts=2, steps=steps, **SEARCH)
            share = found.values / found.own[:, None]
            shares.setdefault(str(depth), {})[str(count)] = {
                "largest": digits(share.max()),
                "best_of_the_starts_median": digits(share.amax(1).median()),
                "above_the_record": int((share > 1 + ABOVE).sum()),
                "searches": share.numel(),
            }
    return {}, {"records": len(x), "chosen": rows, "share_of_own_kl": shares}


@dataclass(frozen=True, eq=False)
class ConvolutionalSearch:
    """50 images of every class (n, 3, 32, 32), some of them left out of a CNN's kernel, plain or normalized."""

    x: torch.Tensor
    chosen: torch.Tensor
    removal: Any
    depth: int
    steps: int

    @classmethod
    def of(cls, job: Job, *, normalized: bool, most: int | None = None) -> ConvolutionalSearch:
        """Leave out the chosen records, or the first of them; targets are one-hot less 1/10."""
        records, rows, depth, steps = (20, 1, 1, 5) if job.small else (500, 10, 5, 40)
        flat, labels = ten_classes(job, records, seed=21)
        x = 4 * (torch.from_numpy(flat).to(job.device).view(records, 32, 32, 3).permute(0, 3, 1, 2) - 0.5)
        x, y = x.contiguous(), (one_hot(torch.from_numpy(labels), 10).double() - 0.1).to(job.device)
        chosen = torch.from_numpy(chosen_records(records, rows, job.seed)).to(job.device)[:most]
        kernel: Any = ConvNNGP(depth)
        if normalized:
            return cls(x, chosen, remove_normalized(kernel, x, y, NOISE, chosen), depth, steps)
        return cls(x, chosen, remove(fit(kernel, x, y, NOISE), chosen), depth, steps)

    @property
    def own(self) -> torch.Tensor:
        """The records left out."""
        return self.x[self.chosen]

    def from_the_record(self) -> Any:
        """Start at the record itself, where the slope is small and the search must be told to continue."""
        starts = self.own.unsqueeze(1).unsqueeze(1)
        return optimal_queries(self.removal, starts=starts, bounds=BOX, steps=self.steps, tolerance=FROM_THE_RECORD)

    def from_noise(self, starts: int | torch.Tensor) -> Any:
        return optimal_queries(self.removal, starts=starts, steps=self.steps, **SEARCH)

    def beside_the_record(self, starts: int) -> torch.Tensor:
        """Return the records with normal noise of half a standard deviation of all pixels."""
        generator = torch.Generator().manual_seed(SEARCH["seed"])
        torch.randint(1, (len(self.chosen), starts, 1), generator=generator)  # as when members of groups were picked
        points = self.own.unsqueeze(1).unsqueeze(1).expand(-1, starts, -1, -1, -1, -1)
        normal = torch.randn(points.shape, generator=generator, dtype=torch.float64).to(points)
        return points + 0.5 * self.x.var(0, correction=0).mean().sqrt() * normal

    def pictured(self, queries: torch.Tensor) -> dict[str, np.ndarray]:
        """Return the records and their best queries as images, colours last."""
        sides = {"records": self.own, "queries": queries[:, 0]}
        return {name: pixels(images.permute(0, 2, 3, 1).flatten(1)) for name, images in sides.items()}


def normalized(job: Job, most: int | None = None) -> Piece:
    """Start at the record itself; where all are searched, also around it."""
    search = ConvolutionalSearch.of(job, normalized=True, most=most)
    found = search.from_the_record()
    value, queries = found.value, found.queries
    if most is None:
        far = search.from_noise(search.beside_the_record(2))
        queries = torch.where((value >= far.value)[:, None, None, None, None], queries, far.queries)
        value = torch.maximum(value, far.value)
    brighter = (queries[:, 0].mean((1, 2, 3)) - search.own.mean((1, 2, 3))) * SCALE
    columns = search.pictured(queries)
    both = zip(columns["queries"], columns["records"], strict=True)
    return columns, {
        "records": len(search.x),
        "chosen": len(search.chosen),
        "depth": search.depth,
        "over_the_record": [round(share, 6) for share in (value / found.own).tolist()],
        "darker_than_the_record": int((brighter < 0).sum()),
        "brighter_by_pixel_values": digits(brighter),
        "contrast_over_the_records": [digits(query.std() / record.std()) for query, record in both],
    }


def convolutional(job: Job) -> Piece:
    search = ConvolutionalSearch.of(job, normalized=False)
    found = search.from_noise(STARTS)
    nearest = torch.cdist(found.queries[:, 0].flatten(1), search.x.flatten(1)).argmin(1)
    at_query, at_record = (query_attack(search.removal, asked).auc for asked in (found.queries, search.own[:, None]))
    return search.pictured(found.queries), {
        "records": len(search.x),
        "chosen": len(search.chosen),
        "depth": search.depth,
        "starts": STARTS,
        "share_of_own_kl": digits(found.value / found.own),
        "nearest_to_its_record": int((nearest == search.chosen).sum()),
        "auc_at_the_record": digits(at_record),
        "auc_at_the_query": digits(at_query),
    }


def ends_of_searches(job: Job) -> Piece:
    """Search once for each of many records, and compare the ends with the records."""
    records, rows, depth, steps, shown = (40, 6, 2, 20, 4) if job.small else (1_000, 500, 10, 150, 16)
    x, y = cars_and_planes(job, records, 0).trained(job.device)
    chosen = torch.from_numpy(chosen_records(len(x), rows, job.seed)).to(job.device)
    removal = remove(fit(NNGP(depth), x, y, NOISE), chosen)
    found = optimal_queries(removal, starts=1, steps=steps, **SEARCH)
    share = (found.value / found.own).cpu().numpy()
    came = share > FOUND
    prediction = reconstruct(removal, found).prediction[:, 0, 0, 0].cpu().numpy()
    # by direction: without biases the kernel's KL does not depend on a query's length
    nearest = (found.queries[:, 0] @ normalize(x).T).argmax(1)
    query, record, everyone = (details(images) for images in (found.queries[:, 0], x[chosen], x))
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
        "found": int(came.sum()),
        "nearest_of_all_records": int((nearest == chosen).sum()),
        "not_found": {
            "searches": int((~came).sum()),
            "record_has_the_likest_details_of_all": int(likest[~came].sum()),
            "of_those_negative": int((likest & (alike < 0))[~came].sum()),
        },
        "prediction_kl": spread(prediction),
        "prediction_kl_of_found": spread(prediction[came]) if came.any() else None,
    }
    columns = {"share": share, "details": alike, "prediction_kl": prediction, "shown": order}
    columns |= {"shown_records": pixels(x[chosen][order]), "shown_queries": pixels(found.queries[order, 0])}
    return columns, told


def by_step(job: Job) -> Piece:
    """Run each number of steps by itself, as a short search is the beginning of a longer one; the best start counts."""
    records, rows, depth, starts, steps = (20, 2, 2, 2, 21) if job.small else (1_000, 10, 5, STARTS, 40)
    flat, labels = ten_classes(job, records, seed=21)
    x = 4 * (torch.from_numpy(flat).to(job.device) - 0.5)
    y = (one_hot(torch.from_numpy(labels), 10).double() - 0.1).to(job.device)
    chosen = torch.from_numpy(chosen_records(records, rows, job.seed)).to(job.device)
    removal = remove(fit(NNGP(depth), x, y, NOISE), chosen)
    searches = [optimal_queries(removal, starts=starts, steps=1 + k, **SEARCH) for k in range(steps + 1)]
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
        "share_of_own_kl_after": {str(k): ends(climbed[:, k]) for k in (*AFTER, steps)},
        "found": int((climbed[:, -1] > FOUND).sum()),
        "starts_found": int((share[:, :, -1] > FOUND).sum()),
        "auc_at_the_record": ends(at_record),
        "auc_lower_at_the_query": ends(at_record - at_query),
        "shown": {str(k): digits(climbed[0, k]) for k in (*AFTER, steps)},
    }
    columns = {"share": share, "best": best, "auc_at_the_record": at_record, "auc_at_the_query": at_query}
    shown = torch.stack([searches[k].ends[0, best[0], 0] for k in AFTER])
    return columns | {"record": pixels(x[chosen][:1]), "queries": pixels(shown)}, told


def details(inputs: torch.Tensor) -> torch.Tensor:
    """Return images (n, 3072) less the mean around each pixel, of length 1: products compare shapes, and are negative
    for a negative."""
    images = inputs.unflatten(1, (32, 32, 3)).permute(0, 3, 1, 2)
    around = avg_pool2d(images, AROUND, 1, AROUND // 2, count_include_pad=False)
    return normalize((images - around).flatten(1))


def pixels(inputs: torch.Tensor) -> np.ndarray:
    """Return inputs (n, 3072) as the images (n, 32, 32, 3) that they were scaled from."""
    values = (inputs * SCALE + CENTRE).round().clamp(0, 255)
    return values.to(torch.uint8).cpu().numpy().reshape(-1, 32, 32, 3)


SETTINGS = {
    "lood_queries": {"multiple": multiple, "normalized": normalized},
    "lood_searches": {
        "cars_and_planes": ends_of_searches,
        "by_step": by_step,
        "convolutional": convolutional,
        "normalized": partial(normalized, most=SHOWN),
    },
}
RUNS = {name: partial(Job.save_pieces, makers=makers, noise=NOISE) for name, makers in SETTINGS.items()}
