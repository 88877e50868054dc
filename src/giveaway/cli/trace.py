"""The command `trace`: the losses of every record at the checkpoints of a training."""

import json
from typing import Any

import click

from giveaway.cli.options import AS_JSON
from giveaway.text import say


@click.command()
@click.option("--model", required=True, help="module:function of yours that makes the torch model (your code runs).")
@click.option("--checkpoints", required=True, metavar="PATTERN", help="'run/*.safetensors', by the numbers in names.")
@click.option("--data", required=True, help="module:function of yours for the Dataset or DataLoader (your code runs).")
@click.option("--loss", default="auto", help="squared, cross_entropy or binary_cross_entropy; by default inferred.")
@click.option("--device", help="Where to run, such as cuda; by default where the model is made.")
@click.option("--batch-size", type=int, default=256, show_default=True, help="Records at a time, of a Dataset.")
@click.option("--out", default="giveaway.trace", show_default=True, help="File for the trace.")
@click.option("--allow-pickle", is_flag=True, help="Trust pickled checkpoints: they can run any code.")
@AS_JSON
def trace(model: str, data: str, device: str | None, batch_size: int, out: str, as_json: bool, **options: Any) -> None:
    """Compute a loss trace from saved checkpoints.

    For trainings that recorded none: the model runs over its training records once for every checkpoint. A run that was
    interrupted goes on where it stopped when the same command is given again.
    """
    from giveaway.cli.source import device_named
    from giveaway.extract.batches import Batches
    from giveaway.extract.traces import trace_of_checkpoints
    from giveaway.extract.user_files import call_factory

    place = device_named(device)
    say(f"Running your code: {model} and {data}", err=True)
    network = call_factory("model", model)
    network = network.to(place) if place is not None and hasattr(network, "to") else network
    options |= {"batches": Batches(batch_size), "out": out, "progress": True}
    found = trace_of_checkpoints(network, data=call_factory("data", data), **options)
    if as_json:
        say(json.dumps({"file": out, "checkpoints": found.epochs, "records": found.records}))
        return
    say(f"Wrote {out}: the losses of {found.records} records at {found.epochs} checkpoints")
    say(f"Next: giveaway audit ... --trace {out}")
