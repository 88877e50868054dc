"""How long the theory takes for a million records at five false-positive rates.

python benchmarks/theory_speed.py [--records 1000000] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measuring import RESULTS, environment, write_json

from giveaway.theory import TradeOff, expected_gap, fixed_design, random_design
from giveaway.theory.tradeoff import best_success, two_normals

RATES = np.array([0.001, 0.01, 0.05, 0.1, 0.2])[:, None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=RESULTS / "theory_speed.json")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    n = options.records
    design = random_design(rng.gamma(2.0, 4.0, n), rng.normal(size=n), 1_000)
    gap, inside = rng.gamma(1.0, size=n), rng.uniform(0.5, 1.0, n)
    curves: dict[str, Callable[[], TradeOff]] = {
        "fixed design": lambda: fixed_design.tradeoff(rng.uniform(0.001, 0.999, n)),
        "random design, threshold": lambda: design.tradeoff("threshold"),
        "random design, signed": lambda: design.tradeoff("signed"),
        "random design, optimal": lambda: design.tradeoff("optimal"),
        "two normals": lambda: two_normals(gap, inside, 1.0),
    }
    work: dict[str, Callable[[], np.ndarray]] = {
        **{name: (lambda curve=curve: curve().tpr(RATES)) for name, curve in curves.items()},
        "expected gap": lambda: expected_gap(design),
        "best success of two normals": lambda: best_success(gap, inside, 1.0),
    }
    seconds = {}
    for name, run in work.items():
        began = time.perf_counter()
        assert np.isfinite(run()).all()
        seconds[name] = round(time.perf_counter() - began, 2)
        print(f"{name:30s} {seconds[name]:8.2f} s", flush=True)
    report = {
        "environment": environment("cpu", "scipy"),
        "records": n,
        "rates": RATES.ravel().tolist(),
        "seconds": seconds,
    }
    write_json(options.out, report)


if __name__ == "__main__":
    main()
