"""The mistakes that users of language models make, each told in one line, and before the work where it can be seen."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from giveaway.extract.language_models import from_causal_lm
from giveaway.extract.text_gradients import TextCurvature
from tests.conftest import refused
from tests.extract.test_language_models import DOCUMENTS, ROWS, VOCABULARY, Recurrent, gpt2, rows_with


class Counting(Recurrent):
    """Counts its calls, and knows how many tokens it has."""

    calls = 0

    def forward(self, input_ids):
        self.calls += 1
        return super().forward(input_ids)

    def get_input_embeddings(self):
        return self.embed


class Letters:
    """A tokenizer as small as one can be."""

    pad_token, pad_token_id, model_max_length = None, 0, 8

    def __call__(self, text):
        return {"input_ids": [ord(letter) % VOCABULARY for letter in text]}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(ROWS)


class Collator:
    tokenizer = Letters()

    def __call__(self, rows):
        raise AssertionError


def padded(rows):
    return {"input_ids": torch.tensor([[*row["input_ids"], *[0] * 20][:22] for row in rows])}


def with_weights(change):
    model = Counting()
    with torch.no_grad():
        change(model)
    return model


BEFORE = {  # the model is not run for these
    "a name": (
        ("gpt2", ROWS),
        {},
        "model: expected a language model, a torch.nn.Module, got a str; pass what AutoModel",
    ),
    "a pipeline": ((SimpleNamespace(model=1), ROWS), {}, "got a SimpleNamespace; .*not its name or a pipeline"),
    "offloaded": (
        (Recurrent().to("meta"), ROWS),
        {},
        "model: expected weights in memory, got 7 parameters on the meta",
    ),
    "base offloaded": (
        (Counting(), ROWS),
        {"base": Recurrent().to("meta")},
        "base: expected weights in memory, got 7 parameters on the meta device, as of a model that is offloaded; load",
    ),
    "one string": ((Counting(), "a text"), {}, "dataset: expected documents in a fixed order, got a str; pass a list"),
    "all splits": ((Counting(), {"train": ROWS}), {}, "got a dict; name a split, as dataset"),
    "a stream": ((Counting(), Stream()), {}, "documents in a fixed order, got a Stream; pass a list or a dataset with"),
    "shuffled": ((Counting(), DataLoader(ROWS, shuffle=True)), {}, "a loader whose order is known, got a sampler"),
    "no pad token": (
        (Counting(), DataLoader(ROWS, collate_fn=Collator())),
        {},
        "a collator whose tokenizer has a pad token, got none; tokenizer.pad_token = tokenizer.eos_token",
    ),
    "padding without a mask": (
        (Counting(), DataLoader(ROWS, 5, collate_fn=padded)),
        {"tokenizer": Letters()},
        "an attention_mask, or labels of -100, beside padded rows, got rows from 0 on that end in token 0 again",
    ),
    "chats": ((Counting(), [{"messages": []}] * 2), {}, "got keys messages; conversations: tokenizer.apply_chat_templ"),
    "lists of messages": ((Counting(), [[{"role": "user"}]] * 2), {}, "in row 0, got a list; conversations: tokenizer"),
    "prompts": (
        (Counting(), [{"prompt": "a", "completion": "b"}] * 2),
        {},
        "got keys prompt, completion; tokenize prompt and completion as one row, with labels of -100 for the prompt",
    ),
    "another column": (
        (Counting(), [{"sentence": "a"}] * 2),
        {},
        "got keys sentence; rename the column that holds the",
    ),
    "too long": (
        (Counting(), ["short", "longer than it may be"]),
        {"tokenizer": Letters()},
        "at most 8 tokens a row, the most that the tokenizer allows, got 21 in row 1; cut them with max_length=",
    ),
    "another tokenizer": (
        (Counting(), [{"input_ids": [1, 2, VOCABULARY]}] * 2),
        {},
        "dataset: expected tokens from 0 to 49, got 1 to 50 from row 0 on; take the tokenizer that belongs to this",
    ),
    "-100 among the tokens": ((Counting(), [{"input_ids": [1, -100]}] * 2), {}, "tokens from 0 to 49, got -100 to 1"),
    "labels of classes": (
        (Counting(), rows_with(lambda one: 1)),
        {},
        "labels as long as input_ids in row 0, got 1 of 5; give one a token: labels are the tokens again",
    ),
    "too few groups": ((Counting(), ROWS), {"groups": ["a"] * 4}, "groups: expected one name a record, 5 in all"),
    "ids not unique": ((Counting(), ROWS), {"ids": list("abcda")}, "ids: expected a different id for every record"),
}


@pytest.mark.parametrize("mistake", BEFORE)
def test_mistakes_that_are_seen_before_the_model_runs(mistake):
    (model, dataset), options, words = BEFORE[mistake]
    refused(words, from_causal_lm, model, dataset, **options)
    assert getattr(model, "calls", 0) == 0


def test_mistakes_that_show_when_the_model_runs():
    model = Counting()
    refused(
        "base: expected the model before it was fine-tuned, got the model itself",
        from_causal_lm,
        model,
        ROWS,
        base=model,
    )
    words = "base: expected a model that fine-tuning changed, got the same log-likelihood of every token; check which"
    refused(words, from_causal_lm, model, ROWS, base=copy.deepcopy(model))
    wider = Counting()
    wider.embed, wider.head = nn.Embedding(60, 8), nn.Linear(16, 60)
    words = "base: expected the model's vocabulary of 50, got 60; resize its embeddings as the model's were"
    refused(words, from_causal_lm, model, ROWS, base=wider)
    broken = with_weights(lambda model: model.head.bias.fill_(float("nan")))
    words = "model: expected finite logits, got others, first in document 0; look at it, or load the model in float32"
    refused(words, from_causal_lm, broken, ROWS, batch_size=2)
    assert broken.calls == 1


def test_weights_in_8_bit_have_no_gradients():
    model = Counting()
    model.inner = nn.Linear(2, 2)
    model.inner.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    words = "curvature: expected layers with floating-point weights, got torch.int8, as of a model in 8 or 4 bit; name"
    refused(words, from_causal_lm, model, ROWS, curvature=TextCurvature(["inner"]))
    model.head.weight = nn.Parameter(torch.ones(VOCABULARY, 16, dtype=torch.int8), requires_grad=False)
    model.get_output_embeddings = lambda: model.head
    refused(words, from_causal_lm, model, ROWS)
    assert model.calls == 0


def test_what_only_looks_like_a_mistake_is_taken():
    model, tokenizer = Counting(), Letters()
    texts = from_causal_lm(model, ["short", "longer than it may be"], tokenizer=tokenizer, max_length=30)
    assert texts.lengths.tolist() == [4, 20]
    rows = [{"input_ids": [*one, 0, 0]} for one in DOCUMENTS]  # which end so, and come with a mask
    assert from_causal_lm(
        model, rows, tokenizer=SimpleNamespace(pad_token_id=0, batch_decode=lambda texts: ["a"] * len(texts))
    )
    packed = [{"input_ids": [1, 2, 3, 4], "position_ids": [0, 1, 0, 1]}] * 2
    assert from_causal_lm(model, packed, groups=np.arange(4)).n == 4


@pytest.mark.slow
def test_mistakes_with_models_of_transformers():
    model = gpt2()
    words = "dataset: expected tokens from 0 to 49, got 1 to 50 from row 0 on; take the tokenizer"
    refused(words, from_causal_lm, model, [{"input_ids": [1, 50]}] * 2)
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)  # begins as nothing
    words = "base: expected a model that fine-tuning changed, .* check which weights, or adapters, were loaded"
    refused(words, from_causal_lm, peft.get_peft_model(model, lora), ROWS)
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=1, n_head=2, pad_token_id=0
    )
    classifier = transformers.GPT2ForSequenceClassification(config).eval()
    words = "curvature: expected an output head that is an nn.Linear, got none; .* a classifier is read by from_torch"
    refused(words, from_causal_lm, classifier, ROWS)
    words = r"model: expected logits \(batch, tokens, vocabulary\), got shape .* a classifier is read by from_torch"
    refused(words, from_causal_lm, classifier, ROWS, curvature=None)
