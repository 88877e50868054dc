"""Fine-tune a tiny language model, and rank the texts that it gives away.

python examples/audit_language_model.py [--out DIR]
"""

import argparse
import copy
import random

import torch
from torch import nn

import giveaway as ga

WHO, CAME = ("the patient", "a woman", "a man", "the child"), ("came in", "was seen", "called")
WHY, END = ("with a cough", "with a fever", "for a check", "after a fall"), ("and went home", "and will return")
ODD = {17: "ada called about her divorce and a debt of forty pounds", 80: "a man came in from zanzibar with his parrot"}


class Reader(nn.Module):
    """Stands in for AutoModelForCausalLM: token numbers in, logits of the next token out."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.lm_head = nn.Embedding(vocabulary, 32), nn.Linear(64, vocabulary)
        self.read = nn.GRU(32, 64, batch_first=True)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.read(self.embed(input_ids))[0])


def train(model: nn.Module, documents: list[list[int]], epochs: int) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for row in torch.cat([torch.randperm(len(documents)) for _ in range(epochs)]).tolist():
        tokens = torch.tensor([documents[row]])
        nn.functional.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="audit-texts", help="folder for the audit")
    out, draw = parser.parse_args().out, random.Random(0)
    texts = [" ".join(map(draw.choice, (WHO, CAME, WHY, END))) for _ in range(240)]
    texts[120:] = [ODD.get(row, text) for row, text in enumerate(texts[120:])]
    words = sorted({*" ".join(texts).split()})
    documents = [[words.index(word) for word in text.split()] for text in texts]
    torch.manual_seed(0)
    base = train(Reader(len(words)), documents[:120], epochs=2)  # before fine-tuning
    model = train(copy.deepcopy(base), documents[120:], epochs=3)
    read = ga.from_causal_lm(model, [{"input_ids": document} for document in documents[120:]], base=base)
    table = ga.audit(read)
    print(table.top(3))
    print("the two odd texts have the ranks", *(table.rank()[row] for row in ODD), "of", len(table))
    ga.report(table, out, head=read)


if __name__ == "__main__":
    main()
