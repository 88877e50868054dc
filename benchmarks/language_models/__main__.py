"""Truth for language models: which of 7,600 news texts do fine-tuned GPTs give away?

    python -m benchmarks.language_models texts [--data DIR] [--vocabulary 4096]          a CPU, with `tokenizers`
    python -m benchmarks.language_models pretrain [--device cuda] [--epochs 20]
    python -m benchmarks.language_models tune --kind full [--only 0:64] [--rate 4e-4] [--device cuda]
    python -m benchmarks.language_models tune --kind lora [--only 0:64] [--rate 3e-3] [--device cuda]
    python -m benchmarks.language_models tokens [--device cuda]                          what the targets say of tokens
    python -m benchmarks.language_models truth [--out FILE.json]
    python -m benchmarks.language_models table [--out FILE.json]                         every score against the truth
    python -m benchmarks.language_models all [--device cuda]                             one after the other

Files lie in --work; `tune` writes to --to (--work unless told) and leaves a slice that is there as it is, so that more
models are more slices. --data holds the texts: the folder data of GIVEAWAY_SHARED, or of ../shared.
"""

import argparse
import os
from pathlib import Path

import torch

from benchmarks.language_models.gpt import Architecture
from benchmarks.language_models.texts import CORPORA, read_documents, write_texts
from benchmarks.language_models.tokens import write_tokens
from benchmarks.language_models.train import Tuning, pretrain, write_slice
from benchmarks.measuring import RESULTS, ROOT
from benchmarks.stacked import Training

EVERYWHERE = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
RATES = {"full": 4e-4, "lora": 3e-3}
SHARED = Path(os.environ.get("GIVEAWAY_SHARED", ROOT.parent / "shared"))
STEPS = ("texts", "pretrain", "tune", "tokens", "truth", "table")


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    options.to = options.to or options.work
    precision = "bfloat16" if options.device == "cuda" else "float32"
    torch.set_float32_matmul_precision("high")
    texts, base = options.work / "texts.npz", options.work / "pretrained.npz"
    for step in STEPS if options.step == "all" else (options.step,):
        if step == "texts":
            write_texts(options.data, texts, options.vocabulary, options.documents)
        elif step == "pretrain":
            shape = Architecture(options.vocabulary, options.positions, options.width, options.layers, options.heads)
            training = Training(
                options.epochs, options.batch, "adamw", options.pretraining_rate, weight_decay=0.1, precision=precision
            )
            pretrain(texts, base, shape, training, options.dropout, options.device)
        elif step == "tune":
            documents = read_documents(texts, options.positions + 1).to(options.device)
            told = f"{len(documents.tokens)} documents, {documents.truncated} cut off after {options.positions} tokens"
            print(told, flush=True)
            for kind in options.kind:
                adapted = tuple(options.adapted) if kind == "lora" else ()
                tuning = Tuning(options.rate or RATES[kind], options.batch_size, adapted, precision, options.compile)
                known = {"only": options.only, "targets": options.targets, "at_once": options.at_once}
                write_slice(base, documents, options.to, tuning, **known)
        elif step == "tokens":
            documents = read_documents(texts, options.positions + 1)
            for kind in options.kind:
                write_tokens(options.work, options.to, documents, kind, options.device)
        elif step == "truth":
            from benchmarks.language_models.truth import write_truth

            write_truth(options.work, options.out or RESULTS / "language_models_truth.json")
        else:
            from benchmarks.language_models.table import write_table

            documents = read_documents(texts, options.positions + 1)
            write_table(options.work, options.out or RESULTS / "language_models_table.json", documents)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("step", choices=(*STEPS, "all"))
    made.add_argument("--data", type=Path, default=SHARED / "data")
    made.add_argument("--work", type=Path, default=ROOT / "reproduce-work" / "language_models")
    made.add_argument("--to", type=Path)
    made.add_argument("--out", type=Path)
    made.add_argument("--device", default="cpu")
    made.add_argument(
        "--documents", choices=CORPORA, default=CORPORA[0], help="fine-tune on these, pretrain on the rest"
    )
    numbers = {"vocabulary": 4096, "positions": 128, "width": 256, "layers": 6, "heads": 4, "epochs": 20, "batch": 64}
    numbers |= {"pretraining_rate": 1e-3, "dropout": 0.1, "batch_size": 32, "targets": 4, "at_once": 16}
    for name, default in numbers.items():
        made.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    made.add_argument("--kind", nargs="+", choices=list(RATES), default=list(RATES))
    made.add_argument("--rate", type=float, help="learning rate of `tune`")
    made.add_argument("--only", type=slice_of, default=slice_of("0:256"), help="models FIRST:LAST, both even")
    made.add_argument("--adapted", nargs="+", default=list(EVERYWHERE), help="projections with adapters")
    made.add_argument("--compile", action="store_true", help="let torch.compile fuse the passes of `tune` on a GPU")
    return made


def slice_of(text: str) -> range:
    first, last = map(int, text.split(":"))
    return range(first, last)


if __name__ == "__main__":
    main()
