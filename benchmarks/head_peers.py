"""Self-influence of every record of a linear head: giveaway beside the libraries that compute it too.

For each setting the script draws a multinomial head and asks each contender, in a process of its own, for
g_i^T H^{-1} g_i of all n records: g_i the gradient of record i's loss in the last layer's weights and bias, H the
curvature of the summed loss plus l2 on all of them. giveaway is measured twice: with every head column, and with
`influence` alone; the peers compute the self-influence only. Reported are CPU seconds of all threads, peak resident
memory above what was resident before, and Spearman's correlation with a dense float64 reference. Imports, loading
and one warm-up on a toy head stay outside the measurement. Repeats are interleaved over the contenders, the median
is reported, and a contender that fails is reported with its error. One thread by default, so that CPU seconds are
work and not waiting.

The peers need an environment of their own (some pin NumPy 1, and some declare a torchvision that they do not import,
which would replace torch):

    pip install torch==2.13.0 "numpy<2" captum pyDVL dask distributed "zarr<3" dattri statsmodels threadpoolctl
    pip install einops einconv linear_operator opt-einsum unfoldNd torchmetrics accelerate safetensors click jinja2
    pip install --no-deps curvlinops-for-pytorch backpack-for-pytorch laplace-torch asdfghjkl==0.1a4 kronfluence -e .

Then `python benchmarks/head_peers.py` (Linux; `--help` for the options).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

SETTINGS = {"A": (5000, 64, 10), "B": (5000, 64, 100), "C": (20000, 512, 2)}  # records, features, classes
DECAY = 1e-4  # l2 = DECAY * n: a weight decay of 1e-4 on the mean loss. It makes softmax's flat directions regular
BATCH = 250  # records at a time where a contender streams: the fastest for most of them; others say their own
EXACT = 0.999  # the Spearman from which a contender counts as exact
PACKAGES = ["giveaway", "torch", "numpy", "scipy", "curvlinops-for-pytorch", "laplace-torch", "pyDVL", "captum"]
PACKAGES += ["dattri", "statsmodels", "kronfluence"]


@dataclass
class Problem:
    """A multinomial head with its records, in float64."""

    features: torch.Tensor  # (n, d)
    targets: torch.Tensor  # (n,)
    weight: torch.Tensor  # (m, d)
    bias: torch.Tensor  # (m,)
    l2: float

    @classmethod
    def draw(cls, n: int, d: int, m: int, seed: int) -> Problem:
        """Correlated features whose variances fall as 1/j, a random head, and labels drawn from its softmax."""
        rng = np.random.default_rng(seed)
        rotation, _ = np.linalg.qr(rng.standard_normal((d, d)))
        scale = np.arange(1, d + 1) ** -0.5
        features = rng.standard_normal((n, d)) * (scale * math.sqrt(d / (scale**2).sum())) @ rotation
        weight = rng.standard_normal((m, d)) * 2.5 / math.sqrt(d)
        bias = rng.standard_normal(m) * 0.3
        logits = features @ weight.T + bias
        targets = (logits + rng.gumbel(size=(n, m))).argmax(1)
        tensors = (torch.from_numpy(a) for a in (features, targets, weight, bias))
        return cls(*tensors, l2=DECAY * n)

    @property
    def outputs(self) -> torch.Tensor:
        return self.features @ self.weight.T + self.bias

    def model(self) -> torch.nn.Linear:
        layer = torch.nn.Linear(self.weight.shape[1], self.weight.shape[0])
        with torch.no_grad():
            layer.weight.copy_(self.weight)
            layer.bias.copy_(self.bias)
        return layer.eval()

    def dataset(self) -> TensorDataset:
        return TensorDataset(self.features, self.targets)

    def loader(self, size: int = BATCH) -> DataLoader:
        return DataLoader(self.dataset(), batch_size=size, shuffle=False)

    def batches(self, size: int = BATCH) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(self.features.split(size), self.targets.split(size), strict=True))


def record_gradients(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(records, parameters) in the order of model.parameters(), by torch.func as the curvature peers' users do."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values: dict, row: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return cross_entropy(torch.func.functional_call(model, values, (row,)), label)

    blocks = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, y)
    return torch.cat([blocks[name].flatten(1) for name in parameters], dim=1)


# A contender imports what it needs and returns the function that is measured.
Run = Callable[[Problem], torch.Tensor]


def reference() -> Run:
    def run(problem: Problem) -> torch.Tensor:
        n, m = len(problem.features), len(problem.bias)
        x = torch.cat([problem.features, torch.ones(n, 1)], dim=1)
        width, p = x.shape[1], torch.softmax(problem.outputs, dim=1)
        curvature = torch.zeros(m, width, m, width)
        for a in range(m):
            for b in range(a + 1):
                w = p[:, a] * (float(a == b) - p[:, b])
                block = x.T @ (w[:, None] * x)
                curvature[a, :, b], curvature[b, :, a] = block, block
        curvature = curvature.reshape(m * width, m * width)
        curvature.diagonal().add_(problem.l2)
        factor = torch.linalg.cholesky(curvature)
        g = p - torch.nn.functional.one_hot(problem.targets, m)
        scores = []
        for rows, residuals in zip(x.split(BATCH), g.split(BATCH), strict=True):
            gradients = (residuals[:, :, None] * rows[:, None, :]).flatten(1)
            scores.append(torch.linalg.solve_triangular(factor, gradients.T, upper=False).square().sum(0))
        return torch.cat(scores)

    return run


def giveaway_all() -> Run:
    import giveaway as ga

    def run(problem: Problem) -> torch.Tensor:
        head = ga.Head(
            features=problem.features,
            outputs=problem.outputs,
            targets=problem.targets,
            loss="cross_entropy",
            l2=problem.l2,
        )
        return ga.audit(head)["influence"]

    return run


def giveaway_influence() -> Run:
    import giveaway as ga

    def run(problem: Problem) -> torch.Tensor:
        head = ga.Head(
            features=problem.features,
            outputs=problem.outputs,
            targets=problem.targets,
            loss="cross_entropy",
            l2=problem.l2,
        )
        return ga.audit(head, scores=["influence"])["influence"]

    return run


def curvlinops_ggn() -> Run:
    from curvlinops import GGNLinearOperator

    def run(problem: Problem) -> torch.Tensor:
        model, loss = problem.model(), torch.nn.CrossEntropyLoss(reduction="sum")
        operator = GGNLinearOperator(
            model,
            loss,
            list(model.parameters()),
            problem.batches(),
            check_deterministic=False,
            num_data=len(problem.features),
        )
        dense = operator @ torch.eye(operator.shape[1])
        dense.diagonal().add_(problem.l2)
        factor = torch.linalg.cholesky(dense)
        scores = []
        for x, y in problem.batches():
            gradients = record_gradients(model, x, y)
            scores.append(torch.linalg.solve_triangular(factor, gradients.T, upper=False).square().sum(0))
        return torch.cat(scores)

    return run


def curvlinops_kronecker(kind: str) -> Run:
    import curvlinops

    operator_class = getattr(curvlinops, f"{kind}LinearOperator")

    def run(problem: Problem) -> torch.Tensor:
        model, loss = problem.model(), torch.nn.CrossEntropyLoss(reduction="sum")
        operator = operator_class(
            model,
            loss,
            list(model.parameters()),
            problem.batches(),
            check_deterministic=False,
            num_data=len(problem.features),
            fisher_type=curvlinops.FisherType.TYPE2,
            separate_weight_and_bias=False,
        )
        inverse = curvlinops.KFACInverseLinearOperator(operator, damping=problem.l2, use_exact_damping=True)
        scores = []
        for x, y in problem.batches():
            gradients = record_gradients(model, x, y).T
            scores.append((gradients * (inverse @ gradients)).sum(0))
        return torch.cat(scores)

    return run


def laplace_full(backend: str) -> Run:
    import laplace
    from laplace import curvature

    def run(problem: Problem) -> torch.Tensor:
        model = problem.model()
        posterior = laplace.Laplace(
            torch.nn.Sequential(torch.nn.Identity(), model),
            "classification",
            subset_of_weights="last_layer",
            hessian_structure="full",
            prior_precision=problem.l2,
            backend=getattr(curvature, backend),
        )
        posterior.fit(problem.loader(1000 if backend == "BackPackGGN" and len(problem.bias) == 2 else BATCH))
        covariance = posterior.posterior_covariance
        scores = []
        for x, y in problem.batches():
            gradients = record_gradients(model, x, y)
            scores.append((gradients @ covariance * gradients).sum(1))
        return torch.cat(scores)

    return run


def pydvl_direct() -> Run:
    from pydvl.influence.torch import DirectInfluence

    def run(problem: Problem) -> torch.Tensor:
        n = len(problem.features)
        influence = DirectInfluence(problem.model(), cross_entropy, regularization=problem.l2 / n)
        influence = influence.fit(problem.loader())
        scores = []
        for x, y in problem.batches():  # each batch against itself: only the diagonal is wanted
            factors = influence.influence_factors(x, y)
            scores.append(influence.influences_from_factors(factors, x, y).diagonal() / n)
        return torch.cat(scores)

    return run


def captum_naive(rank: int | None) -> Run:
    from captum.influence import NaiveInfluenceFunction

    def run(problem: Problem) -> torch.Tensor:
        model, loader = problem.model(), problem.loader(5000)
        influence = NaiveInfluenceFunction(
            model,
            loader,
            checkpoint="",
            checkpoints_load_func=lambda model, path: 1.0,  # the model holds its weights already
            loss_fn=torch.nn.CrossEntropyLoss(reduction="sum"),
            sample_wise_grads_per_batch=True,
            projection_dim=rank or sum(p.numel() for p in model.parameters()),
            hessian_reg=problem.l2,
        )
        return influence.self_influence(loader)

    return run


def dattri_explicit() -> Run:
    from dattri.algorithm.influence_function import IFAttributorExplicit
    from dattri.task import AttributionTask

    def run(problem: Problem) -> torch.Tensor:
        model = problem.model()

        def loss(parameters: dict, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            outputs = torch.func.functional_call(model, parameters, (data[0],))
            return cross_entropy(outputs, data[1], reduction="sum")

        task = AttributionTask(loss_func=loss, model=model, checkpoints=model.state_dict())
        attributor = IFAttributorExplicit(task=task, regularization=problem.l2)
        # One batch: with several, it sums the inverses of the batches' curvatures.
        loader = problem.loader(len(problem.features))
        attributor.cache(loader)
        with torch.no_grad():
            return attributor.self_attribute(loader)

    return run


def statsmodels_binary() -> Run:
    import statsmodels.api as sm

    def run(problem: Problem) -> torch.Tensor:
        if len(problem.bias) != 2:
            raise NotImplementedError("its multinomial model has no influence measures")
        design = np.column_stack([problem.features.numpy(), np.ones(len(problem.features))])
        start = torch.cat([problem.weight[1] - problem.weight[0], problem.bias[1:] - problem.bias[:1]]).numpy()
        model = sm.GLM(problem.targets.numpy(), design, family=sm.families.Binomial())
        result = model.fit(start_params=start, maxiter=0)  # at the head's own parameters
        leverage = result.get_hat_matrix_diag()
        return torch.from_numpy(np.asarray(result.resid_pearson) ** 2 * leverage)

    return run


def kronfluence_ekfac() -> Run:
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task

    class Classification(Task):
        def compute_train_loss(self, batch, model, sample=False):
            outputs = model(batch[0])
            labels = batch[1]
            if sample:
                labels = torch.multinomial(torch.softmax(outputs.detach(), dim=1), 1).flatten()
            return cross_entropy(outputs, labels, reduction="sum")

        def compute_measurement(self, batch, model):
            return self.compute_train_loss(batch, model)

    double = torch.float64
    factor_arguments = FactorArguments(
        strategy="ekfac",
        activation_covariance_dtype=double,
        gradient_covariance_dtype=double,
        per_sample_gradient_dtype=double,
        lambda_dtype=double,
    )

    def run(problem: Problem) -> torch.Tensor:
        task, n = Classification(), len(problem.features)
        score_arguments = ScoreArguments(
            damping_factor=problem.l2 / n,
            per_sample_gradient_dtype=double,
            precondition_dtype=double,
            score_dtype=double,
        )
        model = prepare_model(torch.nn.Sequential(problem.model()), task)
        with tempfile.TemporaryDirectory() as folder:
            analyzer = Analyzer("head", model, task, cpu=True, disable_tqdm=True, output_dir=folder)
            analyzer.fit_all_factors(
                "factors", problem.dataset(), per_device_batch_size=1000, factor_args=factor_arguments
            )
            analyzer.compute_self_scores(
                "scores",
                "factors",
                problem.dataset(),
                per_device_train_batch_size=1000,
                score_args=score_arguments,
            )
            scores = analyzer.load_self_scores("scores")
        return scores["all_modules"] / n

    return run


@dataclass(frozen=True)
class Contender:
    label: str
    kind: str  # "giveaway", "exact" or "approximate"
    prepare: Callable[[], Run]


CONTENDERS = {
    "giveaway": Contender("giveaway, all head columns", "giveaway", giveaway_all),
    "giveaway_influence": Contender("giveaway, influence alone", "giveaway", giveaway_influence),
    "curvlinops": Contender("curvlinops GGN + Cholesky", "exact", curvlinops_ggn),
    "laplace": Contender(
        "laplace-torch full last layer, CurvlinopsGGN", "exact", lambda: laplace_full("CurvlinopsGGN")
    ),
    "laplace_backpack": Contender(
        "laplace-torch full last layer, BackPackGGN", "exact", lambda: laplace_full("BackPackGGN")
    ),
    "pydvl": Contender("pyDVL direct", "exact", pydvl_direct),
    "captum": Contender("captum naive, full rank", "exact", lambda: captum_naive(None)),
    "dattri": Contender("dattri explicit", "exact", dattri_explicit),
    "statsmodels": Contender("statsmodels binary, no penalty", "exact", statsmodels_binary),
    "curvlinops_kfac": Contender("curvlinops KFAC", "approximate", lambda: curvlinops_kronecker("KFAC")),
    "curvlinops_ekfac": Contender("curvlinops EKFAC", "approximate", lambda: curvlinops_kronecker("EKFAC")),
    "kronfluence": Contender("kronfluence EKFAC", "approximate", kronfluence_ekfac),
    "captum_rank50": Contender("captum naive, its default rank 50", "approximate", lambda: captum_naive(50)),
}


# The measured process


def status_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measure(name: str, problem_path: str, out: str, limit: float, memory_gb: float) -> None:
    """Run one contender in this process; scores to out.npy, what was measured to out.json."""
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    problem = Problem(**torch.load(problem_path))
    outcome: dict = {}
    try:
        run = reference() if name == "reference" else CONTENDERS[name].prepare()
        toy = Problem.draw(60, 5, min(3, len(problem.bias)), seed=1)
        run(toy)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limit:
            allowed = math.ceil(time.process_time() + limit)
            resource.setrlimit(resource.RLIMIT_CPU, (allowed, allowed + 10))
        if memory_gb:
            space = int((status_mb("VmSize") + memory_gb * 1024) * 2**20)
            resource.setrlimit(resource.RLIMIT_AS, (space, space))
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from here
        resident, start = status_mb("VmRSS"), cpu_seconds()
        scores = run(problem)
        outcome["cpu_s"] = cpu_seconds() - start
        outcome["peak_mb"] = status_mb("VmHWM") - resident
        np.save(out + ".npy", np.asarray(torch.as_tensor(scores).detach(), dtype=np.float64))
    except Exception as error:
        text = f"{type(error).__name__}: {error}".strip()
        outcome = {"error": " ".join(text.split())[:300], "traceback": traceback.format_exc()[-3000:]}
        outcome["memory"] = isinstance(error, MemoryError) or "allocate memory" in text
        outcome["not_offered"] = isinstance(error, NotImplementedError)
    Path(out + ".json").write_text(json.dumps(outcome))


# The process that orders and reports


def run_once(name: str, problem_path: Path, options: argparse.Namespace) -> dict:
    """One measurement in a fresh process; a dict with `cpu_s`, `peak_mb`, `scores`, or with `error` or `over`."""
    environment = dict(os.environ, TOKENIZERS_PARALLELISM="false")
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[variable] = str(options.threads)
    limit, memory = (0, 0) if name == "reference" else (options.limit, options.memory)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, __file__, "--measure", name, str(problem_path), str(out), str(limit), str(memory)]
        try:
            finished = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True, timeout=10 * limit + 600
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no end after {10 * limit + 600:.0f} s of wall clock"}
        if finished.returncode == -signal.SIGXCPU:
            return {"over": True}
        if not out.with_suffix(".json").exists():
            tail = (finished.stderr.strip().splitlines() or [""])[-1]
            return {"error": f"the process ended with {finished.returncode}: {tail}"[:300]}
        outcome = json.loads(out.with_suffix(".json").read_text())
        if limit and outcome.get("cpu_s", 0.0) > limit:
            return {"over": True}
        if "cpu_s" in outcome:
            outcome["scores"] = np.load(out.with_suffix(".npy"))
        return outcome


def summarize(runs: list[dict], truth: np.ndarray) -> dict:
    """Medians over the repeats and the agreement with the reference, or the first run's failure."""
    for run in runs:
        if "cpu_s" not in run:
            return {key: value for key, value in run.items() if key != "scores"}
    scores = runs[0]["scores"]
    if scores.shape != truth.shape or not np.isfinite(scores).all():
        return {"error": f"scores of shape {scores.shape}, {int((~np.isfinite(scores)).sum())} not finite"}
    return {
        "cpu_s": statistics.median(run["cpu_s"] for run in runs),
        "cpu_s_runs": [round(run["cpu_s"], 4) for run in runs],
        "peak_mb": round(statistics.median(run["peak_mb"] for run in runs), 1),
        "spearman": float(spearmanr(scores, truth).statistic),
        # Up to a common factor: softmax of two classes and one logit differ by one.
        "max_relative_error": float(np.abs(scores / np.median(scores / truth) / truth - 1).max()),
    }


