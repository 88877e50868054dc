"""Options that several commands share, and those of `audit` that go through --config."""

import click

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result for machines.")
GATE = "Judge the audit by these rules; exit code 3 where one is not met."
RARE: dict[str, tuple[type, str]] = {  # options without a flag of their own: what they hold, and what they do
    "title": (str, "What was audited, for the heading of both pages."),
    "top": (int, "How many rows to print; 10 by default."),
    "by": (str, "person or record: what to rank where the records have groups."),
    "optimum": (str, "assumed, corrected (the head was stopped early) or refit (bring it to its optimum first)."),
    "penalize_intercept": (bool, "Whether l2 acts on the bias."),
    "frozen": (bool, "Nothing before the head was trained on these records."),
    "batch_size": (int, "How many records go through the model at a time."),
    "tokenizer": (str, "Of --lm: module:function or a folder, where the function or folder of --lm has none."),
    "max_length": (int, "Of --lm: how many tokens of a document count, as many as training took."),
    "continued": (str, "Of --lm: tokens of a beginning, and tokens that the model must give back after it, as 50,50."),
    "through": (str, "Of --lm: what leverage and newton go through: head, adapters, names of layers, or none of it."),
    "relatives": (bool, "Whether the model is asked about mirrored and shifted images too; by default it is."),
    "held_out": (str, "module:function, your data set of records that the model was not trained on."),
    "kernel": (str, "Add lood_kl and lood_mean, from a Gaussian process with this kernel: nngp, rbf, ..."),
    "noise": (float, "Add lood_kl and lood_mean, with this variance of the targets around the function."),
    "probes": (int, "How many probes a sketch of the head takes, 256 by default; its error is about √(2/probes)."),
    "tolerance": (float, "The residual at which the solves of a sketch or a depth stop; 1e-3 by default."),
    "precision": (str, "Number type of the products in a sketch: float64 or float32, on a GPU also tf32 or bf16."),
    "memory": (float, "Gigabytes that the curvature, or the solves of a depth, may take."),
    "allow_unconverged": (bool, "Use a sketch, or a depth, whose solves did not reach the tolerance."),
    "errors": (bool, "Add the standard error of every sketched score."),
    "seed": (int, "Seed of the random probes."),
    "depth_method": (str, "For --depth: sketch, or exact (solves for every record)."),
    "depth_probes": (int, "How many probes the sketch of a depth takes, 64 by default."),
}
