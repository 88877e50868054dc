"""Gradients of texts through the head and through adapters, and the Newton steps that follow: against autograd,
explicit matrices and a real refit."""

import copy
from functools import partial
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from giveaway.extract.language_models import from_causal_lm
from giveaway.extract.text_gradients import TextCurvature
from giveaway.linalg.gradient_steps import GradientProducts
from giveaway.linalg.precision import Precision
from giveaway.scores.catalogue import relative_error
from tests.conftest import refused

WORDS, WIDTH = 11, 5


class Tiny(nn.Module):
    """Means of embeddings so far, a layer with a low-rank one beside it, and a head."""

    def __init__(self, bias=True, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.inner = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.lora_A, self.lora_B = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=bias)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        self.double()
        for value in self.parameters():
            nn.init.normal_(value, std=0.7)
            value.requires_grad_(False)

    def forward(self, input_ids, position_ids=None):
        x = self.embedding(input_ids)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        first = torch.arange(input_ids.shape[1]) - position_ids  # where a token's document begins
        sums = torch.cat([torch.zeros_like(x[:, :1]), x.cumsum(1)], 1)
        begun = sums.gather(1, first.unsqueeze(2).expand_as(x))
        x = (sums[:, 1:] - begun) / (position_ids.unsqueeze(2) + 1)
        return self.head(torch.tanh(self.inner(x) + self.lora_B(self.lora_A(x))))


def documents_of(lengths, seed=1):
    rng = np.random.default_rng(seed)
    return [{"input_ids": rng.integers(0, WORDS, length).tolist()} for length in lengths]


DOCUMENTS = documents_of([4, 9, 2, 7, 5, 3, 8, 6])


def own_gradients(model, layers, documents=DOCUMENTS):
    """The gradient of each document's summed loss, by autograd, one document at a time."""
    found = []
    parameters = [value for layer in layers for value in layer.parameters()]
    for value in parameters:
        value.requires_grad_(True)
    for document in documents:
        ids = torch.tensor([document["input_ids"]])
        loss = nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:], reduction="sum")
        of_layers = []
        for layer in layers:
            parts = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
            joined = parts[0] if len(parts) == 1 else torch.cat([parts[0], parts[1][:, None]], 1)
            of_layers.append(joined.flatten())
        found.append(torch.cat(of_layers))
    for value in parameters:
        value.requires_grad_(False)
    return torch.stack(found)


@pytest.fixture
def gradients(monkeypatch):
    """What is added up, as (units, 1 + probes, parameters)."""
    pieces, add = [], GradientProducts.add

    def noted(self, piece):
        pieces.append(piece.clone())
        add(self, piece)

    monkeypatch.setattr(GradientProducts, "add", noted)
    return pieces


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("memory", [None, 2000])
def test_gradients_through_the_head_are_autograds(gradients, monkeypatch, bias, memory):
    if memory is not None:
        monkeypatch.setattr("giveaway.extract.text_gradients.MOST_ON_CPU", memory)
    model = Tiny(bias)
    for size in (1, 3):
        gradients.clear()
        from_causal_lm(model, DOCUMENTS, batch_size=size)
        assert (len(gradients) > 1) == (memory is not None)
        torch.testing.assert_close(torch.cat(gradients, 2)[:, 0], own_gradients(model, [model.head]))


@pytest.mark.parametrize("memory", [None, 2000])
def test_gradients_through_adapters_are_autograds_packed_or_not(gradients, monkeypatch, memory):
    if memory is not None:
        monkeypatch.setattr("giveaway.extract.text_gradients.MOST_ON_CPU", memory)
    model = Tiny()
    expected = own_gradients(model, [model.lora_A, model.lora_B])
    from_causal_lm(model, DOCUMENTS, batch_size=3, curvature=TextCurvature("adapters"))
    torch.testing.assert_close(torch.cat(gradients, 2)[:, 0], expected)
    packed = []
    for first in range(0, len(DOCUMENTS), 2):
        pair = [document["input_ids"] for document in DOCUMENTS[first : first + 2]]
        places = [place for ids in pair for place in range(len(ids))]
        packed.append({"input_ids": list(chain(*pair)), "position_ids": places})
    gradients.clear()
    from_causal_lm(model, packed, batch_size=2, curvature=TextCurvature("adapters"))
    torch.testing.assert_close(torch.cat(gradients, 2)[:, 0], expected)
    gradients.clear()
    from_causal_lm(model, DOCUMENTS, groups=list("abcaabbc"), curvature=TextCurvature(["lora_A", "lora_B"]))
    people = torch.stack([expected[[0, 3, 4]].sum(0), expected[[1, 5, 6]].sum(0), expected[[2, 7]].sum(0)])
    torch.testing.assert_close(torch.cat(gradients, 2)[:, 0], people)


