"""Heads of any size on one GPU: run as `python benchmarks/gpu_scale.py OUT.json [dense] [precision] [imagenet]`.

dense : CIFAR-100/ResNet-20's head (25,000 records, 64 features, 100 classes), every score from the exact curvature.
precision : 20,000 records, 512 features, 100 classes: sketches in bf16, tf32, float32 and float64 against the exact
    curvature, and against each other.
imagenet : 1,281,167 records, 2,048 features, 1,000 classes: influence and newton of every record from 256 probes.
    Features are made: nonnegative, with a spectrum that falls as 1/k, in clusters by class; one label in ten is wrong.
"""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import environment, write_json
from measuring import timed as timed_on

import giveaway as ga
from giveaway.curvature.choice import Dense, Sketch
from giveaway.curvature.products import HeadProducts
from giveaway.evaluation.ranking import recall_at, spearman
from giveaway.linalg.precision import Precision

GPU = torch.device("cuda")
WEIGHT_DECAY = 1e-4


def made_head(n: int, d: int, m: int, *, device: torch.device = GPU, seed: int = 0) -> ga.Head:
    """Confident, partly wrong predictions on features with a realistic spectrum."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    spectrum = torch.arange(1, d + 1, device=device).float().rsqrt()
    turn = torch.linalg.qr(normal(d, d))[0]
    centres = normal(m, d) * spectrum
    labels = torch.randint(m, (n,), generator=generator, device=device)
    features = torch.empty(n, d, device=device)
    for start in range(0, n, 65_536):
        part = slice(start, min(start + 65_536, n))
        mixed = centres[labels[part]] + 1.2 * normal(part.stop - start, d) * spectrum
        features[part] = torch.relu(0.3 + mixed @ turn)
    sampled = torch.randperm(n, generator=generator, device=device)[: 64 * m]
    mean = features[sampled].mean(0)
    means = torch.zeros(m, d, device=device).index_add_(0, labels[sampled], features[sampled] - mean)
    weight = means / torch.bincount(labels[sampled], minlength=m).clamp_min(1).unsqueeze(1)
    bias = -0.5 * weight.square().sum(1) - weight @ mean
    sample = features[sampled] @ weight.T + bias
    own = sample.gather(1, labels[sampled].unsqueeze(1)).squeeze(1)
    scale = (4.0 + 2.0 * math.log(m)) / float((own - sample.mean(1)).mean())
    wrong = torch.rand(n, generator=generator, device=device) < 0.1
    targets = torch.where(wrong, torch.randint(m, (n,), generator=generator, device=device), labels)
    outputs = torch.empty(n, m, device=device)
    for start in range(0, n, 65_536):
        part = slice(start, min(start + 65_536, n))
        outputs[part] = scale * (features[part] @ weight.T + bias)
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
    timed(lambda: ga.audit(made_head(2_000, 64, 100, seed=1), curvature=Dense()))  # libraries load
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


def main() -> None:
    out, *chosen = sys.argv[1:]
    results: dict[str, Any] = {"environment": environment(GPU), "cuda": torch.version.cuda}
    for name in chosen or ["dense", "precision", "imagenet"]:
        results[name] = {"dense": dense, "precision": precision, "imagenet": imagenet}[name]()
        print(name, json.dumps(results[name], indent=1), flush=True)
        write_json(Path(out), results)


if __name__ == "__main__":
    main()
