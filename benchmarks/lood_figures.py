"""The experiments on images of the LOOD paper, run again: pictures into docs/images, numbers into a JSON.

CIFAR-10, pixels divided by 255, noise σ² = 0.05 (the paper does not say). Cars and planes have targets ±1; all ten
classes, one-hot vectors less 1/10. Networks are fully connected, ReLU, σw² = 2, σb = 0; starts are uniform in the
pixel box. Every draw has a fixed seed.
  directions   KL along a random direction through each of 70 of 2,000 cars and planes, depth 10 (Figure 2b)
  queries      the best query from 20 starts for each of 20 of 1,000 cars and planes, depth 5 (Figures 1 and 9)
  groups       three queries, and one, for each of 10 groups of three of 1,000 cars and planes, 10 starts (Figure 4)
  activations  GELU beside ReLU at depths 2 to 10, 1,500 cars and planes; 50 of them drawn (Figure 5)
  auc          the mean-distance optimum beside the record for 50 of 1,000 records of all classes, RBF kernel of the
               median distance (Figure 13c); and rank correlations of LOOD with the attack's AUC for 200 records of
               either kind, each added to 1,000 (Figure 6)

    python -m benchmarks.lood_figures --data DIR [--parts directions queries] [--images DIR] [--out FILE.json]

--data holds cifar10.npz. Parts that the file has already stay unless they are named.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.data import cifar10_training
from benchmarks.drawing import image, panels, publish
from benchmarks.measuring import ROOT, read_options, write_parts
from benchmarks.reproduce.lood.activations import SETTINGS, activation_study
from benchmarks.reproduce.lood.attacks import added_alone
from benchmarks.reproduce.lood.measures import ends, spread
from benchmarks.reproduce.lood.query_attack import query_attack
from benchmarks.reproduce.lood.reconstruction import reconstruct
from giveaway.evaluation import spearman
from giveaway.gp.distinguishability import RemovedRecords, divergence, divergence_at, remove
from giveaway.gp.kernels import RBF
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit
from giveaway.gp.query import optimal_queries, record_attack
from giveaway.reporting.picture import COLOURS, DASHES, GREY, PALE, new_picture

NOISE = 0.05
PLANE, CAR = 0, 1
BOX = (0.0, 1.0)
TOGETHER = 16
MIDDLE = (0.05, 0.5, 0.95)
FOUND = 0.99  # share of the record's own KL from which an end is counted as found
LABELLED = (0.02, 0.05, 0.2, 0.5, 2.0, 3.0, 5.0)  # on logarithmic axes, beside powers of ten
Images = tuple[np.ndarray, np.ndarray]


def directions(data: Images, folder: Path) -> dict:
    x, y = cars_and_planes(data, 2_000)
    posterior = fit(NNGP(10), x, y, NOISE)
    rows = drawn(len(x), 70, seed=1)
    toward = 2 * torch.rand(len(rows), x.shape[1], generator=generator(2), dtype=torch.float64) - 1
    offsets = torch.arange(-50, 51, dtype=torch.float64)
    removal = remove(posterior, rows.repeat(TOGETHER))  # one call of the kernel for several offsets
    kl = torch.cat([at(removal, x[rows], toward, steps) for steps in (offsets / 255).split(TOGETHER)], 1)[
        :, : len(offsets)
    ]
    best = offsets[kl.argmax(1)]
    share = (kl / kl[:, 50:51]).numpy()
    figure, (axes,) = panels((7.2, 4.4), [f"KL at the record and beside it, {len(rows)} records of {len(x):,}"])
    axes.plot(offsets, share.T, color=PALE, linewidth=0.7)
    for place in range(5):
        axes.plot(offsets, share[place], color=COLOURS[place], linestyle=DASHES[place], linewidth=1.8, zorder=3)
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xlabel("distance along a random direction of the unit box (pixel values, of 255)")
    axes.set_ylabel("KL-LOOD, as a share of that at the record")
    axes.set_ylim(0, 1.03)
    publish(figure, folder / "lood_directions.png")
    return {
        "records": len(rows),
        "largest_at_the_record": int((best == 0).sum()),
        "offset_of_the_largest": {"mean": float(best.mean()), "deviation": float(best.std(correction=0))},
        "median_share_at_offset_50": number((share[:, 0] + share[:, -1]) / 2),
    }


def queries(data: Images, folder: Path) -> dict:
    x, y = cars_and_planes(data, 1_000)
    posterior = fit(NNGP(5), x, y, NOISE)
    rows = drawn(len(x), 20, seed=3)
    removal = remove(posterior, rows)
    found = optimal_queries(removal, starts=20, bounds=BOX, steps=300, tolerance=1e-3, seed=4)
    compared = reconstruct(removal, found)
    share = (found.values / found.own[:, None]).numpy()
    likeness = cosine(found.ends[:, :, 0], x[rows][:, None])
    best, points = found.values.argmax(1), found.queries[:, 0]
    alike = likeness[torch.arange(len(rows)), best].numpy()
    figure = pictures(
        [(x[row], stretched(found.queries[place, 0])) for place, row in enumerate(rows)],
        [f"{int((share[place] > FOUND).sum())} of {share.shape[1]}" for place in range(len(rows))],
        f"Records (left), the best query (right), and how many starts end above {100 * FOUND:g} % of the record's KL",
    )
    publish(figure, folder / "lood_queries.png")
    return {
        "records": len(rows),
        "starts": found.values.shape[1],
        "converged_starts": number(found.converged.double().mean()),
        "share_of_own_kl": {
            "best_start_min_median_max": ends(share.max(1)),
            "all_starts_5_50_95": spread(share, MIDDLE),
            "starts_above_99_percent": number((share > FOUND).mean()),
            "largest": float(share.max()),
        },
        "cosine_of_starts_below_99_percent_5_50_95": spread(likeness.numpy()[share <= FOUND], MIDDLE),
        "records_found_from_some_start": int((share.max(1) > FOUND).sum()),
        "best_query_nearest_to_its_record_among_all": {
            "euclidean": int((torch.cdist(points, x).argmin(1) == rows).sum()),
            "cosine": int((cosine(points[:, None], x[None]).argmax(1) == rows).sum()),
        },
        "cosine_of_centred_pixels_best_query_and_record": ends(alike),
        "median_prediction_kl_of_best": number(compared.prediction[torch.arange(len(rows)), best, 0, 0].median()),
    }


def groups(data: Images, folder: Path) -> dict:
    x, y = cars_and_planes(data, 1_000)
    posterior = fit(NNGP(5), x, y, NOISE)
    members = drawn(len(x), 30, seed=5).view(10, 3)
    removal = remove(posterior, members)
    options: dict[str, Any] = {"starts": 10, "bounds": BOX, "steps": 300, "tolerance": 1e-3, "seed": 6}
    several, single = (optimal_queries(removal, queries=count, **options) for count in (3, 1))
    compared, alone = reconstruct(removal, several), reconstruct(removal, single)
    rank = compared.own.argsort(1, descending=True).argsort(1)  # 0 is the member most exposed by itself
    likeness = cosine(several.ends[:, :, :, None], x[members][:, None, None])
    recovered = likeness > 0.9
    figure = group_pictures(x, members, several.ends, single.queries[:, 0], several.values, rank)
    publish(figure, folder / "lood_groups.png")
    share = (several.values / several.own[:, None]).numpy()
    runs = recovered.any(2).double()  # (groups, starts, members)
    by_rank = [number(runs[(rank == k)[:, None].expand_as(runs)].mean()) for k in range(3)]
    return {
        "groups": len(members),
        "starts": several.values.shape[1],
        "three_queries": {
            "converged_starts": number(several.converged.double().mean()),
            "share_of_own_kl_5_50_95": spread(share, MIDDLE),
            "largest_share": float(share.max()),
            "runs_in_which_a_member_is_recovered_most_to_least_exposed": by_rank,
            "runs_that_recover_all_three": number(recovered.any(2).all(2).double().mean()),
            "groups_with_all_three_recovered_in_some_run": int(recovered.any(2).all(2).any(1).sum()),
            "queries_nearest_to_a_member_most_to_least_exposed": compared.counts.gather(1, rank.argsort(1))
            .sum(0)
            .tolist(),
            "queries_nearest_to_another_record": int(compared.strays.sum()),
        },
        "one_query": {
            "converged_starts": number(single.converged.double().mean()),
            "nearest_members_rank_0_1_2": [
                number((rank.gather(1, alone.distance[:, :, 0].argmin(2)) == k).double().mean()) for k in range(3)
            ],
            "value_over_the_most_exposed_members_min_median_max": ends(single.value / compared.own.amax(1)),
        },
        "recovered_means": "cosine of centred pixels above 0.9",
    }


def activations(data: Images, folder: Path) -> dict:
    x, y = cars_and_planes(data, 1_500)
    depths = (2, 4, 6, 8, 10)
    shown = drawn(len(x), 50, seed=7).numpy()
    titles = {
        "sphere": "on the sphere, K(x, x) = 1",
        "critical": "on the sphere, critical variances",
        "raw": "pixels from 0 to 1, σw² = 2",
    }
    figure, plots = panels((10.5, 4.0), list(titles.values()))
    result = {}
    for axes, setting in zip(plots, SETTINGS, strict=True):
        study = activation_study(x, y, noise=NOISE, depths=depths, activations=["gelu"], setting=setting)
        ratio = study.kl[1] / study.kl[0]
        axes.plot(depths, ratio[:, shown], color=PALE, linewidth=0.7)
        axes.plot(depths, np.median(ratio, 1), color=COLOURS[0], linewidth=2.4, label="median of all records")
        axes.axhline(1, color=GREY, linestyle=":", linewidth=1.2, label="no difference")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if round(value, 6) in LABELLED else "")
        axes.set_xticks(depths)
        axes.set_xlabel("hidden layers")
        result[setting] = {
            str(row.depth): {
                "kl_ratio_of_means": number(row.kl_ratio),
                "kl_median_of_ratios": number(ratio[place]),
                "kl_higher_than_relu": number(row.kl_higher),
                "kl_higher_by_more_than_1.1": number((ratio[place] > 1.1).mean()),
                "kl_lower_by_more_than_1.1": number((ratio[place] < 1 / 1.1).mean()),
                "mean_ratio_of_means": number(row.mean_ratio),
                "mean_higher_than_relu": number(row.mean_higher),
                "distance_to_constant": number(row.distance),
                "relus_distance_to_constant": number(relu.distance),
                "higher_among_the_drawn": int((ratio[place, shown] > 1).sum()),
            }
            for place, (relu, row) in enumerate(zip(study.rows[: len(depths)], study.rows[len(depths) :], strict=True))
        }
    plots[0].set_ylabel("KL under GELU over KL under ReLU")
    plots[0].legend(frameon=False, fontsize=9, loc="upper left")
    publish(figure, folder / "lood_activations.png")
    return {"records": len(x), "drawn": len(shown), "gelu_beside_relu": result}


def auc(data: Images, folder: Path) -> dict:
    gap, (before, after) = auc_at_optima(data)
    ranks, points = auc_and_lood(data)
    figure, (left, right) = panels(
        (10.5, 4.2), ["Attack at the mean-distance optimum and at the record", "KL and the attack's AUC"]
    )
    left.scatter(before, after, s=16, color=COLOURS[0], linewidths=0, alpha=0.8)
    ends = [min(before.min(), after.min()) - 0.01, 1.0]
    left.plot(ends, ends, color=GREY, linestyle=":", linewidth=1.2, label="no difference")
    left.set(xlabel="AUC when the record is asked", ylabel="AUC when the mean-distance optimum is asked")
    left.legend(frameon=False, fontsize=9)
    for place, (name, (kl, rate)) in enumerate(points.items()):
        right.scatter(kl, rate, s=12, color=COLOURS[place], marker="os^D"[place], linewidths=0, alpha=0.7, label=name)
    right.set(xscale="log", xlabel="KL-LOOD at the record (logarithmic)", ylabel="AUC of the likelihood-ratio attack")
    right.legend(frameon=False, fontsize=9)
    publish(figure, folder / "lood_auc.png")
    return {"at_mean_distance_optima": gap, "spearman_with_auc": ranks}


def auc_at_optima(data: Images) -> tuple[dict, tuple[np.ndarray, np.ndarray]]:
    x, y = all_classes(data, 1_000, seed=8)
    kernel = RBF(float(torch.pdist(x).median()))
    posterior = fit(kernel, x, y, NOISE)
    rows = drawn(len(x), 50, seed=9)
    removal = remove(posterior, rows)
    found = optimal_queries(removal, objective="mean", starts=4, bounds=BOX, steps=150, tolerance=1e-3, seed=10)
    near = optimal_queries(
        removal, objective="mean", starts=x[rows][:, None, None], bounds=BOX, steps=150, tolerance=1e-3
    )
    better = near.value > found.value
    best = torch.where(better[:, None, None], near.queries, found.queries)
    value = torch.where(better, near.value, found.value)
    at_best = query_attack(removal, best).auc.numpy()
    at_own = query_attack(removal, x[rows][:, None]).auc.numpy()
    drop = at_own - at_best
    summary = {
        "records": len(rows),
        "rbf_length": number(kernel.length),
        "mean_distance_over_own_min_median_max": ends((value / found.own).numpy()),
        "best_from_the_record_itself": int(better.sum()),
        "auc_at_record_median": number(np.median(at_own)),
        "auc_at_optimum_median": number(np.median(at_best)),
        "auc_lower_by_more_than_0.025": number((drop > 0.025).mean()),
        "drop_min_median_max": ends(drop),
        "converged": number(torch.where(better, near.converged.any(1), found.converged.any(1)).double().mean()),
    }
    return summary, (at_own, at_best)


def auc_and_lood(data: Images) -> tuple[dict, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Each of 200 images, and of 200 records of uniform pixels, added to 1,000 images by itself."""
    x, y = all_classes(data, 1_200, seed=11)
    uniform = torch.rand(200, x.shape[1], generator=generator(12), dtype=torch.float64)
    everything, targets = torch.cat([x, uniform]), torch.cat([y, y[1_000:]])
    ranks, points = {}, {}
    kernels = {"RBF": RBF(float(torch.pdist(x).median())), "ReLU network, 1 layer": NNGP(1)}
    for name, kernel in kernels.items():
        for kind, first in {"images": 1_000, "uniform pixels": 1_200}.items():
            found, _ = added_alone(kernel, everything, targets, 1_000, first, 200)
            kl, mean, rate = found["kl"], found["mean"], found["auc"]
            told = {"kl": number(spearman(kl, rate)), "mean": number(spearman(mean, rate))}
            ranks[f"{name}, {kind}"] = {**told, "auc_5_50_95": spread(rate, MIDDLE)}
            points[f"{name}, {kind}"] = (kl, rate)
    posterior = fit(NNGP(5), *cars_and_planes(data, 1_000), NOISE)
    found, rate = divergence(posterior), record_attack(posterior).auc.numpy()
    told = {name: number(spearman(getattr(found, name).numpy(), rate)) for name in ("kl", "mean")}
    return {**ranks, "NNGP of 5 layers, all of 1,000 cars and planes": told}, points


