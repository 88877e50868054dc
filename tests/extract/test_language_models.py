"""Language models: what is read of every token, against the model's own loss on one document at a time."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from giveaway.extract.language_models import from_causal_lm
from tests.conftest import refused

VOCABULARY = 50
LENGTHS = (5, 9, 3, 12, 20)
DOCUMENTS = [np.random.default_rng(n).integers(0, VOCABULARY, size).tolist() for n, size in enumerate(LENGTHS)]
ROWS = [{"input_ids": document} for document in DOCUMENTS]


class Recurrent(nn.Module):
    """A language model of plain torch, whose outputs are the logits themselves."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.recurrent = nn.GRU(8, 16, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, input_ids):
        return self.head(self.drop(self.recurrent(self.embed(input_ids))[0]))


@pytest.fixture(scope="module")
def plain():
    torch.manual_seed(0)
    return Recurrent()


def gpt2(seed=0):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    config.bos_token_id = config.eos_token_id = 0
    return transformers.GPT2LMHeadModel(config).eval()


def own_loss(model, tokens, labels=None):
    """The model's own mean loss on one document."""
    ids = torch.tensor([tokens])
    with torch.no_grad():
        return float(model(input_ids=ids, labels=ids if labels is None else torch.tensor([labels])).loss)


def losses(texts):
    return -texts.means(texts.log_likelihood)


def same(one, other):
    np.testing.assert_array_equal(one.starts, other.starts)
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_allclose(one.log_likelihood, other.log_likelihood, atol=1e-5)


def collate(side, labels=False):
    """Pad rows on one side, as tokenizers of transformers do."""

    def collated(rows):
        longest = max(len(row["input_ids"]) for row in rows)

        def padded(values, fill):
            rest = [fill] * (longest - len(values))
            return rest + values if side == "left" else values + rest

        batch = {
            "input_ids": torch.tensor([padded(row["input_ids"], 0) for row in rows]),
            "attention_mask": torch.tensor([padded([1] * len(row["input_ids"]), 0) for row in rows]),
        }
        if labels:
            batch["labels"] = torch.tensor([padded(row["labels"], -100) for row in rows])
        return batch

    return collated


def test_every_token_of_a_plain_torch_model(plain):
    plain.train()
    before = copy.deepcopy(plain.state_dict())
    texts = from_causal_lm(plain, ROWS, batch_size=2)
    assert plain.training
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())
    assert all(value.grad is None for value in plain.parameters())
    assert texts.lengths.tolist() == [size - 1 for size in LENGTHS]
    plain.eval()
    for i, document in enumerate(DOCUMENTS):
        with torch.no_grad():
            logs = plain(torch.tensor([document]))[0, :-1].double().log_softmax(1).numpy()
        which = slice(texts.starts[i], texts.starts[i + 1])
        target = np.array(document[1:])
        chances = np.exp(logs)
        mean = (chances * logs).sum(1)
        np.testing.assert_array_equal(texts.tokens[which], target)
        np.testing.assert_allclose(texts.log_likelihood[which], logs[np.arange(len(target)), target], atol=1e-5)
        np.testing.assert_allclose(texts.expected[which], mean, atol=1e-5)
        spread = np.sqrt((chances * (logs - mean[:, None]) ** 2).sum(1))
        np.testing.assert_allclose(texts.spread[which], spread, atol=1e-4)
        np.testing.assert_array_equal(texts.best[which], logs.argmax(1) == target)


def test_the_base_is_asked_about_the_same_tokens(plain):
    torch.manual_seed(1)
    base = Recurrent()
    texts, alone = from_causal_lm(plain, ROWS, base=base), from_causal_lm(base, ROWS)
    np.testing.assert_allclose(texts.base, alone.log_likelihood, atol=1e-6)
    assert alone.base is None


def test_documents_that_go_on_in_the_next_row_and_many_logits(plain, monkeypatch):
    numbers = [0, 0, 0, 1, 1, -1], [1, 1, 1, 2, 2, 2]
    rows = [{"input_ids": DOCUMENTS[4][6 * k : 6 * k + 6], "document_ids": list(numbers[k])} for k in range(2)]
    texts = from_causal_lm(plain, rows)
    assert texts.lengths.tolist() == [2, 3, 2]  # what begins a row has nothing of its document before it
    monkeypatch.setattr("giveaway.extract.language_models.NUMBERS_AT_ONCE", 3 * VOCABULARY)
    same(from_causal_lm(plain, ROWS), from_causal_lm(plain, ROWS, batch_size=1))


def test_strings_people_and_ids(plain):
    class Letters:
        def __call__(self, text):
            return {"input_ids": [ord(letter) % VOCABULARY for letter in text]}

        def decode(self, document):
            return f"{len(document)} letters"

        def batch_decode(self, documents):
            return ["".join(chr(97 + token % 26) for token in document) for document in documents]

    words = ["to be", "or not", "that is"]
    texts = from_causal_lm(plain, words, tokenizer=Letters(), ids=["a", "b", "c"], groups=["x", "y", "x"])
    assert texts.contents == words
    assert texts.by_person().contents == ["to be\nthat is\n", "or not\n"]
    assert from_causal_lm(plain, words, tokenizer=Letters(), max_length=5).contents == [
        "to be",
        "5 letters",
        "5 letters",
    ]
    named = from_causal_lm(plain, [{"text": text, "other": 1} for text in words], tokenizer=Letters())
    same(texts, named)
    decoded = from_causal_lm(plain, ROWS, tokenizer=Letters())
    assert [len(text) for text in decoded.contents] == decoded.lengths.tolist()
    assert from_causal_lm(plain, ROWS, max_length=4).lengths.tolist() == [3, 3, 2, 3, 3]