def cell(result: dict | None, limit: float) -> str:
    if result is None:
        return "–"
    if result.get("over"):
        return f"> {limit:g}"
    if result.get("memory"):
        return "out of memory"
    if "error" in result:
        return "not offered" if result.get("not_offered") else "failed"
    rho = result["spearman"]
    agreement = "1" if rho > 1 - 1e-9 else f"{rho:.6f}" if rho > EXACT else f"{rho:.3f}"
    return f"{result['cpu_s']:.2f} / {result['peak_mb']:.0f} / {agreement}"


def ratios(results: dict, limit: float) -> dict:
    """The best exact peer's CPU seconds over giveaway's; a lower bound where no exact peer ended within the limit."""
    found = {}
    for name in ("giveaway", "giveaway_influence"):
        own = results.get(name, {}).get("cpu_s")
        peers = {key: value for key, value in results.items() if CONTENDERS[key].kind == "exact"}
        ended = {key: value["cpu_s"] for key, value in peers.items() if value.get("spearman", 0.0) > EXACT}
        if own and ended:
            best = min(ended, key=ended.__getitem__)
            found[name] = {"peer": best, "ratio": round(ended[best] / own, 2), "bound": False}
        elif own and any(value.get("over") for value in peers.values()):
            found[name] = {"peer": None, "ratio": round(limit / own, 2), "bound": True}
    return found


