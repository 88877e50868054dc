"""The commands `audit` and `trace`, the losses of every record at the checkpoints of a training."""

import json
from typing import Any

import click

from giveaway.cli.options import AS_JSON, GATE, RARE
from giveaway.text import say


@click.command(
    epilog=f"Rarer options go through --config, in a TOML file or as NAME=VALUE: {', '.join(RARE)}. "
    "Each is explained in docs/reference/commands.md."
)
@click.option(
    "--features",
    help="FILE.npz or .safetensors, or a folder of them: features, targets, and weight with bias, or outputs. "
    "Outputs without features are a black box.",
)
@click.option("--model", help="module:function of yours that makes the torch model (your code runs).")
@click.option("--weights", help="File of weights for --model: safetensors or a plain state dict.")
@click.option("--estimator", help="scikit-learn estimator: FILE.skops, or a pickle with --allow-pickle.")
@click.option(
    "--lm",
    help="Language model: module:function of yours for it, or for (model, tokenizer) (your code runs); or a folder of "
    "save_pretrained, or the name of a model that was downloaded.",
)
@click.option("--base", help="What --lm was before it was fine-tuned; adapters need none.")
@click.option(
    "--data", help="module:function of yours for the Dataset, DataLoader, (X, y) or documents (your code runs)."
)
@click.option("--layer", help="Name of the linear layer to audit; by default the last one that runs.")
@click.option("--loss", help="squared, cross_entropy or binary_cross_entropy; by default inferred from the targets.")
@click.option("--l2", type=float, help="L2 penalty in summed-loss units (weight decay of a mean loss times n).")
@click.option("--groups", help="File with the name of each record's person (.npy, or one a line): rank people.")
@click.option("--ids", help="File with a different id for each record (.npy, or one a line); default: row numbers.")
@click.option(
    "--inputs",
    help="The records themselves, for the score fused: FILE.npz with the key inputs, or FILE.npy; uint8 images, a "
    "matrix of numbers, strings, or a table of strings. By default what the model was given, where it could be kept.",
)
@click.option("--trace", metavar="FILE", help="The losses of the training, of ga.LossTrace or giveaway trace.")
@click.option("--scores", help="Comma-separated columns; default,NAME adds to the usual ones.")
@click.option(
    "--depth",
    metavar="DEPTHS",
    help="Add scores through more of --model than its last layer, such as newton_all: head, last:2, last:4, ..., all.",
)
@click.option("--damping", type=float, help="Required with --depth: n times the weight decay of a mean loss.")
@click.option(
    "--curvature",
    type=click.Choice(["auto", "dense", "sketch"]),
    help="dense is exact, sketch estimates from random probes, auto is dense where it fits in memory.",
)
@click.option("--device", help="Where to run and compute, such as cuda; by default where the weights are.")
@click.option("--cache", metavar="DIR", help="Store the features of --model here: it runs once, and memory stays flat.")
@click.option(
    "--access",
    type=click.Choice(["labels", "probabilities", "weights"]),
    help="What the attacker sees of the model (default probabilities).",
)
@click.option("--subgroups", help="FILE.csv with a header row: report subgroups that are many at the top.")
@click.option("--pseudonymize", metavar="KEYFILE", help="Write keyed pseudonyms for ids; the key is made if missing.")
@click.option(
    "--show-records", is_flag=True, default=None, help="Show the exposed records, and their nearest neighbours."
)
@click.option("--gate", metavar="RULE.toml", help=GATE)
@click.option("--config", multiple=True, metavar="FILE|NAME=VALUE", help="A TOML file of options, or one rarer option.")
@click.option("--allow-pickle", is_flag=True, default=None, help="Trust pickled files: they can run any code.")
@click.option("--resume", is_flag=True, help="Continue the unfinished audit in --out.")
@click.option("--dry-run", is_flag=True, help="Only estimate the cost: operations, memory, time.")
@click.option("--out", help="Folder for the audit (default giveaway-audit).")
@click.option("--overwrite", is_flag=True, help="Remove an audit of other inputs or options that is in --out.")
@AS_JSON
def audit(config: tuple[str, ...], as_json: bool, dry_run: bool, resume: bool, overwrite: bool, **flags: Any) -> None:
    """Rank a model's training records by how exposed they are.

    Exposed means that an attacker can tell from the model whether the record was trained on (membership inference).

    Started by torchrun (torchrun --nproc-per-node 8 -m giveaway audit ...), the processes share the work.
    """
    from giveaway.cli.audit_folder import run_audit
    from giveaway.cli.source import options_of

    kinds = {"boolean": bool, "float": float}
    known: dict[Any, type] = {one.name: kinds.get(one.type.name, str) for one in audit.params if one.name in flags}
    known |= {name: kind for name, (kind, _) in RARE.items()}
    run_audit(options_of(config, flags, known), as_json, dry_run, resume=resume, overwrite=overwrite)


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
