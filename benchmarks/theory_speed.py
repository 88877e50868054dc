"""How long the theory takes for a million records at five false-positive rates.

python -m benchmarks.theory_speed [--records 1000000] [--out FILE.json]
"""

from collections.abc import Callable

import numpy as np

from benchmarks.measuring import read_options, timed, write_result
from giveaway.theory import expected_gap, fixed_design, random_design
from giveaway.theory.tradeoff import best_success, two_normals

RATES = np.array([0.001, 0.01, 0.05, 0.1, 0.2])[:, None]


def main() -> None:
    options = read_options(__doc__, "theory_speed.json", records=1_000_000)
    rng = np.random.default_rng(0)
    n = options.records
    design = random_design(rng.gamma(2.0, 4.0, n), rng.normal(size=n), 1_000)
    gap, inside = rng.gamma(1.0, size=n), rng.uniform(0.5, 1.0, n)
    work: dict[str, Callable[[], np.ndarray]] = {
        "fixed design": lambda: fixed_design.tradeoff(rng.uniform(0.001, 0.999, n)).tpr(RATES),
        "random design, threshold": lambda: design.tradeoff("threshold").tpr(RATES),
        "random design, signed": lambda: design.tradeoff("signed").tpr(RATES),
        "two normals": lambda: two_normals(gap, inside, 1.0).tpr(RATES),
        "expected gap": lambda: expected_gap(design),
        "best success of two normals": lambda: best_success(gap, inside, 1.0),
    }
    seconds = {}
    for name, run in work.items():
        found, took = timed(run)
        assert np.isfinite(found).all()
        seconds[name] = round(took, 2)
    write_result(options.out, {"records": n, "rates": RATES.ravel().tolist(), "seconds": seconds}, "scipy")


if __name__ == "__main__":
    main()
