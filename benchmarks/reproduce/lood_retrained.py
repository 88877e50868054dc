"""Figures 2c and 3a of the LOOD paper: the attack on really retrained networks beside leave-one-out distances.

50 networks with each of 70 records and 50 without, cars and planes, asked at the record and beside it, along a random
direction; LOOD and the attack on the infinitely wide network of the same architecture, and what both sides cost.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.reproduce.lood_data import cars_and_planes
from benchmarks.reproduce.lood_gaussian import NOISE, NOISES, along, distances, matrix_of
from benchmarks.reproduce.lood_measures import attack_auc, correlation, digits, spread, where_largest
from benchmarks.reproduce.lood_networks import (
    chosen_records,
    described,
    directions,
    perturbed,
    retrain,
    size_of,
)
from benchmarks.reproduce.setting import Job, Setting
from giveaway.gp.nngp import NNGP, NTK

LEAKS = 0.6  # AUC at the record from which the place of the largest AUC says something: 0.06 is one standard error


def run(job: Job) -> None:
    size = size_of(job)
    pictures = cars_and_planes(job, size.records, size.held_out)
    chosen = chosen_records(pictures.records, size.chosen, job.seed)
    toward, offsets = directions(len(chosen), pictures.inputs.shape[1], job.seed), size.offsets
    queries = perturbed(pictures.inputs[chosen], toward, offsets)
    targets = pictures.targets[chosen]
    middle = len(offsets) // 2

    distances(NNGP(1), pictures, job.device)  # libraries wake up before the clock runs
    answers = retrain(job, pictures, chosen, queries, "relu", size)
    began = time.perf_counter()
    wide = distances(NNGP(size.depth), pictures, job.device)
    seconds = {"retraining_relu": job.seconds()["retraining_relu"], "lood": time.perf_counter() - began}
    nearby, nearby_auc = along(NNGP(size.depth), pictures, chosen, queries, job.device)
    tangent = distances(NTK(size.depth), pictures, job.device)

    auc = attack_auc(answers.with_record, answers.without, targets)
    own = auc[:, middle]
    halves = [
        attack_auc(answers.with_record[part], answers.without[part], targets)[:, middle]
        for part in (slice(0, None, 2), slice(1, None, 2))
    ]
    deviations = [side[:, :, middle].std(0, ddof=1) for side in (answers.with_record, answers.without)]
    effect = np.abs(answers.change[:, middle]) / np.sqrt(np.square(deviations).mean(0))
    scores = {
        "nngp_auc": wide.auc,
        "lood_kl": wide.kl,
        "lood_mean": wide.mean,
        "ntk_auc": tangent.auc,
        "ntk_lood_kl": tangent.kl,
        "ntk_lood_mean": tangent.mean,
    }
    matrix = matrix_of(NNGP(size.depth), pictures, job.device)
    by_noise = {}
    for noise in NOISES:
        found = distances(NNGP(size.depth), pictures, job.device, noise, matrix)
        by_noise[str(noise)] = {
            "nngp_auc": correlation(found.auc[chosen], own),
            "lood_kl": correlation(found.kl[chosen], own),
            "auc_median": digits(np.median(found.auc[chosen])),
        }
    leaking = own >= LEAKS
    job.save(
        "lood_retrained",
        {
            **described(size, pictures, "relu"),
            "chosen": len(chosen),
            "rounds": size.rounds,
            "trainings": size.rounds * (1 + len(chosen)),
            "error_trained": digits(answers.loss.mean()),
            "accuracy_held_out": digits(answers.accuracy.mean()),
            "noise": NOISE,
            "auc": {"networks": spread(own), "nngp": spread(wide.auc[chosen])},
            "correlation_with_auc": {name: correlation(values[chosen], own) for name, values in scores.items()},
            "effect_size": spread(effect),
            "correlation_with_effect_size": {
                name: correlation(values[chosen], effect) for name, values in scores.items()
            },
            "by_noise": by_noise,
            "auc_of_half_the_rounds_with_the_other": correlation(*halves),
            "largest_along_a_direction": {
                "networks": where_largest(auc, offsets),
                "networks_that_leak": where_largest(auc[leaking], offsets) if leaking.any() else None,
                "nngp": where_largest(nearby, offsets),
                "leaks_from_auc": LEAKS,
            },
            "mean_auc_along": {
                "offsets": offsets.tolist(),
                "networks": [digits(value) for value in auc.mean(0)],
                "nngp": [digits(value) for value in nearby_auc.mean(0)],
            },
            "seconds": {name: digits(value) for name, value in seconds.items()},
            "lood_scored_records": pictures.records,
            "times_faster": digits(seconds["retraining_relu"] / seconds["lood"]),
        },
        {
            "chosen": chosen,
            "offsets": offsets,
            "targets": targets,
            "auc": auc,
            "change": answers.change[:, middle],
            "effect_size": effect,
            "deviation_with": deviations[0],
            "deviation_without": deviations[1],
            "nngp_auc_along": nearby_auc,
            "nngp_kl_along": nearby,
            "nngp_change": wide.change[chosen],
            "ntk_change": tangent.change[chosen],
            **{name: values[chosen] for name, values in scores.items()},
        },
    )


SETTINGS = {"lood_retrained": Setting("lood_retrained", "LOOD beside attacks on retrained networks", run)}