def rows_with(labels):
    return [{"input_ids": document, "labels": labels(document)} for document in DOCUMENTS]


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (["a string"], {}, "tokenizer: expected the model's tokenizer beside strings, got none"),
        ("a string", {}, "dataset: expected documents in a fixed order, got a str; pass a list"),
        (iter(ROWS), {}, "dataset: expected documents in a fixed order, got a list_iterator"),
        (
            DataLoader(ROWS, shuffle=True),
            {},
            "a loader whose order is known, got a sampler RandomSampler",
        ),
        (
            DataLoader(DOCUMENTS, collate_fn=lambda rows: rows),
            {},
            "dataset: expected batches that are dicts, got a list",
        ),
        (DataLoader(ROWS, 2, drop_last=True, collate_fn=collate("right")), {}, "every row, once, got 4 of 5"),
        (DataLoader(ROWS, sampler=[4, 3, 2, 1, 0]), {}, "got a sampler list; say shuffle=False"),
        ([*ROWS, rows_with(list)[0]], {}, r"the keys of row 0 in every row .* got input_ids, labels, .* in row 5"),
        ([{"messages": []}, {}], {}, "in row 0, got keys messages; conversations: tokenizer.apply_chat_template"),
        (rows_with(lambda one: [-100] * len(one)), {}, "a token that the loss counts, got 5 of 5 without one"),
        ([*ROWS, {"input_ids": [3]}], {}, "got 1 of 6 without one, first document 5; leave out documents of one token"),
        (ROWS, {"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
        (ROWS, {"max_length": 1}, "max_length: expected a whole number of at least 2, got 1"),
        ([], {}, "dataset: expected at least 2 documents, got none"),
        (ROWS[:1], {}, "at least 2 documents"),
    ],
)
def test_what_cannot_be_read_is_refused(plain, dataset, options, words):
    refused(words, from_causal_lm, plain, dataset, **options)


def test_models_of_other_kinds_are_refused():
    class Pooled(Recurrent):
        def forward(self, input_ids):
            return super().forward(input_ids)[:, -1]

    refused(r"model: expected logits \(batch, tokens, vocabulary\).*from_torch", from_causal_lm, Pooled(), ROWS)


@pytest.mark.slow
class TestTransformers:
    """Models of transformers and peft, made from a config."""

    def test_losses_are_the_models_own_whatever_the_padding(self):
        model = gpt2()
        texts = from_causal_lm(model, ROWS, batch_size=2)
        np.testing.assert_allclose(losses(texts), [own_loss(model, one) for one in DOCUMENTS], rtol=1e-5)
        for side in ("left", "right"):
            same(texts, from_causal_lm(model, DataLoader(ROWS, batch_size=3, collate_fn=collate(side))))
        half = from_causal_lm(copy.deepcopy(model).bfloat16(), ROWS)
        np.testing.assert_allclose(half.log_likelihood, texts.log_likelihood, atol=0.05)
        refused("at most 32 tokens a row", from_causal_lm, model, [{"input_ids": [1] * 33}, *ROWS])

    def test_prompts_are_left_out_of_the_loss(self):
        model, rows = gpt2(), rows_with(lambda one: [-100, -100, *one[2:]])
        expected = [own_loss(model, row["input_ids"], row["labels"]) for row in rows]
        for data in (rows, DataLoader(rows, batch_size=3, collate_fn=collate("left", labels=True))):
            texts = from_causal_lm(model, data)
            assert texts.lengths.tolist() == [size - 2 for size in LENGTHS]
            np.testing.assert_allclose(losses(texts), expected, rtol=1e-5)

    def test_packed_rows_hold_documents_that_do_not_see_each_other(self):
        model = gpt2()
        rows = [
            {
                "input_ids": [token for one in some for token in one],
                "position_ids": [place for one in some for place in range(len(one))],
            }
            for some in (DOCUMENTS[:3], DOCUMENTS[3:])
        ]
        same(from_causal_lm(model, rows), from_causal_lm(model, ROWS))

    def test_a_model_with_adapters_is_its_own_base(self):
        peft = pytest.importorskip("peft")
        model = gpt2()
        before = from_causal_lm(model, ROWS)
        tuned = peft.get_peft_model(
            model, peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
        )
        texts = from_causal_lm(tuned, ROWS)
        np.testing.assert_allclose(texts.base, before.log_likelihood, atol=1e-6)
        assert np.abs(texts.log_likelihood - texts.base).max() > 0.01

    def test_sequence_to_sequence(self):
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        config = transformers.T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes)
        model, rows = transformers.T5ForConditionalGeneration(config).eval(), rows_with(lambda one: [7, *one[::-1]][:9])
        texts = from_causal_lm(model, rows, batch_size=2)
        assert texts.lengths.tolist() == [6, 9, 4, 9, 9]  # labels as long as the padded inputs are not padding
        expected = [own_loss(model, row["input_ids"], row["labels"]) for row in rows]
        np.testing.assert_allclose(losses(texts), expected, rtol=1e-5)