def at(removal: RemovedRecords, records: torch.Tensor, toward: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """KL (records, steps) at each of the steps from the records; `removal` has all records as often, steps first."""
    steps = torch.cat([steps, steps.new_zeros(TOGETHER - len(steps))])
    queries = records + steps[:, None, None] * toward
    kl = divergence_at(removal, queries.view(-1, 1, records.shape[1])).kl
    return kl.view(len(steps), -1).T


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of pixels less their mean, over the last axis: free of brightness and contrast, negative for a negative."""
    a, b = (v - v.mean(-1, keepdim=True) for v in (a, b))
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def pictures(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], labels: Sequence[str], title: str) -> Figure:
    columns = 5
    figure = new_picture((9.0, 1.15 * -(-len(pairs) // columns) + 0.4))
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    grid = figure.subplots(-(-len(pairs) // columns), 2 * columns)
    for place, (pair, label) in enumerate(zip(pairs, labels, strict=True)):
        for side, pixels in enumerate(pair):
            show(grid[place // columns, 2 * (place % columns) + side], pixels, label if side else None)
    return figure


def group_pictures(x, members, several, single, values, rank) -> Figure:
    """Four groups: the members, most exposed first, the best three queries, the best single one."""
    count = 4
    figure = new_picture((8.4, 1.15 * count + 0.5))
    figure.suptitle(
        "Three records taken out; the best three queries, cosine with the likest; the best one", fontsize=11
    )
    grid = figure.subplots(count, 9, width_ratios=[1, 1, 1, 0.25, 1, 1, 1, 0.25, 1])
    for g in range(count):
        order = rank[g].argsort()
        best = several[g, values[g].argmax()]
        size, likest = cosine(best[:, None], x[members[g, order]][None]).max(1)
        for place, query in enumerate((likest - size / 2).argsort()):
            show(grid[g, place], x[members[g, order[place]]], f"record {place + 1}")
            show(
                grid[g, 4 + place], stretched(best[query]), f"record {int(likest[query]) + 1}: {float(size[query]):.2f}"
            )
        show(grid[g, 8], stretched(single[g]), None)
        for empty in (3, 7):
            grid[g, empty].axis("off")
    return figure


def stretched(query: torch.Tensor) -> torch.Tensor:
    """The query at the brightness where its largest pixel is white: a kernel without biases sees only the direction."""
    return query / query.max()


def show(axes: Any, pixels: torch.Tensor, label: str | None) -> None:
    image(axes, pixels.view(32, 32, 3).clamp(0, 1).numpy(), label, fontsize=7)


def cars_and_planes(data: Images, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """n/2 of each, drawn: pixels (n, 3072) from 0 to 1, and +1 for cars, −1 for planes."""
    pixels, labels = data
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.choice(np.flatnonzero(labels == c), n // 2, replace=False) for c in (CAR, PLANE)])
    target = torch.ones(n, dtype=torch.float64)
    target[n // 2 :] = -1.0
    return torch.from_numpy(pixels[rows].reshape(n, -1)).double() / 255, target


def all_classes(data: Images, n: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """n/10 of each class in random order: pixels (n, 3072) from 0 to 1, and one-hot targets less 1/10."""
    pixels, labels = data
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.choice(np.flatnonzero(labels == c), n // 10, replace=False) for c in range(10)])
    rng.shuffle(rows)
    hot = torch.nn.functional.one_hot(torch.from_numpy(labels[rows]), 10).double()
    return torch.from_numpy(pixels[rows].reshape(n, -1)).double() / 255, hot - 0.1


def drawn(n: int, count: int, *, seed: int) -> torch.Tensor:
    return torch.randperm(n, generator=generator(seed))[:count]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def number(value: Any) -> float:
    """Four digits of a number, or of the median of several."""
    return float(f"{float(np.median(np.asarray(value))):.4g}")


PARTS: dict[str, Callable[[Images, Path], dict]] = {
    "directions": directions,
    "queries": queries,
    "groups": groups,
    "activations": activations,
    "auc": auc,
}


def main() -> None:
    options = read_options(
        __doc__, "lood_figures.json", needs=("data",), data=Path, parts=PARTS, images=ROOT / "docs" / "images"
    )
    data = cifar10_training(options.data)
    write_parts(options.out, options.parts, lambda name: PARTS[name](data, options.images), "matplotlib")


if __name__ == "__main__":
    main()