def test_labels_drawn_average_to_the_curvature(monkeypatch):
    model, pieces = Tiny(), []
    kept = SimpleNamespace(add=pieces.append, columns=dict)
    monkeypatch.setattr("giveaway.extract.text_gradients.GradientProducts", lambda *given: kept)
    from_causal_lm(model, DOCUMENTS, curvature=TextCurvature(probes=20_000))
    drawn = torch.cat(pieces, 2)[:, 1:]
    found = torch.einsum("npi,npj->nij", drawn, drawn) / drawn.shape[1]
    for place, document in enumerate(DOCUMENTS):
        expected = exact_curvature(model, document)
        assert torch.linalg.norm(found[place] - expected) < 0.04 * torch.linalg.norm(expected)


def exact_curvature(model, document):
    """Σ over tokens of (diag p − p pᵀ) ⊗ x xᵀ, by the definition."""
    kept = []
    handle = model.head.register_forward_pre_hook(lambda _module, given: kept.append(given[0]))
    logits = model(torch.tensor([document["input_ids"]]))[0, :-1]
    handle.remove()
    x = torch.cat([kept[0][0, :-1], torch.ones(len(logits), 1, dtype=logits.dtype)], 1)
    p = logits.softmax(1)
    w = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    total = torch.einsum("tij,ta,tb->iajb", w, x, x)
    return total.reshape(WORDS * x.shape[1], -1)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("chosen", [range(9), (1, 4, 5)])
def test_steps_are_those_of_explicit_matrices(adaptive, chosen):
    n, probes, size = 9, 4, 13
    rows = torch.from_numpy(np.random.default_rng(3).normal(size=(n, 1 + probes, size)))
    products = GradientProducts(n, torch.tensor(list(chosen)), probes, Precision("float64"), adaptive, 0.3)
    for piece in rows.clone().split(5, 2):
        products.add(piece.contiguous())
    columns = products.columns()
    metric = rows[:, 0].square().mean(0).sqrt() if adaptive else torch.ones(size, dtype=rows.dtype)

    def newton_by(some):
        curvature = torch.einsum("npi,npj->nij", rows[:, some], rows[:, some]) / len(some)
        every = torch.einsum("npi,npj->nij", rows[:, 1:], rows[:, 1:]) / probes
        damping = 0.3 * float((every.diagonal(dim1=1, dim2=2) / metric).sum(1).mean())
        found = []
        for unit in range(n):
            others = [other for other in chosen if other != unit]
            without = curvature[others].sum(0) * (n / len(chosen)) + damping * torch.diag(metric)
            whole = without + curvature[unit]
            g = rows[unit, 0]
            found.append([torch.trace(torch.linalg.solve(whole, curvature[unit])),
                          g @ torch.linalg.solve(whole, g), g @ torch.linalg.solve(without, g)])  # fmt: skip
        return torch.tensor(found)

    expected = newton_by([1, 2, 3, 4])
    for place, name in enumerate(("leverage", "influence", "newton")):
        torch.testing.assert_close(columns[name], expected[:, place], rtol=1e-8, atol=0)
    first, second = newton_by([1, 3])[:, 2], newton_by([2, 4])[:, 2]
    error = torch.hypot((first - second) / 2, expected[:, 2] - (first + second) / 2)
    torch.testing.assert_close(columns["newton_error"], error, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("probes", "most"), [(2, 0.3), (60, 0.06)])
def test_probes_give_the_exact_newton_step_within_the_stated_error(probes, most):
    model = Tiny()
    steps = from_causal_lm(model, DOCUMENTS, curvature=TextCurvature(probes=probes, optimizer="sgd")).steps
    curvature = torch.stack([exact_curvature(model, document) for document in DOCUMENTS])
    damping = float(curvature.diagonal(dim1=1, dim2=2).sum(1).mean())
    gradients = own_gradients(model, [model.head])
    whole = curvature.sum(0) + damping * torch.eye(curvature.shape[1], dtype=curvature.dtype)
    exact = np.array([float(g @ torch.linalg.solve(whole - h, g)) for g, h in zip(gradients, curvature, strict=True)])
    apart = np.sqrt(np.mean((steps["newton"] / exact - 1) ** 2))
    stated = relative_error(steps["newton"], steps["newton_error"])
    assert apart < min(3 * stated, most)
    leverage = [float(torch.trace(torch.linalg.solve(whole, h))) for h in curvature]
    np.testing.assert_allclose(steps["leverage"], leverage, rtol=10 * most)


