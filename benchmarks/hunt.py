"""Attack the promises that tests can only sample: many random cases of each kind, and how many went wrong.

    python -m benchmarks.hunt [--parts folders strings ...] [--count 5000] [--seed 0] [--out FILE.json]

A part is a file of benchmarks/hunting with a function hunt(count, seed). Without --count a part takes its own COUNT.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measuring import read_options, write_parts

PARTS = sorted(file.stem for file in (Path(__file__).parent / "hunting").glob("[a-z]*.py"))


def main() -> None:
    options = read_options(__doc__, "hunt.json", parts=PARTS, count=int, seed=0)

    def measure(part: str) -> dict[str, Any]:
        attack = import_module(f"benchmarks.hunting.{part}")
        return attack.hunt(options.count or attack.COUNT, options.seed)

    write_parts(options.out, options.parts, measure)


if __name__ == "__main__":
    main()
