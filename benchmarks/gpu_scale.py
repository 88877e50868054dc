"""Heads of any size on one GPU: `python -m benchmarks.gpu_scale [--parts dense precision imagenet] [--out FILE.json]`.

dense : CIFAR-100/ResNet-20's head (25,000 records, 64 features, 100 classes), every score from the exact curvature.
precision : 20,000 records, 512 features, 100 classes: sketches in bf16, tf32, float32 and float64 against the exact
    curvature, and against each other.
imagenet : 1,281,167 records, 2,048 features, 1,000 classes: influence and newton of every record from 256 probes.
    Features are made: nonnegative, with a spectrum that falls as 1/k, in clusters by class; one label in ten is wrong.
"""

import math
from functools import partial
from typing import Any

import torch

import giveaway as ga
from benchmarks.measuring import read_options, write_parts
from benchmarks.measuring import timed as timed_on
from benchmarks.scale import WEIGHT_DECAY, fill_head
from giveaway.curvature.choice import Dense, Sketch
from giveaway.curvature.products import HeadProducts
from giveaway.evaluation.ranking import recall_at, spearman
from giveaway.linalg.precision import Precision

GPU = torch.device("cuda")


def made_head(n: int, d: int, m: int) -> ga.Head:
    """Confident, partly wrong predictions on features with a realistic spectrum."""
    features = torch.empty(n, d, device=GPU)
    targets, weight, bias = fill_head(features, m, margin=4.0 + 2.0 * math.log(m))
    outputs = torch.cat([part @ weight.T + bias for part in features.split(65_536)])
    return ga.Head(features, outputs, targets, "cross_entropy", l2=WEIGHT_DECAY * n)


def said_of(head: ga.Head) -> dict[str, float]:
    """How sure and how right the made head is."""
    part = slice(0, min(head.n, 100_000))
    p = torch.softmax(head.outputs[part], 1)
    return {
        "accuracy": round(float((p.argmax(1) == head.targets[part]).float().mean()), 4),
        "mean_top_probability": round(float(p.amax(1).mean()), 4),
        "records_above_0.9": round(float((p.amax(1) > 0.9).float().mean()), 4),
    }


timed = partial(timed_on, device=GPU)


def dense() -> dict[str, Any]:
    """Every score of CIFAR-100's head."""
    head = made_head(25_000, 64, 100)
    timed(lambda: ga.audit(made_head(2_000, 64, 100), curvature=Dense()))  # libraries load
    seconds = []
    for _ in range(3):
        table, took = timed(lambda: ga.audit(head, curvature=Dense()))
        seconds.append(round(took, 3))
    return {"records": 25_000, "scores": list(table.columns), "seconds": seconds, **said_of(head)}


def precision() -> dict[str, Any]:
    """Sketches of several precisions against the exact scores."""
    head = made_head(20_000, 512, 100)
    names = ["influence", "newton", "leverage"]
    exact, took = timed(lambda: ga.audit(head, scores=names, curvature=Dense()))
    found: dict[str, Any] = {**said_of(head), "dense_seconds": round(took, 2)}
    sketches = {}
    for name in ("float64", "float32", "tf32", "bf16"):
        table, took = timed(lambda: ga.audit(head, scores=names, curvature=Sketch(precision=name)))  # noqa: B023
        sketches[name] = table
        found[name] = {"seconds": round(took, 2), "curvature": table.meta.curvature.to_json()}
        for score in names:
            told, truth, same = table[score], exact[score], sketches["float64"][score]
            found[name][score] = {
                "spearman_with_dense": round(spearman(told, truth), 6),
                "top_1_percent_kept": round(recall_at(told, truth, 0.01, 0.01), 4),
                "spearman_with_float64_sketch": round(spearman(told, same), 8),
            }
    return found


def matrix_rate() -> float:
    """TFLOP/s of a bf16 product of the size that the sketch makes."""
    x = torch.randn(16_384, 2_056, device=GPU).bfloat16()
    v = torch.randn(2_056, 32_000, device=GPU).bfloat16()
    for _ in range(3):
        x @ v
    _, took = timed(lambda: [x @ v for _ in range(20)] and None)
    return 20 * 2.0 * 16_384 * 2_056 * 32_000 / took / 1e12


def imagenet(n: int = 1_281_167, d: int = 2_048, m: int = 1_000, probes: int = 256) -> dict[str, Any]:
    """Influence and newton of every record of ImageNet's head."""
    head = made_head(n, d, m)
    found: dict[str, Any] = {"records": n, "features": d, "classes": m, "probes": probes, **said_of(head)}
    rate = matrix_rate()
    torch.cuda.reset_peak_memory_stats()
    table, took = timed(
        lambda: ga.audit(head, scores=["influence", "newton"], progress=True, curvature=Sketch(probes=probes))
    )
    found |= {
        "seconds": round(took, 1),
        "peak_gigabytes": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        "bf16_product_tflops": round(rate, 1),
        "curvature": table.meta.curvature.to_json(),
        "newton_capped": table.meta.newton_capped,
    }
    found["products"] = product_rates(head, rate)
    return found


def product_rates(head: ga.Head, rate: float) -> dict[str, Any]:
    """How fast H V is, over the rate of bare products."""
    products = HeadProducts(head, head.l2)
    told = {}
    v = torch.randn(products.width, products.k, 32, device=GPU)
    for name in ("bf16", "bf16x3"):
        precision = Precision(name)
        timed(lambda: products.apply(v, precision))  # noqa: B023
        _, took = timed(lambda: products.apply(v, precision))  # noqa: B023
        tflops = 4.0 * head.n * products.width * products.k * 32 / took / 1e12
        told[f"{name}, 32 probes"] = {
            "seconds": round(took, 3),
            "tflops": round(tflops, 1),
            "of_the_bare_rate": round(tflops / rate, 3),
        }
    return told


PARTS = {"dense": dense, "precision": precision, "imagenet": imagenet}


def main() -> None:
    options = read_options(__doc__, "gpu_scale.json", parts=PARTS)
    write_parts(options.out, options.parts, lambda name: PARTS[name](), device=GPU)


if __name__ == "__main__":
    main()