def test_a_person_s_step_is_what_a_refit_of_the_head_loses():
    """A head at the optimum of its damped loss is trained again without each person's texts."""
    model, groups = Tiny(bias=False), np.repeat(list("abcd"), 2)
    asked = TextCurvature(probes=60, optimizer="sgd", damping=3.0)
    curvature = torch.stack([exact_curvature_of_weight(model, document) for document in DOCUMENTS])
    people = curvature.reshape(4, 2, *curvature.shape[1:]).sum(1)
    centre = model.head.weight.detach().clone()

    def refit(without, damping):
        weight = centre.clone().requires_grad_(True)
        optimizer = torch.optim.LBFGS([weight], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")
        kept = [document for document, group in zip(DOCUMENTS, groups, strict=True) if group != without]

        def closure():
            optimizer.zero_grad()
            loss = (
                sum(loss_of(model, weight, document) for document in kept)
                + damping / 2 * (weight - centre).square().sum()
            )
            loss.backward()
            return loss

        optimizer.step(closure)
        return weight.detach()

    damping = 3.0 * float(people.diagonal(dim1=1, dim2=2).sum(1).mean())
    fitted = refit(None, damping)
    with torch.no_grad():
        model.head.weight.copy_(fitted)
    steps = from_causal_lm(model, DOCUMENTS, groups=groups, curvature=asked).steps
    for place, person in enumerate("abcd"):
        again = refit(person, damping)
        own = [document for document, group in zip(DOCUMENTS, groups, strict=True) if group == person]
        lost = sum(float(loss_of(model, again, one) - loss_of(model, fitted, one)) for one in own)
        # a quarter: the loss itself bends, and the damping is of the optimum's curvature, not of the start's
        assert steps["newton"][place] == pytest.approx(lost, rel=0.25)


def loss_of(model, weight, document):
    ids, kept = torch.tensor([document["input_ids"]]), []
    handle = model.head.register_forward_pre_hook(lambda _module, given: kept.append(given[0].detach()))
    model(ids)
    handle.remove()
    return nn.functional.cross_entropy(kept[0][0, :-1] @ weight.T, ids[0, 1:], reduction="sum")


def exact_curvature_of_weight(model, document):
    return (
        exact_curvature(model, document)
        .reshape(WORDS, WIDTH + 1, WORDS, WIDTH + 1)[:, :-1, :, :-1]
        .reshape(WORDS * WIDTH, -1)
    )


class Capped(Tiny):
    def forward(self, input_ids):
        return 3 * torch.tanh(super().forward(input_ids))


class Twice(Tiny):
    def forward(self, input_ids):
        x = self.embedding(input_ids)
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Cropped(list):
    """Another text each time a row is read."""

    def __getitem__(self, row):
        self.reads = getattr(self, "reads", 0) + 1
        return {"input_ids": [(token + self.reads) % WORDS for token in super().__getitem__(row)["input_ids"]]}


@pytest.mark.parametrize(
    ("model", "documents", "words"),
    [
        (Twice(), DOCUMENTS, "features.*, got inner again"),
        (Tiny(), Cropped(DOCUMENTS), "dataset: expected the same tokens at every reading, got others at the second"),
    ],
)
def test_gradients_that_would_be_wrong_are_refused(model, documents, words):
    refused(words, partial(from_causal_lm, model, documents, curvature=TextCurvature("inner")))


def test_an_adapter_that_does_not_run_is_refused():
    model = Tiny()
    model.lora_spare = nn.Linear(WIDTH, 2).double()
    refused("layers that run, got lora_spare", from_causal_lm, model, DOCUMENTS, curvature=TextCurvature("adapters"))


def test_half_precision_changes_the_steps_by_its_rounding_alone():
    model = Tiny()
    with torch.no_grad():
        model.head.weight *= 10  # logits that bfloat16 rounds by more than a tenth
    steps, rounded = (from_causal_lm(one, DOCUMENTS).steps for one in (model, copy.deepcopy(model).bfloat16()))
    assert np.median(np.abs(rounded["newton"] / steps["newton"] - 1)) < 0.1


def test_the_model_is_left_as_it_was():
    model = Tiny()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for through in ("head", "adapters"):
        from_causal_lm(model, DOCUMENTS, curvature=TextCurvature(through))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None and not value.requires_grad for value in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("model", "asked", "words"),
    [
        (Tiny(), {"through": "lora_C"}, "through: expected names of linear layers, got 'lora_C'; did you mean lora_"),
        (
            nn.Sequential(Tiny().embedding, nn.Linear(WIDTH, WORDS).double()),
            {"through": "adapters"},
            "adapters of LoRA",
        ),
        (
            Capped(),
            {},
            "curvature: expected a head whose outputs are the logits, got logits that differ",
        ),
    ],
)
def test_what_has_no_gradients_is_refused(model, asked, words):
    refused(words, partial(from_causal_lm, model, DOCUMENTS, curvature=TextCurvature(**asked)))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"optimizer": "adagrad"}, "optimizer"),
        ({"probes": 3}, "probes: expected an even number, got 3"),
        ({"documents": 1}, "documents"),
        ({"damping": 0.0}, "damping"),
    ],
)
def test_a_curvature_that_cannot_be_is_refused(asked, words):
    refused(words, partial(TextCurvature, **asked))
