"""LOOD beside attacks: on really retrained networks, with GELU instead of ReLU, and on the Gaussian process itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import digits, timed
from benchmarks.reproduce.job import RESULTS, Arrays, Job, Piece, references_of
from benchmarks.reproduce.lood import measures, networks
from benchmarks.reproduce.lood.activations import study_kernel
from benchmarks.reproduce.lood.measures import NOISE, attack_auc, correlation, distances, spread
from benchmarks.reproduce.lood.networks import cars_and_planes, described, retrain, size_of
from benchmarks.reproduce.lood.query_attack import query_attack
from giveaway.gp.distinguishability import divergence_at, remove
from giveaway.gp.kernels import RBF, Kernel, kernel_matrix
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit

NOISES = (0.001, 0.01, 0.05, 0.2, 1.0)
LEAKS = 0.6  # AUC at the record from which the place of the largest AUC says something: 0.06 is one standard error
KINDS = ("images", "uniform")


def run_retrained(job: Job) -> None:
    """Measure Figures 2c and 3a: the attack on retrained networks beside LOOD, and what both sides cost."""
    size = size_of(job)
    pictures = cars_and_planes(job, size.records, size.held_out)
    chosen = networks.chosen_records(pictures.records, size.chosen, job.seed)
    toward, offsets = networks.directions(len(chosen), pictures.inputs.shape[1], job.seed), size.offsets
    queries = networks.perturbed(pictures.inputs[chosen], toward, offsets)
    targets = pictures.targets[chosen]
    middle = len(offsets) // 2

    distances(NNGP(1), pictures, job.device)  # libraries are loaded before the clock runs
    answers = retrain(job, pictures, chosen, queries, "relu", size)
    wide, spent = timed(lambda: distances(NNGP(size.depth), pictures, job.device), job.device)
    seconds = {"retraining_relu": job.seconds()["retraining_relu"], "lood": spent}
    nearby, nearby_auc = measures.along(NNGP(size.depth), pictures, chosen, queries, job.device)

    auc = attack_auc(answers.with_record, answers.without, targets)
    own = auc[:, middle]
    halves = [
        attack_auc(answers.with_record[rounds], answers.without[rounds], targets)[:, middle]
        for rounds in (slice(0, None, 2), slice(1, None, 2))
    ]
    deviations = [side[:, :, middle].std(0, ddof=1) for side in (answers.with_record, answers.without)]
    effect = np.abs(answers.change[:, middle]) / np.sqrt(np.square(deviations).mean(0))
    scores = {"nngp_auc": wide.auc, "lood_kl": wide.kl, "lood_mean": wide.mean}
    scores = {name: values[chosen] for name, values in scores.items()}
    matrix = kernel_matrix(NNGP(size.depth), pictures.trained(job.device)[0])
    by_noise = {}
    for noise in NOISES:
        found = distances(NNGP(size.depth), pictures, job.device, noise, matrix)
        by_noise[str(noise)] = {
            "nngp_auc": correlation(found.auc[chosen], own),
            "lood_kl": correlation(found.kl[chosen], own),
            "auc_median": digits(np.median(found.auc[chosen])),
        }
    leaking = own >= LEAKS
    result = {
        **described(size, pictures, "relu"),
        "chosen": len(chosen),
        "rounds": size.rounds,
        "trainings": size.rounds * (1 + len(chosen)),
        "error_trained": digits(answers.loss.mean()),
        "accuracy_held_out": digits(answers.accuracy.mean()),
        "noise": NOISE,
        "auc": {"networks": spread(own), "nngp": spread(wide.auc[chosen])},
        "correlation_with_auc": {name: correlation(values, own) for name, values in scores.items()},
        "effect_size": spread(effect),
        "correlation_with_effect_size": {name: correlation(values, effect) for name, values in scores.items()},
        "by_noise": by_noise,
        "auc_of_half_the_rounds_with_the_other": correlation(*halves),
        "largest_along_a_direction": {
            "networks": measures.where_largest(auc, offsets),
            "networks_that_leak": measures.where_largest(auc[leaking], offsets) if leaking.any() else None,
            "nngp": measures.where_largest(nearby, offsets),
            "leaks_from_auc": LEAKS,
        },
        "mean_auc_along": {
            "offsets": offsets.tolist(),
            "networks": digits(auc.mean(0)),
            "nngp": digits(nearby_auc.mean(0)),
        },
        "seconds": digits(seconds),
        "lood_scored_records": pictures.records,
        "times_faster": digits(seconds["retraining_relu"] / seconds["lood"]),
    }
    arrays = {"chosen": chosen, "offsets": offsets, "targets": targets, "auc": auc, "effect_size": effect}
    arrays |= {"change": answers.change[:, middle], "nngp_auc_along": nearby_auc, "nngp_kl_along": nearby}
    arrays |= {"deviation_with": deviations[0], "deviation_without": deviations[1]}
    arrays |= {"nngp_change": wide.change[chosen]}
    job.save(result, {**arrays, **scores})


def truth_of(job: Job) -> Arrays:
    """Return the summaries of lood_retrained, of this output folder or of the repository; a small run's are beside."""
    small = job.work.parent / "lood_retrained-small"
    for folder in [small] if job.small else [job.out, RESULTS]:
        if (folder / "lood_retrained.npz").exists():
            return dict(np.load(folder / "lood_retrained.npz"))
    raise SystemExit(f"{job.setting}: lood_retrained has no results yet; run it first")


