"""Documents as groups of tokens: leverage and Newton step through chosen parameters, against the explicit matrix."""

import numpy as np
import pytest
import torch
from torch import nn

from giveaway.curvature.token_loss import OfTokens
from giveaway.network import InverseCurvature, Network
from giveaway.network.scores import score_records, sketch_records
from tests.conftest import refused

VOCABULARY, PLACES, DOCUMENTS, WIDTH, DAMPING = 5, 4, 12, 3, 0.3


class Adapted(nn.Module):
    """A small language model whose layer has low-rank adapters; its outputs are the logits of all places, flattened."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.lora_a, self.lora_b = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        seen = self.embed(tokens).cumsum(1)
        return self.head(torch.tanh(self.layer(seen) + self.lora_b(self.lora_a(seen)))).flatten(1)


@pytest.fixture(scope="module")
def made():
    torch.manual_seed(0)
    model = Adapted().double()
    tokens, targets = torch.randint(0, VOCABULARY, (2, DOCUMENTS, PLACES))
    targets[3, 2:] = targets[5, 1:] = -100  # shorter documents
    targets[7, 1] = -100  # a token of the prompt
    return model, tokens, targets


def explicit(model, tokens, targets, chosen):
    """H_i (n, P, P) and the gradients (n, P) of documents from the whole Jacobian, formed by torch.func."""
    values = {name: value.detach() for name, value in model.named_parameters()}
    own = {name: values[name] for name in values if name.startswith(chosen)}
    jacobian = torch.func.jacrev(lambda some: torch.func.functional_call(model, {**values, **some}, (tokens,)))(own)
    J = torch.cat([part.flatten(2) for part in jacobian.values()], 2).unflatten(1, (PLACES, VOCABULARY))
    p = model(tokens).detach().unflatten(1, (PLACES, VOCABULARY)).softmax(-1)
    there = (targets >= 0).double()
    W = (torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)) * there[..., None, None]
    wrong = (p - nn.functional.one_hot(targets.clamp_min(0), VOCABULARY)) * there[..., None]
    return torch.einsum("ntap,ntab,ntbq->npq", J, W, J), torch.einsum("nta,ntap->np", wrong, J)


@pytest.mark.parametrize("chosen", ["head", "lora"])
def test_documents_through_the_head_and_through_adapters(made, chosen):
    model, tokens, targets = made
    matrices, gradients = explicit(model, tokens, targets, chosen)
    whole = matrices.sum(0) + DAMPING * torch.eye(len(gradients[0]), dtype=torch.float64)
    network = Network(model, (tokens, targets), loss=OfTokens(PLACES, VOCABULARY), parameters=[f"{chosen}*"])
    inverse = InverseCurvature(network, damping=DAMPING, tolerance=1e-13)
    found = score_records(inverse, scores=["influence", "newton", "gls_trace"])
    for i in range(DOCUMENTS):
        g, own = gradients[i], matrices[i]
        expected = {
            "influence": g @ torch.linalg.solve(whole, g),
            "newton": g @ torch.linalg.solve(whole - own, g),
            "gls_trace": torch.trace(torch.linalg.solve(whole, own)),
        }
        for name, value in expected.items():
            assert float(found[name][i]) == pytest.approx(float(value), rel=1e-8)
    sketch = sketch_records(inverse, probes=1024, most_redone=0)
    for name, error in sketch.report["sketch_error"].items():
        if name in found.columns:
            apart = (sketch[name] / found[name] - 1).cpu().numpy()
            assert np.sqrt(np.mean(apart**2)) < 3 * error < 0.3


def test_tokens_left_out_of_the_loss_do_not_count(made):
    model, tokens, targets = made
    changed = tokens.clone()
    changed[3, 3] = (tokens[3, 3] + 1) % VOCABULARY  # after the document's last counted token
    losses = []
    for given in (tokens, changed):
        network = Network(model, (given, targets), loss=OfTokens(PLACES, VOCABULARY), parameters=["head"])
        losses.append(network.loss.value(network.outputs(), network.records.targets))
    torch.testing.assert_close(*losses)
    logs = model(tokens).detach().unflatten(1, (PLACES, VOCABULARY)).log_softmax(-1)
    each = -logs.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(losses[0], (each * (targets >= 0)).sum(1))


@pytest.mark.parametrize("wrong", [lambda y: y[:, :3], lambda y: y.double(), lambda y: y + VOCABULARY])
def test_targets_that_are_no_tokens_are_refused(made, wrong):
    model, tokens, targets = made
    words = "targets: expected tokens .texts, 4. below 5, negative where one is left out, got"
    loss = OfTokens(PLACES, VOCABULARY)
    refused(words, Network, model, (tokens, wrong(targets)), loss=loss, parameters=["head"])
