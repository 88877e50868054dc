"""The experiments of the GLS paper: ResNet-18 on CIFAR-10, shadow models on random 80 % subsets, GLS at four depths.

Models are numbered; the first `targets` of them are the targets too, and all others are a target's references. A
target's leverage of the last layer is computed as soon as it is trained, that of deeper ones once all models are. On a
CPU nothing is trained (but for --small): what is kept is measured.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from benchmarks.reproduce.gls_depths import Solving
from benchmarks.reproduce.gls_measures import measure
from benchmarks.reproduce.gls_network import DEPTHS, WIDTHS
from benchmarks.reproduce.gls_training import FOLDS, Schedule
from benchmarks.reproduce.gls_work import CHECKED, DRAWN, FUSED, Size, Work
from benchmarks.reproduce.setting import Job, Setting

FULL = Size(
    WIDTHS,
    Schedule(),
    Solving(
        probes={DEPTHS[1]: 32, DEPTHS[2]: 16, DEPTHS[3]: 16},
        rank={DEPTHS[1]: 64, DEPTHS[2]: 64, DEPTHS[3]: 96},
        most_steps={DEPTHS[1]: 15, DEPTHS[2]: 12, DEPTHS[3]: 17},  # the results kept had 10 at most for the full model
    ),
    {DEPTHS[0]: 16, DRAWN: 1},
    {DEPTHS[1]: 1, DEPTHS[2]: 1, FUSED: 1, DEPTHS[3]: 1},
    ((DEPTHS[1], 4), (DEPTHS[2], 4), (FUSED, 16), (CHECKED, 1), (DEPTHS[3], 4), (DEPTHS[1], 16), (DEPTHS[2], 16)),
)
SMALL = Size(
    (3, 4, 4, 5),
    Schedule(epochs=1, batch=50, rate=0.1),
    Solving(*({depth: few for depth in DEPTHS[1:]} for few in (4, 4, 40)), tolerance=0.1, memory=10**8, checked=2),
    {DEPTHS[0]: 2, DRAWN: 1},
    {DEPTHS[1]: 2, FUSED: 2, DEPTHS[2]: 1},
    ((CHECKED, 1), (DEPTHS[3], 1)),
)
SMALL_MODELS = 4 * FOLDS  # LiRA wants several models without each record


def run(job: Job) -> None:
    """Train, score and measure whatever is not kept yet."""
    size = SMALL if job.small else FULL
    if job.small:
        job = replace(job, models=max(job.models, SMALL_MODELS))
    work = Work(job, size, range(job.targets))
    if work.measures_only(range(job.models)):
        _save(work)
        return
    for number in work.targets:
        work.target(number, size.at_once)
    for number in range(job.targets, job.models):
        if not work.kept.has_model(number):
            work.train(number)
    for number in work.targets:
        work.target(number, size.after_all)
    try:
        work.at_last()
    finally:  # whatever becomes of what may be left out
        _save(work)


def _save(work: Work) -> None:
    job = work.job
    result, arrays = measure(work.kept, work.images.labels, job.models, job.targets, job.seed)
    result["training"] = asdict(work.size.schedule)
    result["solving"] = asdict(work.size.solving)
    job.save("gls_resnet18", result, arrays)


SETTINGS = {"gls_resnet18": Setting("gls_resnet18", "GLS paper: ResNet-18 on CIFAR-10", run)}