def markdown(report: dict) -> str:
    limit, settings = report["limit_s"], report["settings"]
    heads = [f"{key}: n={s['n']} d={s['d']} m={s['m']}" for key, s in settings.items()]
    lines = ["CPU seconds / peak MB / Spearman against the dense float64 reference", ""]
    lines += ["| | | " + " | ".join(heads) + " |", "|---|---|" + "---|" * len(heads)]
    reference_cells = (f"{s['reference']['cpu_s']:.2f} / {s['reference']['peak_mb']:.0f}" for s in settings.values())
    lines.append("| dense float64, loops over classes | reference | " + " | ".join(reference_cells) + " |")
    for name, contender in CONTENDERS.items():
        if any(name in s["results"] for s in settings.values()):
            cells = (cell(s["results"].get(name), limit) for s in settings.values())
            lines.append(f"| {contender.label} | {contender.kind} | " + " | ".join(cells) + " |")
    lines.append("")
    for key, setting in settings.items():
        for name, ratio in setting["ratios"].items():
            peer = f"{CONTENDERS[ratio['peer']].label}, the best exact peer," if ratio["peer"] else "every exact peer"
            sign = "more than " if ratio["bound"] else ""
            lines.append(f"{key}: {peer} takes {sign}{ratio['ratio']:.1f}x the CPU time of {CONTENDERS[name].label}.")
        for name, result in setting["results"].items():
            if "error" in result:
                lines.append(f"{key}: {CONTENDERS[name].label}: {result['error']}")
    return "\n".join(lines)


