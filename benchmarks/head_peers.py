"""Self-influence of every record of a linear head: giveaway beside the libraries that compute it too.

For each setting the script draws a multinomial head and asks each contender, in a process of its own, for
g_i^T H^{-1} g_i of all n records: g_i the gradient of record i's loss in the last layer's weights and bias, H the
curvature of the summed loss plus l2 on all of them. giveaway is measured twice: with every default column, and with
`influence` alone; the peers compute the self-influence only. Everything runs in float64. Reported are

- CPU seconds of all threads, and peak resident memory above what was resident before. Imports, loading and a warm-up
  on a toy head stay outside. One thread by default, so that CPU seconds are work and not waiting.
- Spearman's correlation and the largest relative error against a dense reference. statsmodels knows no penalty, so
  its reference has none either.

Repeats are interleaved over the contenders and the median is reported; one that takes long runs once. Each exact
peer has the batch size that was the fastest tried, where it fits in memory.

The peers need an environment of their own: some pin NumPy 1, and those installed without their dependencies declare a
torchvision that they do not import and that may replace torch.

    pip install torch==2.13.0 && echo torch==2.13.0 > pins.txt
    pip install -c pins.txt "numpy<2" captum pyDVL dask distributed "zarr<3" dattri statsmodels
    pip install -c pins.txt "numpy<2" einops einconv linear_operator opt-einsum unfoldNd torchmetrics
    pip install --no-deps curvlinops-for-pytorch backpack-for-pytorch laplace-torch asdfghjkl==0.1a4 -e .

Then `python -m benchmarks.head_peers` (Linux; `--help` for the options).
"""

import argparse
import math
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from scipy.stats import spearmanr
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader, TensorDataset

import giveaway as ga
from benchmarks.measuring import alone, cpu_timed, memory, read_options, reset_peak_memory, write_result

SETTINGS = {"A": (5000, 64, 10), "B": (5000, 64, 100), "C": (20000, 512, 2)}  # records, features, classes
DECAY = 1e-4  # l2 = DECAY * n: a weight decay of 1e-4 on the mean loss. It makes softmax's flat directions regular
NO_PENALTY = 1e-7  # l2 of the reference without penalty: enough for softmax's flat directions, nothing for the others
BATCH = 250  # records at a time where a contender does not say its own
MEMORY_GB = 12.0  # that a contender may map above its start
COSTLY = 20.0  # CPU seconds above which a contender is not repeated
AGREES = 1e-6  # the largest relative error with which a contender counts as exact
PACKAGES = ("scipy", "curvlinops-for-pytorch", "laplace-torch", "backpack-for-pytorch", "pyDVL", "captum", "dattri")
PACKAGES += ("statsmodels",)


@dataclass(frozen=True)
class Problem:
    """A multinomial head with its records, in float64."""

    features: torch.Tensor  # (n, d)
    targets: torch.Tensor  # (n,)
    weight: torch.Tensor  # (m, d)
    bias: torch.Tensor  # (m,)
    l2: float

    @classmethod
    def draw(cls, n: int, d: int, m: int) -> "Problem":
        """Correlated features whose variances fall as 1/j, a random head, and labels drawn from its softmax."""
        rng = np.random.default_rng(0)
        rotation, _ = np.linalg.qr(rng.standard_normal((d, d)))
        scale = np.arange(1, d + 1) ** -0.5
        features = rng.standard_normal((n, d)) * (scale * math.sqrt(d / (scale**2).sum())) @ rotation
        weight = rng.standard_normal((m, d)) * 2.5 / math.sqrt(d)
        bias = rng.standard_normal(m) * 0.3
        targets = (features @ weight.T + bias + rng.gumbel(size=(n, m))).argmax(1)
        return cls(*(torch.from_numpy(a) for a in (features, targets, weight, bias)), l2=DECAY * n)

    @property
    def n(self) -> int:
        return len(self.features)

    @property
    def m(self) -> int:
        return len(self.bias)

    @property
    def outputs(self) -> torch.Tensor:
        return self.features @ self.weight.T + self.bias

    def model(self) -> torch.nn.Linear:
        layer = torch.nn.Linear(self.weight.shape[1], self.m)
        layer.load_state_dict({"weight": self.weight, "bias": self.bias})
        return layer.eval()

    def dataset(self) -> TensorDataset:
        return TensorDataset(self.features, self.targets)

    def loader(self, size: int = BATCH) -> DataLoader:
        return DataLoader(self.dataset(), batch_size=size, shuffle=False)

    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(self.features.split(BATCH), self.targets.split(BATCH), strict=True))


