"""Write every column and the metadata of fixed audits to a folder, and compare two such folders.

python -m benchmarks.golden write FOLDER [CASE ...]
python -m benchmarks.golden compare BEFORE AFTER

A change of structure must leave every value alone: columns that are computed exactly agree to 1e-12 relative, columns
that come from iterative solves to 1e-8, and the top 5 % by each column holds the same rows in the same order.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingClassifier
from torch import nn
from torch.utils.data import TensorDataset

import giveaway as ga
from giveaway.curvature.choice import Dense, Sketch
from giveaway.records import ScoreTable, Signals

EXACT, ITERATIVE = 1e-12, 1e-8
UNSTABLE = {"seconds", "device", "files", "versions", "chosen"}  # metadata that differ between runs of the same code
WORDS = {"note", "notes", "conclusion", "words"}  # sentences may be put better
VALUES = ["loss", "gradient_norm", "leverage", "gls_trace", "gls_frobenius", "gls_spectral"]
VALUES += ["gls_trace_logit", "gls_frobenius_logit", "gls_spectral_logit", "influence", "newton", "loo_gap"]
CLASSES = [*VALUES, "entropy", "margin"]
PREDICTED = ["predicted_success", "predicted_auc", "predicted_tpr", "predicted_tpr_low"]
SKETCH = Sketch(probes=64, precision="float64", tolerance=1e-6)

Arrays = dict[str, np.ndarray]
Result = tuple[Arrays, dict[str, Any]]


def made_head(loss: str, m: int, *, n: int = 300, d: int = 9, seed: int = 0, **options: Any) -> ga.Head:
    """A head with its weights; some records lie far out, some targets are wrong."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x[:: n // 20] *= 4.0
    weight, bias = rng.normal(size=(m, d)), rng.normal(size=m)
    f = x @ weight.T + bias
    if loss == "squared":
        y = f + rng.standard_t(3, size=f.shape)
    elif loss == "binary_cross_entropy":
        y = (rng.random(f.shape) < 1 / (1 + np.exp(-f))).astype(int)
    elif m == 1:
        y = (rng.random(n) < 1 / (1 + np.exp(-f[:, 0]))).astype(int)
    else:
        y = (f + rng.gumbel(size=f.shape)).argmax(1)
    return ga.Head(x, f, y, loss, **{"l2": 0.3, "weight": weight, "bias": bias, **options})


def people(n: int) -> list[str]:
    return [f"person-{row}" for row in np.random.default_rng(1).integers(0, n // 3, n)]


def of_table(table: ScoreTable) -> Result:
    """Columns, attributes and the metadata as they are saved."""
    with tempfile.TemporaryDirectory() as folder:
        table.save(folder)
        meta = json.loads((Path(folder) / "audit.json").read_text())
    return {**table.scores, **{f"attribute:{k}": v for k, v in table.attributes.items()}, "ids": table.ids}, meta


def audited(head: ga.Head, scores: list[str], **options: Any) -> Result:
    return of_table(ga.audit(head, scores=scores, **options))


def digits_model(n: int = 300) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A small network that fits some of scikit-learn's digits."""
    digits = load_digits()
    images = torch.from_numpy(digits.images[:n, None]).float() / 16.0
    labels = torch.from_numpy(digits.target[:n])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval(), images, labels


def images() -> Result:
    model, pictures, labels = digits_model()
    head = ga.from_torch(model, TensorDataset(pictures, labels), l2=0.05)
    return audited(head, [*CLASSES, "left_out", "fused", *PREDICTED])


def images_by_person() -> Result:
    model, pictures, labels = digits_model()
    f = model(pictures).detach()
    x = model[:-1](pictures).detach()
    head = ga.Head(x, f, labels, "cross_entropy", l2=0.05, inputs=pictures.numpy(), groups=people(len(labels)))
    return audited(head, [*CLASSES, "left_out", "fused"])


def text() -> Result:
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(80)])
    labels = rng.integers(0, 2, 200)
    texts = [" ".join(rng.choice(words[40 * y : 40 * y + 50] if y == 0 else words[30:], 12)) for y in labels]
    x = rng.normal(size=(200, 6)) + labels[:, None]
    f = x @ rng.normal(size=(6, 2))
    head = ga.Head(x, f, labels, "cross_entropy", l2=0.1, inputs=texts)
    return audited(head, [*CLASSES, "left_out", "fused"])


