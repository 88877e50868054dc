"""The papers' experiments, one command each.

    python -m benchmarks.reproduce run SETTING --data DIR [--work DIR] [--models 200] [--targets 16] [--device cuda]
        [--seed 0] [--limit SECONDS] [--small] [--out DIR]
    python -m benchmarks.reproduce features bloodmnist|sst2 --data DIR [--to DIR]
    python -m benchmarks.reproduce glyphs --data DIR
    python -m benchmarks.reproduce table
    python -m benchmarks.reproduce figures [--data DIR]

`run` keeps every finished model in --work and continues from there; `table` writes docs/results.md and `figures` its
pictures, both from benchmarks/reproduce/results alone, without training anything.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.reproduce.job import RESULTS, SETTINGS, Job, OutOfTime

RUN_AGAIN = 75  # the exit status that says "not finished, run again"
SMALL = {"models": 8, "targets": 2}


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.command == "run":
        return _run(options)
    for line in _written(options):
        print(line)
    return 0


def _written(options: argparse.Namespace) -> Iterable[object]:
    """Do what a command other than `run` asks for, and return what was written."""
    if options.command == "features":
        from benchmarks.reproduce.per_sample.data import write_features

        return [write_features(options.which, options.data, options.to or options.data)]
    if options.command == "glyphs":
        from benchmarks.reproduce.per_sample.glyphs import write_glyphs

        return [write_glyphs(options.data)]
    if options.command == "table":
        from benchmarks.reproduce.page import write_page

        return [write_page(options.results, options.docs)]
    from benchmarks.reproduce.pictures import draw_all

    return draw_all(options.results, options.docs / "images", options.data)


def _run(options: argparse.Namespace) -> int:
    work = options.work / (options.setting + ("-small" if options.small else ""))
    job = Job(
        setting=options.setting,
        data=options.data,
        work=work,
        models=options.models or (SMALL["models"] if options.small else 200),
        targets=options.targets or (SMALL["targets"] if options.small else 16),
        device=torch.device(options.device),
        seed=options.seed,
        small=options.small,
        deadline=None if options.limit is None else time.monotonic() + options.limit,
        out=options.out or (work if options.small else RESULTS),
    )
    if job.data is None and not job.small:
        sys.exit(f"{options.setting} needs --data DIR, the folder that holds its data set (or --small)")
    work.mkdir(parents=True, exist_ok=True)
    try:
        job.run()
    except FileNotFoundError as missing:
        sys.exit(f"--data: {missing}")
    except OutOfTime:
        print(f"{options.setting}: time is up, finished work is kept in {work}: run again to go on")
        return RUN_AGAIN
    print(f"{options.setting}: done, results in {job.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train what is missing, attack, score, and write results/SETTING.json")
    run.add_argument("setting", choices=sorted(SETTINGS))
    run.add_argument("--data", type=Path, help="the folder of data sets")
    run.add_argument("--work", type=Path, default=Path("reproduce-work"), help="where models and signals are kept")
    run.add_argument("--models", type=int, help="number of reference models (default 200)")
    run.add_argument("--targets", type=int, help="number of target models (default 16)")
    run.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--limit", type=float, help="stop cleanly after these seconds; run again to continue")
    run.add_argument("--small", action="store_true", help="few models and epochs, to try it out")
    run.add_argument("--out", type=Path, help="where the results go instead of the repository")
    features = commands.add_parser("features", help="features of a frozen encoder, on the CPU")
    features.add_argument("which", choices=["bloodmnist", "sst2"])
    features.add_argument("--data", type=Path, required=True)
    features.add_argument("--to", type=Path, help="where the .npy goes (default: --data)")
    glyphs = commands.add_parser("glyphs", help="images of 100 characters in fonts that npm has")
    glyphs.add_argument("--data", type=Path, required=True)
    for name, says in (("table", "write docs/results.md"), ("figures", "draw its pictures")):
        command = commands.add_parser(name, help=f"{says} from the committed results")
        command.add_argument("--results", type=Path, default=RESULTS)
        command.add_argument("--docs", type=Path, default=Path(__file__).parents[2] / "docs")
        if name == "figures":
            command.add_argument("--data", type=Path, help="to show the records themselves")
    return parser


if __name__ == "__main__":
    sys.exit(main())