def run_activations(job: Job) -> None:
    """Measure Figure 5: GELU against ReLU, on retrained networks and on their Gaussian processes."""
    size = size_of(job)
    relu = truth_of(job)
    pictures = cars_and_planes(job, size.records, size.held_out)
    chosen, targets = relu["chosen"][: size.compared], relu["targets"][: size.compared].astype(np.float32)
    if not np.array_equal(targets, pictures.targets[chosen]):
        raise SystemExit("lood_activations: the results of lood_retrained are of other data; run it again")
    smooth, told = _with_gelu(job, pictures, chosen, targets, size)
    rectified = relu["auc"][: len(chosen), relu["auc"].shape[1] // 2].astype(np.float64)
    networks = {"relu": rectified, "gelu": smooth}
    result, arrays = {"networks": _gelu_over_relu(networks)}, {"chosen": chosen}
    arrays |= {f"auc_{name}": values for name, values in networks.items()}
    for kernel in ("raw", "sphere"):
        with job.phase(f"nngp_{kernel}"):
            sides = {name: distances(study_kernel(kernel, size.depth, name), pictures, job.device) for name in networks}
        aucs = {name: side.auc for name, side in sides.items()}
        result[f"nngp_{kernel}"] = _gelu_over_relu(aucs) | {
            "kl_median_of_ratios_all_records": digits(np.median(sides["gelu"].kl / sides["relu"].kl)),
            "kl_higher_share_all_records": digits((sides["gelu"].kl > sides["relu"].kl).mean()),
            "correlation_with_the_networks": {name: correlation(aucs[name][chosen], networks[name]) for name in aucs},
        }
        arrays |= {f"nngp_{kernel}_{name}": values for name, values in aucs.items()}
    job.save({**told, **result, "seconds": {**told["seconds"], **digits(job.seconds())}}, arrays)


def _with_gelu(
    job: Job, pictures: networks.Pictures, chosen: np.ndarray, targets: np.ndarray, size: networks.Size
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the AUC on networks with GELU, and notes on them. On a CPU none is trained but in a small run: what an
    earlier run left in the results is taken."""
    if job.device.type == "cpu" and not job.small:
        told, arrays = references_of(job, job.setting)
        trained = {"trained_on": told.get("trained_on", told["environment"]["device"])}
        kept = ("data", "records", "network", "training", "chosen", "rounds", "trainings", "noise")
        kept += ("error_trained_gelu", "accuracy_held_out_gelu", "seconds")
        return arrays["auc_gelu"].astype(np.float64), {**{name: told[name] for name in kept}, **trained}
    answers = retrain(job, pictures, chosen, pictures.inputs[chosen][:, None], "gelu", size)
    told = {
        **described(size, pictures, "gelu"),
        "chosen": len(chosen),
        "rounds": size.rounds,
        "trainings": size.rounds * (1 + len(chosen)),
        "noise": NOISE,
        "error_trained_gelu": digits(answers.loss.mean()),
        "accuracy_held_out_gelu": digits(answers.accuracy.mean()),
        "seconds": {},
    }
    return attack_auc(answers.with_record, answers.without, targets)[:, 0], told


def _gelu_over_relu(auc: Arrays) -> dict:
    difference = auc["gelu"] - auc["relu"]
    return {
        "records": len(difference),
        "auc_relu": spread(auc["relu"]),
        "auc_gelu": spread(auc["gelu"]),
        "gelu_higher": int((difference > 0).sum()),
        "equal": int((difference == 0).sum()),
        "mean_difference": digits(difference.mean()),
        "standard_error": digits(difference.std(ddof=1) / np.sqrt(len(difference))),
    }


def run_correlation(job: Job) -> None:
    """Measure Figures 3b and 6: LOOD against the AUC of the best attack, both of the Gaussian process."""
    kept, added = (60, 20) if job.small else (1_000, 200)
    pixels, labels = networks.ten_classes(job, kept + added, seed=11)
    uniform = np.random.default_rng(12).random((added, pixels.shape[1]))
    x = torch.from_numpy(np.concatenate([pixels, uniform])).to(job.device)
    classes = torch.from_numpy(np.concatenate([labels, labels[kept:]]))
    y = (torch.nn.functional.one_hot(classes, 10).double() - 0.1).to(job.device)
    length = float(torch.pdist(x[:kept]).median())
    kernels: dict[str, Kernel] = {"rbf": RBF(length), "nngp_1": NNGP(1)}
    result: dict[str, dict] = {}
    arrays: Arrays = {}
    for name, kernel in kernels.items():
        firsts = {kind: kept + place * added for place, kind in enumerate(KINDS)}
        both = {
            kind: job.piece(f"{name}_{kind}.npz", name, partial(added_alone, kernel, x, y, kept, first, added))[0]
            for kind, first in firsts.items()
        }
        for kind, found in both.items():
            columns = {"kl": found["kl"], "mean": found["mean"], "miss": 1.0 - found["auc"]}  # 0.9999 in float16
            arrays |= {f"{name}_{kind}_{key}": values for key, values in columns.items()}
        both["together"] = {key: np.concatenate([both[kind][key] for kind in KINDS]) for key in ("kl", "mean", "auc")}
        result[name] = {kind: _correlated_with_auc(found) for kind, found in both.items()}
    told = {"data": "made" if job.data is None else "CIFAR-10, all classes", "records": kept, "added": added}
    told |= {"noise": NOISE, "rbf_length": digits(length), "correlation_with_auc": result}
    job.save({**told, "seconds": job.seconds()}, arrays)


def _correlated_with_auc(found: Arrays) -> dict:
    low = found["auc"] < LEAKS
    return {
        "kl": correlation(found["kl"], found["auc"]),
        "mean": correlation(found["mean"], found["auc"]),
        "auc": spread(found["auc"]),
        "kl_of_auc_below_0.6": digits(found["kl"][low].max()) if low.any() else None,
    }


def added_alone(kernel: Kernel, x: torch.Tensor, y: torch.Tensor, kept: int, first: int, added: int) -> Piece:
    """Return both distances and the AUC of each record from `first` on, added by itself to the `kept` ones."""
    everyone = torch.tensor([*range(kept), *range(first, first + added)], device=x.device)
    matrix = kernel_matrix(kernel, x[everyone])

    def looked_up(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return matrix[a[:, 0].long()][:, b[:, 0].long()]

    found = []
    for place in range(kept, kept + added):
        at = torch.tensor([*range(kept), place], device=x.device)
        removal = remove(fit(looked_up, at[:, None], y[everyone[at]], NOISE), [kept])
        own = at[-1].view(1, 1, 1)
        distance = divergence_at(removal, own)
        found.append((float(distance.kl), float(distance.mean), float(query_attack(removal, own).auc)))
    return dict(zip(("kl", "mean", "auc"), np.array(found).T, strict=True)), {}


RUNS = {"lood_retrained": run_retrained, "lood_activations": run_activations, "lood_correlation": run_correlation}
