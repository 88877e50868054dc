"""What the targets say of every token of the documents they were trained on, as `ga.from_causal_lm` reads it.

KIND_epoch_E_tokens.npz : for each target K `log_likelihood_K`, `base_K`, `expected_K`, `spread_K` (float16) and
`best_K` of all tokens that its own documents predict, one document after the other, in the order of the documents;
`head_newton_K` and its kin: the steps of these documents through the head, and through adapters where there are any;
`outside_loss_K` and its kin: published scores of the documents that the target was not trained on.
"""

import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.data import arrays
from benchmarks.language_models.module import ModuleGPT
from benchmarks.language_models.texts import Documents
from benchmarks.language_models.train import STAGES, read_pretrained
from giveaway.extract.language_models import from_causal_lm
from giveaway.extract.text_gradients import TextCurvature
from giveaway.records.texts import Texts
from giveaway.scores import texts as scores
from giveaway.scores.texts import TextViews
from giveaway.storage.files import write_atomically

ATTACKS = ("loss", "min_k", "min_k_plus", "base_gap", "error_gap")  # scores that also tell members from others
KEPT = ("log_likelihood", "base", "expected", "spread", "best")


def target_model(work: Path, kind: str, stage: int, target: int) -> ModuleGPT:
    """Read a target as it was after `stage` epochs."""
    shape, base = read_pretrained(work / "pretrained.npz")
    with np.load(work / f"{kind}_epoch_{stage}_target_{target}.npz") as held:
        own = {name: torch.from_numpy(held[name]) for name in held.files}
    return ModuleGPT.of(shape, base | own)


def texts_of(
    model: nn.Module, base: nn.Module, documents: Documents, rows: np.ndarray, through: str | None = None
) -> Texts:
    """Ask a model and its base about the tokens of some documents, all of which make the curvature."""
    own = [{"input_ids": documents.tokens[row, : documents.lengths[row]].tolist()} for row in rows]
    curvature = None if through is None else TextCurvature(through, documents=len(own))
    return from_causal_lm(model, own, base=base, batch_size=128, curvature=curvature)


def write_tokens(work: Path, to: Path, documents: Documents, kind: str, device: str) -> None:
    shape, state = read_pretrained(work / "pretrained.npz")
    base = ModuleGPT.of(shape, state).to(device)
    first = min(work.glob(f"{kind}_0_*.npz"))
    targets, packed = arrays(first, "targets", "members")
    members = np.unpackbits(packed, axis=1)[:, : len(documents.tokens)].astype(bool)
    for stage in STAGES:
        held: dict[str, np.ndarray] = {}
        for target in targets.tolist():
            model = target_model(work, kind, stage, target).to(device)
            inside, outside = np.flatnonzero(members[target]), np.flatnonzero(~members[target])
            began = time.perf_counter()
            texts = texts_of(model, base, documents, inside, "head")
            for name in KEPT:
                values = getattr(texts, name)
                held[f"{name}_{target}"] = values if name == "best" else values.astype(np.float16)
            for through in ("head", "adapters") if kind == "lora" else ("head",):
                asked = texts if through == "head" else texts_of(model, base, documents, inside, through)
                assert asked.steps is not None
                held |= {f"{through}_{name}_{target}": values for name, values in asked.steps.items()}
            others = TextViews(texts_of(model, base, documents, outside))
            held |= {f"outside_{name}_{target}": getattr(scores, name)(others) for name in ATTACKS}
            print(f"{kind}, {stage} epochs, target {target}: {time.perf_counter() - began:.1f} s", flush=True)
        write_atomically(to / f"{kind}_epoch_{stage}_tokens.npz", partial(np.savez_compressed, **held))
