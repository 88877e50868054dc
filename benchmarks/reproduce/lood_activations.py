"""Figure 5 of the LOOD paper: GELU against ReLU, on retrained networks and on their Gaussian processes.

The first 20 of lood_retrained's records: networks with GELU, trained as those with ReLU were (the same first weights,
rounds, rate and epochs), attacked at the record. Beside it the attack on NNGP(10) of either activation, on the same
inputs and σw² = 2, which is how the networks begin, and on the sphere with K(x, x) = 1, where both kernels have one
scale.
"""

from __future__ import annotations

import numpy as np

from benchmarks.reproduce.lood_data import cars_and_planes
from benchmarks.reproduce.lood_gaussian import NOISE, distances
from benchmarks.reproduce.lood_influence import truth_of
from benchmarks.reproduce.lood_measures import attack_auc, correlation, digits, spread
from benchmarks.reproduce.lood_networks import described, retrain, size_of
from benchmarks.reproduce.setting import Job, Setting
from giveaway.gp.activation_study import study_kernel

KERNELS = ("raw", "sphere")


def run(job: Job) -> None:
    size = size_of(job)
    relu = truth_of(job)
    pictures = cars_and_planes(job, size.records, size.held_out)
    chosen, targets = relu["chosen"][: size.compared], relu["targets"][: size.compared].astype(np.float32)
    if not np.array_equal(targets, pictures.targets[chosen]):
        raise SystemExit("lood_activations: the results of lood_retrained are of other data; run it again")
    answers = retrain(job, pictures, chosen, pictures.inputs[chosen][:, None], "gelu", size)
    smooth = attack_auc(answers.with_record, answers.without, targets)[:, 0]
    rectified = relu["auc"][: len(chosen), relu["auc"].shape[1] // 2].astype(np.float64)
    networks = {"relu": rectified, "gelu": smooth}
    result, arrays = {"networks": _beside(networks)}, {"chosen": chosen, "auc_relu": rectified, "auc_gelu": smooth}
    for kernel in KERNELS:
        sides = {
            name: distances(study_kernel(kernel, size.depth, name), pictures, job.device) for name in ("relu", "gelu")
        }
        aucs = {name: side.auc[chosen] for name, side in sides.items()}
        result[f"nngp_{kernel}"] = _beside(aucs) | {
            "kl_median_of_ratios_all_records": digits(np.median(sides["gelu"].kl / sides["relu"].kl)),
            "kl_higher_share_all_records": digits((sides["gelu"].kl > sides["relu"].kl).mean()),
            "correlation_with_the_networks": {name: correlation(aucs[name], networks[name]) for name in aucs},
        }
        arrays |= {f"nngp_{kernel}_{name}": values for name, values in aucs.items()}
    job.save(
        "lood_activations",
        {
            **described(size, pictures, "gelu"),
            "chosen": len(chosen),
            "rounds": size.rounds,
            "trainings": size.rounds * (1 + len(chosen)),
            "noise": NOISE,
            "error_trained_gelu": digits(answers.loss.mean()),
            "accuracy_held_out_gelu": digits(answers.accuracy.mean()),
            **result,
            "seconds": {name: digits(value) for name, value in job.seconds().items()},
        },
        arrays,
    )


def _beside(auc: dict[str, np.ndarray]) -> dict:
    """GELU's AUC over ReLU's."""
    difference = auc["gelu"] - auc["relu"]
    return {
        "auc_relu": spread(auc["relu"]),
        "auc_gelu": spread(auc["gelu"]),
        "gelu_higher": int((difference > 0).sum()),
        "equal": int((difference == 0).sum()),
        "mean_difference": digits(difference.mean()),
        "standard_error": digits(difference.std(ddof=1) / np.sqrt(len(difference))),
    }


SETTINGS = {"lood_activations": Setting("lood_activations", "GELU against ReLU on retrained networks", run)}