def table_with_categories() -> Result:
    rng = np.random.default_rng(0)
    n = 240
    numbers = rng.normal(size=(n, 3))
    colour, size = rng.choice(["red", "green", "blue"], n), rng.choice(["s", "m", "l", ""], n)
    y = numbers[:, 0] + (colour == "red") - 0.5 * (size == "l") + 0.3 * rng.normal(size=n)
    rows = np.empty((n, 5), dtype=object)
    rows[:, :3], rows[:, 3], rows[:, 4] = numbers, colour, size
    x = np.column_stack([numbers, colour == "red", np.tanh(numbers)]).astype(float)
    weight = np.linalg.lstsq(x, y, rcond=None)[0]
    head = ga.Head(x, (x @ weight)[:, None], y, "squared", l2=0.1, inputs=rows)
    return audited(head, [*VALUES, "left_out", "fused", *PREDICTED])


def black_box() -> Result:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(220, 5))
    y = (x[:, 0] * x[:, 1] + 0.5 * rng.normal(size=220) > 0).astype(int)
    model = GradientBoostingClassifier(n_estimators=20, random_state=0).fit(x, y)
    return audited(ga.from_sklearn(model, x, y), ["loss", "entropy", "margin", "left_out", "fused"])


def lood_columns() -> Result:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    head = ga.Head(x, x[:, :1], x[:, 0] + 0.2 * rng.normal(size=120), "squared", l2=0.1, inputs=x)
    return audited(head, ["newton", "lood_kl", "lood_mean"])


def lood(kernel: str, **options: Any) -> Result:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2, 4, 4) if kernel.startswith("conv") else (120, 6))
    return of_table(ga.lood(kernel, x, rng.integers(0, 3, 120), 0.05, **options))


def depths(method: str) -> Result:
    model, pictures, labels = digits_model(150)
    scores = ["influence", "newton", "leverage", "gls_trace"]
    curvature = {
        "sketch": Sketch(probes=64, tolerance=1e-9),
        "exact": ga.network.Solves(rows=np.arange(0, 150, 5), tolerance=1e-9),
    }[method]
    depths = ["head", "last:2", "all"]
    deep = ga.network.Depths(
        model.double(), (pictures.double(), labels), loss="cross_entropy", damping=0.5, depths=depths
    )
    columns, meta = of_table(ga.audit(deep, scores=scores, curvature=curvature))
    columns.pop("ids")
    return columns, {"depths": meta["depths"]}


def validation() -> Result:
    rng = np.random.default_rng(0)
    models, n = 40, 400
    members = rng.random((models, n)) < 0.5
    effect = rng.gamma(1.0, 1.0, n)
    phi = rng.normal(size=(models, n)) + members * effect
    table = ScoreTable({"newton": effect + 0.5 * rng.normal(size=n), "loss": rng.random(n)}, np.arange(n))
    checked = ga.validate(Signals(phi, members, "phi"), table)
    return {"success": checked.success, "effect_size": checked.effect_size}, {"validation": checked.to_json()}