def environment(threads: int) -> dict:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "python": platform.python_version(),
        "packages": versions,
        "cpu": models[0].split(":", 1)[1].strip() if models else platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "system": platform.system(),
    }


def chosen(text: str, known: dict, what: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise SystemExit(f"unknown {what} {', '.join(unknown)}; known: {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time, memory and agreement of giveaway and its peers.")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="of %(default)s")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="of %(default)s")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0, help="CPU seconds a contender may take")
    parser.add_argument("--memory", type=float, default=12.0, help="GB a contender may map above its start")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--records", type=int, help="replaces every setting's n, for a quick look")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "head_peers.json")
    options = parser.parse_args()
    names = chosen(options.contenders, CONTENDERS, "contender")
    report = {
        "environment": environment(options.threads),
        "limit_s": options.limit,
        "memory_gb": options.memory,
        "repeats": options.repeats,
        "seed": options.seed,
        "settings": {},
    }
    for key in chosen(options.settings, SETTINGS, "setting"):
        n, d, m = SETTINGS[key]
        n = options.records or n
        problem = Problem.draw(n, d, m, options.seed)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "problem.pt"
            torch.save(vars(problem), path)
            base = run_once("reference", path, options)
            if "scores" not in base:
                raise SystemExit(f"the reference failed: {base}")
            truth = base.pop("scores")
            runs: dict[str, list[dict]] = {name: [] for name in names}
            for repeat in range(options.repeats):
                for name in names:
                    if runs[name] and "cpu_s" not in runs[name][-1]:
                        continue  # it failed or ran over: once is enough
                    outcome = run_once(name, path, options)
                    runs[name].append(outcome)
                    shown = {k: v for k, v in outcome.items() if k not in ("scores", "traceback")}
                    print(f"{key} {repeat + 1}/{options.repeats} {name}: {shown}", file=sys.stderr, flush=True)
        results = {name: summarize(runs[name], truth) for name in names}
        report["settings"][key] = {
            "n": n,
            "d": d,
            "m": m,
            "l2": problem.l2,
            "wrong_labels": round(float((problem.outputs.argmax(1) != problem.targets).double().mean()), 4),
            "reference": base,
            "results": results,
            "ratios": ratios(results, options.limit),
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(markdown(report))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5]), float(sys.argv[6]))
    else:
        main()
