"""What the targets say of every token of the documents they were trained on, as `ga.from_causal_lm` reads it.

KIND_epoch_E_tokens.npz : for each target K `log_likelihood_K`, `base_K`, `expected_K`, `spread_K` (float16) and
`best_K` of all tokens that its own documents predict, one document after the other, in the order of the documents.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.data import arrays
from benchmarks.language_models.gpt import Architecture, State, hidden_states
from benchmarks.language_models.texts import Documents
from benchmarks.language_models.train import STAGES, read_pretrained
from giveaway.extract.language_models import from_causal_lm
from giveaway.records.texts import Texts
from giveaway.storage.files import write_atomically

KEPT = ("log_likelihood", "base", "expected", "spread", "best")


class TunedGPT(nn.Module):
    """One GPT of benchmarks.language_models.gpt as a module: token numbers (b, L) in, logits (b, L, vocabulary) out."""

    def __init__(self, shape: Architecture, state: State) -> None:
        super().__init__()
        self.shape, self.names = shape, list(state)
        self.held = nn.ParameterList(nn.Parameter(value[None].float()) for value in state.values())

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        held = dict(zip(self.names, self.held, strict=True))
        given = input_ids[None, :, : self.shape.positions]  # the last token of the longest rows is only predicted
        logits = hidden_states(self.shape, held, given)[0] @ held["wte.weight"][0].T
        return nn.functional.pad(logits, (0, 0, 0, input_ids.shape[1] - given.shape[2]))


def target_model(work: Path, kind: str, stage: int, target: int) -> TunedGPT:
    """Read a target as it was after `stage` epochs."""
    shape, base = read_pretrained(work / "pretrained.npz")
    with np.load(work / f"{kind}_epoch_{stage}_target_{target}.npz") as held:
        own = {name: torch.from_numpy(held[name]) for name in held.files}
    return TunedGPT(shape, base | own)


def texts_of(model: nn.Module, base: nn.Module, documents: Documents, rows: np.ndarray) -> Texts:
    """Ask a model and its base about the tokens of some documents."""
    own = [{"input_ids": documents.tokens[row, : documents.lengths[row]].tolist()} for row in rows]
    return from_causal_lm(model, own, base=base, batch_size=128)


def write_tokens(work: Path, to: Path, documents: Documents, kind: str, device: str) -> None:
    shape, state = read_pretrained(work / "pretrained.npz")
    base = TunedGPT(shape, state).to(device)
    first = min(work.glob(f"{kind}_0_*.npz"))
    targets, packed = arrays(first, "targets", "members")
    members = np.unpackbits(packed, axis=1)[:, : len(documents.tokens)].astype(bool)
    for stage in STAGES:
        held: dict[str, np.ndarray] = {}
        for target in targets.tolist():
            model = target_model(work, kind, stage, target).to(device)
            texts = texts_of(model, base, documents, np.flatnonzero(members[target]))
            for name in KEPT:
                values = getattr(texts, name)
                held[f"{name}_{target}"] = values if name == "best" else values.astype(np.float16)
        write_atomically(to / f"{kind}_epoch_{stage}_tokens.npz", partial(np.savez_compressed, **held))
        print(f"{kind}, {stage} epochs: tokens of {len(targets)} targets", flush=True)