def record_gradients(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(records, parameters) in the order of model.parameters(), for the peers that leave gradients to their user."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values: dict, row: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return cross_entropy(torch.func.functional_call(model, values, (row,)), label)

    blocks = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, y)
    return torch.cat([blocks[name].flatten(1) for name in parameters], dim=1)


def squared_solves(factor: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """g^T H^{-1} g of each row g, from H's Cholesky factor."""
    return torch.linalg.solve_triangular(factor, gradients.T, upper=False).square().sum(0)


def reference(problem: Problem) -> torch.Tensor:
    """The dense curvature block by block of classes, and closed-form gradients: no library's code, no autograd."""
    m = problem.m
    x = torch.cat([problem.features, torch.ones(problem.n, 1)], dim=1)
    width, p = x.shape[1], torch.softmax(problem.outputs, dim=1)
    curvature = torch.zeros(m, width, m, width)
    for a in range(m):
        for b in range(a + 1):
            block = x.T @ ((p[:, a] * (float(a == b) - p[:, b]))[:, None] * x)
            curvature[a, :, b], curvature[b, :, a] = block, block
    curvature = curvature.reshape(m * width, m * width)
    curvature.diagonal().add_(problem.l2)
    factor = torch.linalg.cholesky(curvature)
    scores = []
    for rows, r in zip(x.split(BATCH), (p - one_hot(problem.targets, m)).split(BATCH), strict=True):
        scores.append(squared_solves(factor, (r[:, :, None] * rows[:, None, :]).flatten(1)))
    return torch.cat(scores)


def giveaway_audit(problem: Problem, scores: str) -> torch.Tensor:
    head = ga.Head(problem.features, problem.outputs, problem.targets, loss="cross_entropy", l2=problem.l2)
    return torch.as_tensor(ga.audit(head, scores=scores)["influence"])


def curvlinops_ggn(problem: Problem) -> torch.Tensor:
    from curvlinops import GGNLinearOperator

    model, loss, batches = problem.model(), torch.nn.CrossEntropyLoss(reduction="sum"), problem.batches()
    ggn = GGNLinearOperator(
        model, loss, list(model.parameters()), batches, check_deterministic=False, num_data=problem.n
    )
    dense = ggn @ torch.eye(ggn.shape[1])
    dense.diagonal().add_(problem.l2)
    factor = torch.linalg.cholesky(dense)
    return torch.cat([squared_solves(factor, record_gradients(model, x, y)) for x, y in batches])


def laplace_full(problem: Problem, backend: str) -> torch.Tensor:
    import laplace.curvature

    model = problem.model()
    posterior = laplace.Laplace(
        torch.nn.Sequential(torch.nn.Identity(), model),
        "classification",
        subset_of_weights="last_layer",
        hessian_structure="full",
        prior_precision=problem.l2,
        backend=getattr(laplace.curvature, backend),
    )
    posterior.fit(problem.loader(1000 if backend == "BackPackGGN" and problem.m == 2 else BATCH))
    covariance, scores = posterior.posterior_covariance, []
    for x, y in problem.batches():
        gradients = record_gradients(model, x, y)
        scores.append((gradients @ covariance * gradients).sum(1))
    return torch.cat(scores)


def pydvl_direct(problem: Problem) -> torch.Tensor:
    from pydvl.influence.torch import DirectInfluence

    influence = DirectInfluence(problem.model(), cross_entropy, regularization=problem.l2 / problem.n)
    influence = influence.fit(problem.loader())
    scores = []
    for x, y in problem.batches():  # each batch against itself: only the diagonal is wanted
        factors = influence.influence_factors(x, y)
        scores.append(influence.influences_from_factors(factors, x, y).diagonal() / problem.n)
    return torch.cat(scores)


def captum_naive(problem: Problem) -> torch.Tensor:
    from captum.influence import NaiveInfluenceFunction

    model = problem.model()
    loader = problem.loader(5000 if problem.m <= 10 else 1000)  # with more classes, 5000 run out of memory
    influence = NaiveInfluenceFunction(
        model,
        loader,
        checkpoint="",
        checkpoints_load_func=lambda model, path: 1.0,  # the model holds its weights already
        loss_fn=torch.nn.CrossEntropyLoss(reduction="sum"),
        sample_wise_grads_per_batch=True,
        projection_dim=sum(p.numel() for p in model.parameters()),
        hessian_reg=problem.l2,
    )
    return influence.self_influence(loader)


def dattri_explicit(problem: Problem) -> torch.Tensor:
    from dattri.algorithm.influence_function import IFAttributorExplicit
    from dattri.task import AttributionTask

    model = problem.model()

    def loss(parameters: dict, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        outputs = torch.func.functional_call(model, parameters, (data[0],))
        return cross_entropy(outputs, data[1], reduction="sum")

    task = AttributionTask(loss_func=loss, model=model, checkpoints=model.state_dict())
    attributor = IFAttributorExplicit(task=task, regularization=problem.l2)
    loader = problem.loader(problem.n)  # one batch: with several, it sums the inverses of the batches' curvatures
    attributor.cache(loader)
    with torch.no_grad():
        return attributor.self_attribute(loader)


def statsmodels_binary(problem: Problem) -> torch.Tensor:
    import statsmodels.api as sm

    design = np.column_stack([problem.features.numpy(), np.ones(problem.n)])
    start = torch.cat([problem.weight[1] - problem.weight[0], problem.bias[1:] - problem.bias[:1]]).numpy()
    model = sm.GLM(problem.targets.numpy(), design, family=sm.families.Binomial())
    result = model.fit(start_params=start, maxiter=0)  # at the head's own parameters
    return torch.from_numpy(np.asarray(result.resid_pearson) ** 2 * result.get_hat_matrix_diag())


REFERENCE, EXACT = "reference", "exact"
CONTENDERS: dict[str, tuple[str, str, Callable[[Problem], torch.Tensor]]] = {  # label, kind, score of every record
    "reference": ("dense, loops over classes", REFERENCE, reference),
    "giveaway": ("giveaway, all default columns", "giveaway", partial(giveaway_audit, scores="default")),
    "influence": ("giveaway, influence alone", "giveaway", partial(giveaway_audit, scores="influence")),
    "curvlinops": ("curvlinops GGN + Cholesky", EXACT, curvlinops_ggn),
    "laplace": ("laplace-torch full, curvlinops", EXACT, partial(laplace_full, backend="CurvlinopsGGN")),
    "backpack": ("laplace-torch full, BackPACK", EXACT, partial(laplace_full, backend="BackPackGGN")),
    "pydvl": ("pyDVL direct", EXACT, pydvl_direct),
    "captum": ("captum naive, full rank", EXACT, captum_naive),
    "dattri": ("dattri explicit", EXACT, dattri_explicit),
    "statsmodels": ("statsmodels GLM, no penalty", EXACT, statsmodels_binary),
}
BINARY = "statsmodels"  # two classes only, and no penalty


def measure(name: str, problem: Problem, limit: float, threads: int) -> dict:
    """Run one contender in this process: `cpu_s`, `peak_mb` and `scores`, or `error`."""
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    run = CONTENDERS[name][2]
    try:
        run(Problem.draw(60, 5, min(3, problem.m)))
        # from here on the system ends a process that computes longer, and refuses it more memory
        allowed, space = math.ceil(time.process_time() + limit), int(memory("VmSize") + MEMORY_GB * 2**30)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (allowed, allowed + 10))
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        reset_peak_memory()
        resident = memory("VmRSS")
        scores, seconds = cpu_timed(lambda: run(problem))
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        full = isinstance(error, MemoryError) or "allocate memory" in message
        return {"error": "out of memory" if full else message[:200]}
    peak = (memory("VmHWM") - resident) / 2**20
    return {"cpu_s": seconds, "peak_mb": peak, "scores": scores.detach().numpy()}


def run_once(name: str, problem: Problem, options: argparse.Namespace) -> dict:
    """One measurement in a fresh process."""
    try:
        found = alone(measure, name, problem, options.limit, options.threads, threads=options.threads)
    except BrokenProcessPool:  # the system has ended it
        found = {"error": f"> {options.limit:g}"}
    print(name, {key: value for key, value in found.items() if key != "scores"}, file=sys.stderr, flush=True)
    return found


def summarize(runs: list[dict], truth: np.ndarray) -> dict:
    """Medians over the repeats and the agreement with the reference, or how the contender failed."""
    for run in runs:
        if "error" in run:
            return run
    scores = runs[0]["scores"]
    return {
        "cpu_s": round(statistics.median(run["cpu_s"] for run in runs), 4),
        "cpu_s_runs": [round(run["cpu_s"], 4) for run in runs],
        "peak_mb": round(statistics.median(run["peak_mb"] for run in runs), 1),
        "spearman": float(spearmanr(scores, truth).statistic),
        "max_relative_error": float(np.abs(scores / truth - 1).max()),
    }


def measure_setting(key: str, options: argparse.Namespace) -> dict:
    """All measurements of one setting, interleaved; a contender that failed or is costly runs once."""
    n, d, m = SETTINGS[key]
    problem = Problem.draw(options.records or n, d, m)
    base = run_once("reference", problem, options)
    bare = run_once("reference", replace(problem, l2=NO_PENALTY), options) if m == 2 else base
    if "error" in base | bare:
        raise SystemExit(f"{key}: no reference: {base.get('error') or bare['error']}")
    runs: dict[str, list[dict]] = {name: [] for name in options.contenders if m == 2 or name != BINARY}
    for _ in range(options.repeats):
        for name, own in runs.items():
            if not own or own[0].get("cpu_s", math.inf) < COSTLY:
                own.append(run_once(name, problem, options))
    results = {"reference": summarize([base], base["scores"])}
    results |= {name: summarize(own, (bare if name == BINARY else base)["scores"]) for name, own in runs.items()}
    setting = {"n": problem.n, "d": d, "m": m, "l2": problem.l2, "results": results}
    return setting | {"best_exact_peer": best_exact_peer(results, options.limit)}


def best_exact_peer(results: dict[str, dict], limit: float) -> dict:
    """Its CPU seconds over giveaway's; lower bounds from the limit where no exact peer ended within it."""
    peers = {name: result for name, result in results.items() if CONTENDERS[name][1] == EXACT}
    ended = {name: r["cpu_s"] for name, r in peers.items() if r.get("max_relative_error", math.inf) < AGREES}
    best = min(ended, key=ended.__getitem__, default=None)
    own = {name: r["cpu_s"] for name, r in results.items() if CONTENDERS[name][1] == "giveaway" and "cpu_s" in r}
    over = {name: round(ended.get(best, limit) / seconds, 2) for name, seconds in own.items()}
    return {"name": best, "exact_peers": len(peers), "ended": len(ended), "cpu_over": over}


def cell(result: dict | None) -> str:
    if result is None or "error" in result:
        return result["error"].split(":")[0] if result else "–"
    return f"{result['cpu_s']:.2f} / {result['peak_mb']:.0f} / {result['max_relative_error']:.0e}"


def table(settings: dict[str, dict]) -> str:
    """CPU seconds, peak megabytes and largest relative error of each contender in each setting."""
    lines = ["| | | " + " | ".join(settings) + " |", "|---|---|" + "---|" * len(settings)]
    for name, (label, kind, _) in CONTENDERS.items():
        cells = (cell(setting["results"].get(name)) for setting in settings.values())
        lines.append(f"| {label} | {kind} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, *(f"{key}: {setting['best_exact_peer']}" for key, setting in settings.items())])


def main() -> None:
    options = read_options(
        __doc__,
        "head_peers.json",
        settings=SETTINGS,
        contenders=list(CONTENDERS)[1:],
        repeats=3,
        limit=120.0,  # CPU seconds of a contender
        threads=1,
        records=int,  # in place of every setting's n, for a quick look
    )
    told = {"limit_s": options.limit, "memory_gb": MEMORY_GB, "repeats": options.repeats, "threads": options.threads}
    settings: dict[str, dict] = {}
    for key in options.settings:
        settings[key] = measure_setting(key, options)
        write_result(options.out, {**told, "settings": settings}, *PACKAGES)
    print(table(settings))


if __name__ == "__main__":
    main()