def gate() -> Result:
    rng = np.random.default_rng(0)
    rule = 'schema = 1\n[[rule]]\nname = "few"\nmeasure = "predicted_success"\nabove = 0.6\nat_most_share = 0.1\n'
    told = {}
    for name, share in (("few", 0.05), ("many", 0.3)):
        success = np.where(rng.random(300) < share, 0.8, 0.55)
        meta = {"unit": "record", "loss": "cross_entropy", "outputs": 10, "predicted_by": "both views"}
        meta |= {"options": {"converged": True, "refit": False}, "view": {"view": "images", "head_is_exact": False}}
        with tempfile.TemporaryDirectory() as folder:
            ScoreTable({"newton": success, "predicted_success": success}, np.arange(300), meta=meta).save(folder)
            path = Path(folder) / "rule.toml"
            path.write_text(rule)
            command = [sys.executable, "-m", "giveaway", "gate", folder, str(path), "--json"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        (outcome,) = json.loads(done.stdout)["rules"]
        told[name] = {"exit": done.returncode, **{k: outcome[k] for k in ("value", "allowed", "met")}}
    return {}, told


CASES: dict[str, Callable[[], Result]] = {
    "dense_softmax": lambda: audited(made_head("cross_entropy", 5), [*CLASSES, *PREDICTED], curvature=Dense()),
    "dense_many_classes": lambda: audited(made_head("cross_entropy", 23, d=5), CLASSES),
    "binary": lambda: audited(made_head("cross_entropy", 1), [*CLASSES, *PREDICTED]),
    "multi_label": lambda: audited(made_head("binary_cross_entropy", 4), CLASSES),
    "squared": lambda: audited(made_head("squared", 2), [*VALUES, *PREDICTED]),
    "intercept_not_penalized": lambda: audited(made_head("squared", 1, penalize_intercept=False, l2=5.0), VALUES),
    "groups": lambda: audited(made_head("cross_entropy", 4, groups=people(300)), CLASSES),
    "groups_squared": lambda: audited(made_head("squared", 2, groups=people(300)), VALUES),
    "sample_weights": lambda: audited(
        made_head("cross_entropy", 3, sample_weight=np.random.default_rng(2).gamma(2.0, 0.5, 300)), CLASSES
    ),
    "singular": lambda: audited(_singular(), CLASSES),
    "unconverged": lambda: audited(made_head("cross_entropy", 3), CLASSES, optimum="corrected"),
    "refit": lambda: audited(made_head("cross_entropy", 3), CLASSES, optimum="refit"),
    "sketched_softmax": lambda: audited(made_head("cross_entropy", 6), CLASSES, curvature=replace(SKETCH, errors=True)),
    "sketched_binary": lambda: audited(made_head("cross_entropy", 1), CLASSES, curvature=SKETCH),
    "sketched_squared": lambda: audited(made_head("squared", 2), VALUES, curvature=SKETCH),
    "sketched_groups": lambda: audited(made_head("cross_entropy", 4, groups=people(300)), CLASSES, curvature=SKETCH),
    "black_box": black_box,
    "images": images,
    "images_by_person": images_by_person,
    "text": text,
    "table_with_categories": table_with_categories,
    "lood_columns": lood_columns,
    "lood_rbf": lambda: lood("rbf"),
    "lood_nngp_by_person": lambda: lood("nngp", groups=people(120)),
    "lood_conv": lambda: lood("conv_nngp"),
    "depths_sketch": lambda: depths("sketch"),
    "depths_exact": lambda: depths("exact"),
    "validation": validation,
    "gate": gate,
}


def _singular() -> ga.Head:
    head = made_head("cross_entropy", 4)
    x = np.column_stack([head.features.numpy(), head.features.numpy()[:, :2], np.zeros(head.n)])
    return ga.Head(x, head.outputs, head.targets, "cross_entropy", l2=0.0)


def write(folder: Path, cases: list[str]) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name in cases or CASES:
        columns, meta = CASES[name]()
        np.savez(folder / f"{name}.npz", **{key: np.asarray(value) for key, value in columns.items()})
        (folder / f"{name}.json").write_text(json.dumps(meta, indent=1, sort_keys=True, default=str))
        print(name, len(columns), flush=True)


def compare(before: Path, after: Path) -> list[str]:
    """What differs, one line each."""
    differences = []
    for path in sorted(before.glob("*.npz")):
        name = path.stem
        if not (after / path.name).exists():
            differences.append(f"{name}: missing")
            continue
        tolerance = ITERATIVE if name.startswith(("sketched", "depths", "refit")) else EXACT
        with np.load(path) as old, np.load(after / path.name) as new:
            for key in sorted(set(old) | set(new)):
                if key not in old or key not in new:
                    differences.append(f"{name}: {key} only {'after' if key in new else 'before'}")
                elif why := _column_difference(old[key], new[key], tolerance):
                    differences.append(f"{name}: {key} {why}")
        metas = (json.loads((folder / f"{name}.json").read_text()) for folder in (before, after))
        differences += [f"{name}: meta {line}" for line in _meta_differences(*metas, ITERATIVE, "")]
    return differences


def _column_difference(old: np.ndarray, new: np.ndarray, tolerance: float) -> str | None:
    if old.shape != new.shape:
        return f"has shape {new.shape}, not {old.shape}"
    if old.dtype.kind != "f":
        return None if np.array_equal(old, new) else "differs"
    scale = np.maximum(np.abs(old), np.median(np.abs(old)))
    apart = np.abs(new - old) / np.where(scale > 0, scale, 1.0)
    if apart.max() > tolerance:
        return f"differs by {apart.max():.2g} relative in row {apart.argmax()}"
    top = max(1, round(0.05 * len(old)))
    same = np.array_equal(np.argsort(-old, kind="stable")[:top], np.argsort(-new, kind="stable")[:top])
    return None if same else "has another top 5 %"


def _meta_differences(old: Any, new: Any, tolerance: float, where: str) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted((set(old) | set(new)) - UNSTABLE - WORDS):
            inner = f"{where}.{key}" if where else key
            if key not in old or key not in new:
                lines.append(f"{inner} only {'after' if key in new else 'before'}")
            else:
                lines += _meta_differences(old[key], new[key], tolerance, inner)
        return lines
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    same = abs(old - new) <= tolerance * max(abs(old), abs(new), 1e-6) if numbers else old == new
    return [] if same else [f"{where} was {old!r}, is {new!r}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["write", "compare"])
    parser.add_argument("folders", nargs="+", help="FOLDER [CASE ...], or BEFORE AFTER")
    arguments = parser.parse_args()
    if arguments.action == "write":
        write(Path(arguments.folders[0]), arguments.folders[1:])
        return
    before, after = map(Path, arguments.folders)
    differences = compare(before, after)
    print("\n".join(differences) or f"no difference in {len(list(before.glob('*.npz')))} cases")
    raise SystemExit(bool(differences))


if __name__ == "__main__":
    main()
