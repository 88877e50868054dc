"""The command `lood`: records in, their leave-one-out distinguishability under a Gaussian process in a folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from giveaway.cli.options import AS_JSON
from giveaway.text import say

FILES = ["scores.csv", "scores.npz", "lood.png", "config.toml", "audit.json"]


@click.command()
@click.argument("inputs")
@click.option("--kernel", default="nngp", show_default=True, help="rbf, laplace, linear, nngp, conv_nngp")
@click.option(
    "--noise", type=float, default=0.05, show_default=True, help="Variance of the targets around the function."
)
@click.option("--length", type=float, help="Length scale of rbf or laplace; default the median distance.")
@click.option("--depth", type=int, help="Hidden layers of a network kernel; default 3.")
@click.option("--activation", help="Activation of a network kernel: relu, leaky_relu, erf, gelu, tanh, identity.")
@click.option("--weight-variance", type=float, help="Weight variance of a network or linear kernel.")
@click.option("--bias-variance", type=float, help="Bias variance of a network or linear kernel.")
@click.option("--filter-size", type=int, help="Filter size of a convolutional kernel; default 3.")
@click.option("--stride", type=int, help="Stride of a convolutional kernel; default 1.")
@click.option("--padding", help="Padding of a convolutional kernel: same or valid.")
@click.option("--readout", help="Read-out of a convolutional kernel: flatten or pool.")
@click.option("--sphere", is_flag=True, help="Centre each record and put it on a sphere first.")
@click.option("--groups", help="File with the name of each record's person (.npy, or one a line): rows are people.")
@click.option("--device", help="Where to compute, such as cuda.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Rows to print.")
@click.option("--out", default="giveaway-lood", show_default=True, help="Folder for the result.")
@click.option("--overwrite", is_flag=True, help="Remove another result that is in --out.")
@click.option("--dry-run", is_flag=True, help="Only estimate the cost: memory, time.")
@AS_JSON
def lood(inputs: str, out: str, top: int, as_json: bool, overwrite: bool, dry_run: bool, **flags: Any) -> None:
    """Ask a Gaussian process instead of a model.

    For every record of INPUTS.npz (keys inputs and targets), measure how far the process's prediction moves when the
    record is left out.
    """
    from giveaway.auditing.cost import price_process
    from giveaway.auditing.store import AuditFolder, check_folder, provenance, save_audit
    from giveaway.cli.source import device_named, to_toml
    from giveaway.extract.user_files import names_in, read_npz_keys
    from giveaway.figures import lood_map
    from giveaway.gp.distinguishability import Process
    from giveaway.gp.distinguishability import lood as lood_of
    from giveaway.gp.nngp import KernelChoice
    from giveaway.records.examples import as_numbers
    from giveaway.reporting.picture import figure_bytes
    from giveaway.storage.arrays import digest_of

    options = {name: value for name, value in flags.items() if value is not None}
    of_kernel = {name: value for name, value in options.items() if name not in ("kernel", "noise", "groups", "device")}
    process = Process(KernelChoice(options["kernel"], **of_kernel), options["noise"])
    device: Any = device_named(options.get("device", "cpu"))
    records, targets = read_npz_keys("inputs", inputs, ("inputs", "targets"))
    records = as_numbers(records)
    if dry_run:
        cost = price_process(process, records, device)
        say(json.dumps(vars(cost)) if as_json else cost.line())
        return
    config = {"inputs": inputs, **options}
    groups = names_in(config["groups"]) if "groups" in config else None
    origin = provenance(digest_of({"inputs": records, "targets": targets, "groups": groups}), config)
    with AuditFolder(out).locked(new=True) as place:
        check_folder(place, origin, overwrite=overwrite)
        table = lood_of(process.kernel, records, targets, process.noise, groups=groups, device=device, progress=True)
        table = replace(table, meta=replace(table.meta, provenance=origin))
        picture = figure_bytes(lood_map(table["lood_kl"], table["lood_mean"]))
        save_audit(place, {"scores": table}, {"lood.png": picture, "config.toml": to_toml(config)})
    _tell(table, place.path, top, as_json)


def _tell(table: Any, folder: Path, top: int, as_json: bool) -> None:
    from giveaway.cli.audit_folder import RANKING_ONLY, ROWS_OF_PEOPLE

    by, order = table.ranking(), table.order()[:top]
    if as_json:
        meta = {name: value for name, value in table.meta.to_json().items() if name != "provenance"}
        rows = [{"row": int(row), by: float(table[by][row])} for row in order]
        told = {"ranked_by": by, "top": rows, "statement": RANKING_ONLY, "files": FILES}
        say(json.dumps({"folder": str(folder), **meta, **told}))
        return
    ranked = f"{len(order)} of {len(table)} {table.meta.rows_are} ranked highest"
    say(f"The {ranked}, by lood_kl under {table.meta.kernel.name}")
    say("\nrank    row    lood_kl  lood_mean")
    for place, row in enumerate(order, start=1):
        say(f"{place:4d}  {row:5d}  {table['lood_kl'][row]:9.4g}  {table['lood_mean'][row]:9.4g}")
    if table.meta.by_person:
        say(f"\n{ROWS_OF_PEOPLE.format('scores.csv')}")
    say(f"\n{RANKING_ONLY}")
    say(f"Wrote {', '.join(FILES)} to {folder} (restricted: they name records)")
