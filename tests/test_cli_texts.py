"""The command line for language models: run as a new user would, with a module of one's own, and with folders."""

import json
import re
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import giveaway as ga
from giveaway.auditing.cost import price_texts
from giveaway.auditing.store import pseudonyms
from giveaway.extract.text_gradients import TextCurvature
from giveaway.records import ScoreTable
from tests.conftest import config, refused
from tests.test_cli import one_line

MARK = "zqwordsmark"
MINE = f"""
import numpy as np
import torch
from torch import nn

import giveaway as ga

N, WORDS = 120, 30
rng = np.random.default_rng(0)
NUMBERS = [rng.integers(0, WORDS, rng.integers(5, 20)).tolist() for _ in range(N)]


class Words:
    def __call__(self, text):
        return {{"input_ids": [int(word.removeprefix("{MARK}")) for word in text.split()]}}

    def batch_decode(self, documents):
        return [" ".join(f"{MARK}{{token}}" for token in document) for document in documents]

    def decode(self, document):
        return self.batch_decode([document])[0]


class Bigrams(nn.Module):
    def __init__(self, documents):
        super().__init__()
        counts = torch.full((WORDS, WORDS), 0.5)
        for document in documents:
            for one, next_one in zip(document, document[1:]):
                counts[one, next_one] += 1
        self.head = nn.Linear(WORDS, WORDS, bias=False)
        self.head.weight.data = counts.log().T.contiguous()

    def forward(self, input_ids):
        return self.head(nn.functional.one_hot(input_ids, WORDS).float())


def model():
    return Bigrams(NUMBERS), Words()

def base():
    return Bigrams(NUMBERS[:3])

def texts():
    return Words().batch_decode(NUMBERS)

def tokens():
    return [{{"input_ids": one}} for one in NUMBERS]

def words():
    return Words()

def alone():
    return Bigrams(NUMBERS)

def nothing():
    return []

def train(rows, seed, weight=1):
    model = Bigrams([NUMBERS[row] for row in rows for _ in range(weight)])
    return ga.from_causal_lm(model, tokens(), curvature=None)

def means(rows, seed):
    read = train(rows, seed)
    return read.means(read.log_likelihood)

def wrong(rows, seed):
    return Bigrams(NUMBERS)
"""
CURVATURES = (None, TextCurvature(), TextCurvature(["head"]))
SOURCE = ("audit", "--lm", "users_lm:model", "--data", "users_lm:texts")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A working folder with users_lm.py; gives the module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "users_lm", raising=False)
    (tmp_path / "users_lm.py").write_text(MINE)
    import users_lm

    yield users_lm
    sys.modules.pop("users_lm", None)


def test_an_audit_of_texts_and_what_follows(done, mine):
    out = done(*SOURCE, "--base", "users_lm:base", "--out", "audit")
    texts = ga.from_causal_lm(*mine.model()[:1], mine.texts(), tokenizer=mine.Words(), base=mine.base())
    table, expected = ScoreTable.load("audit"), ga.audit(texts)
    assert table.columns == expected.columns
    np.testing.assert_allclose(table["base_gap"], expected["base_gap"], rtol=1e-6)
    assert "The 10 of 120 texts ranked highest, by fused" in out
    assert "no number of exposed texts is stated" in out
    assert "Running your code: users_lm:model and users_lm:base and users_lm:texts" in done.err
    assert {stat.S_IMODE(path.stat().st_mode) for path in Path("audit").iterdir()} == {0o600}
    assert done(*SOURCE, "--base", "users_lm:base", "--out", "audit")  # the same again, over itself
    assert "3 canaries of 120 texts" in done("canaries", "audit", "-k", 3)
    assert "Rank correlation 1.00" in done("compare", "audit", "audit")
    for command in (("report", "audit"), ("index", "audit"), ("export", "audit", "--to", "model-card")):
        assert MARK not in done(*command) + done.err
    assert MARK not in out + "".join(path.read_bytes().decode("latin-1") for path in Path("audit").iterdir())
    assert done("purge", "audit")


def test_texts_are_shown_only_where_that_is_asked_for(done, mine):
    out = done(*SOURCE, "--show-records", "--out", "audit", "--json")
    assert json.loads(out)["top"][0].keys() == {"row", "fused"}
    assert MARK in Path("audit", "report.html").read_text()
    for shared in ("summary.html", "summary.json"):
        assert MARK not in Path("audit", shared).read_text()
    assert MARK not in done("export", "audit", "--to", "json") + out + done.err


def test_people_pseudonyms_subgroups_and_a_trace(done, mine):
    names = [f"{MARK} {i // 3}" for i in range(mine.N)]
    Path("people.txt").write_text("".join(f"{name}\n" for name in names))
    Path("wards.csv").write_text("ward\n" + "".join(f"w{i // 3 % 2}\n" for i in range(mine.N)))
    texts = ga.from_causal_lm(mine.alone(), mine.tokens())
    losses = -texts.means(texts.log_likelihood) * np.random.default_rng(1).uniform(0.9, 1.1, (2, mine.N))
    ga.LossTrace.from_losses(losses).save("losses.trace")
    options = ("--groups", "people.txt", "--trace", "losses.trace", "--pseudonymize", "key")
    out = done(*SOURCE, *options, "--subgroups", "wards.csv", "--out", "audit")
    assert "The 10 of 40 people ranked highest, by fused" in out
    people, records = ScoreTable.load("audit", "people"), ScoreTable.load("audit")
    assert (people["records"] == 3).all()
    assert len(records) == mine.N
    assert {"trace", "fused"} <= set(people.columns)
    assert people.meta.trace.epochs == 2
    plain = ga.audit(ga.from_causal_lm(mine.alone(), mine.tokens(), groups=names))
    order = np.argsort(pseudonyms(plain.ids, Path("key").read_bytes().strip()))
    np.testing.assert_allclose(people["newton"], plain["newton"][order], rtol=1e-5)  # each person's own
    assert "newton" not in records.columns
    assert MARK not in out + Path("audit", "people.csv").read_text()
    assert "of 120 texts" in done(*SOURCE, *options, "--out", "records", *config(by="record"))
    assert {"newton", "leverage"} <= set(ScoreTable.load("records").columns)


def tokens_of(name):
    return float(re.search("about (.*) tokens", name)[1].replace(",", ""))


def test_the_cost_is_said_before_the_work(done, mine, monkeypatch):
    out = done(*SOURCE, "--base", "users_lm:base", "--dry-run", "--out", "audit")
    assert out.startswith("audit: 120 rows, about ")
    assert "scaled up from 32 records timed here" in out
    assert not Path("audit").exists()
    told = json.loads(done(*SOURCE, "--dry-run", "--json", "--config", "batch_size=40"))
    assert (told["records"], told["timed"]) == (mine.N, 80)
    assert 0.5 < tokens_of(told["name"]) / sum(len(one) - 1 for one in mine.NUMBERS) < 2
    loader = torch.utils.data.DataLoader(mine.tokens(), collate_fn=lambda rows: {"input_ids": torch.tensor([[1, 2]])})
    assert tokens_of(price_texts(mine.alone(), loader).name) == mine.N
    plain, head, inner = (price_texts(mine.alone(), mine.tokens(), curvature=one).bytes for one in CURVATURES)
    assert plain < inner < head
    monkeypatch.setattr("giveaway.auditing.cost.calibrate", lambda *_: 1e-3)  # products alone take time
    weights = [layer for layer in mine.alone().modules() if isinstance(layer, torch.nn.Linear)][-1].weight.numel()
    assert price_texts(mine.alone(), mine.tokens()).seconds == pytest.approx(2e3 * 360 * 240 * weights, rel=1e-6)
    refused("a fixed order, got a list_iterator", price_texts, mine.alone(), iter(mine.tokens()))


def test_validate_by_fine_tunes_of_ones_own(giveaway, done, mine):
    done(*SOURCE, "--out", "audit")
    got = one_line(giveaway("validate", "audit", "--train", "users_lm:wrong", "--models", 8))
    assert "a language model ga.from_causal_lm(model, documents)" in got
    out = done("validate", "audit", "--train", "users_lm:train", "--models", 8)
    assert "What a model says of a text is the mean log-likelihood of its tokens." in out
    first = np.load("audit/signals/values.npy")[0]
    rows = np.flatnonzero(np.load("audit/signals/members.npy")[0])
    np.testing.assert_allclose(first[:, 0] if first.ndim > 1 else first, mine.means(rows, 0), rtol=1e-6)
    measured = json.loads(Path("audit", "validation.json").read_text())
    assert measured["lira"]["auc"][0] > 0.6  # counts remember what they counted
    Path("rule.toml").write_text(
        'schema = 1\n[[rule]]\nname = "few"\nmeasure = "measured_count"\nat_most = 120\nleast_power = 0.0\n'
    )
    assert "1 of 1 rules met" in done("gate", "audit", "rule.toml")
    table = ScoreTable.load("audit")
    by_means = ga.validate(mine.means, table, models=8, folder="signals")
    np.testing.assert_allclose(by_means.effect_size, np.load("audit/validation.npz")["effect_size"], rtol=1e-9)
    out = done("mitigate", "audit", "--train", "users_lm:train", "--models", 0, "--try", "weight=1,3")
    assert "log-likelihood  attack on all" in out


REFUSED = {
    ("--inputs", "x.npz"): "inputs: expected --features or --model or --estimator beside it, got --lm; drop inputs",
    ("--layer", "head"): "layer: expected --model beside it, got --lm; drop layer",
    ("--estimator", "x.skops"): "audit: expected one of --features, --model, --estimator and --lm, got --estimator and",
    ("--curvature", "dense"): "curvature: expected --features or --model or --estimator beside it, got --lm",
    ("--config", "kernel=rbf"): "kernel: expected --features or --model or --estimator beside it, got --lm",
    ("--lm", "users_lm:alone"): "tokenizer: expected the model's tokenizer beside strings, got none; pass tokenizer=",
    ("--data", "users_lm:nothing"): "dataset: expected at least 2 documents, got none",
    ("--scores", "entropy"): "scores: expected a known name, got 'entropy'",
    ("--config", "through=adapters"): "through: expected adapters of LoRA in the model, got none; name layers, or take",
    ("--config", "continued=3"): "continued: expected two whole numbers such as 50,50, got '3'; give both counts",
}


@pytest.mark.parametrize(("options", "words"), REFUSED.items(), ids=lambda one: str(one)[:30])
def test_what_is_refused(giveaway, mine, options, words):
    assert one_line(giveaway(*SOURCE, *options, "--out", "audit")).startswith(words)
    assert not Path("audit").exists()


def test_what_a_folder_lacks_is_said(giveaway, mine, monkeypatch):
    Path("tuned").mkdir()
    Path("tuned/adapter_config.json").write_text("{}")
    asked = ("audit", "--lm", "tuned", "--data", "users_lm:texts")
    words = "lm: expected adapters in safetensors, got none in the folder; save them with save_pretrained"
    assert one_line(giveaway(*asked)).startswith(words)
    Path("tuned/adapter_config.json").unlink()
    monkeypatch.setitem(sys.modules, "transformers", None)
    words = (
        "lm: expected transformers installed for a folder or a name, got none; install them: pip install 'giveaway[lm]'"
    )
    assert one_line(giveaway(*asked)).startswith(words)


def test_rules_on_what_texts_do_not_have(giveaway, mine):
    rule = 'schema = 1\n[[rule]]\nname = "few"\nmeasure = "predicted_success"\nabove = 0.7\nat_most_share = 0.1\n'
    Path("rule.toml").write_text(rule)
    words = "gate: expected rules on what texts have, got predicted_success; use measured_count"
    assert one_line(giveaway(*SOURCE, "--gate", "rule.toml")).startswith(words)


def test_a_tokenizer_and_a_length_through_config(done, mine):
    settings = config(tokenizer="users_lm:words", max_length=4, batch_size=7, continued="1,2", through="none")
    done("audit", "--lm", "users_lm:alone", "--data", "users_lm:texts", "--out", "audit", *settings)
    assert ScoreTable.load("audit")["tokens"].max() == 3
    assert "newton" not in ScoreTable.load("audit").columns
    assert ScoreTable.load("audit").meta.continuation.tokens == 2


@pytest.mark.slow
def test_folders_of_transformers_and_peft(giveaway, done, mine):
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {"n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=mine.WORDS, **sizes))
    model.save_pretrained("before")
    lora = peft.LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False, task_type="CAUSAL_LM"
    )
    tuned = peft.get_peft_model(transformers.GPT2LMHeadModel.from_pretrained("before"), lora)
    tuned.save_pretrained("adapters")
    done("audit", "--lm", "adapters", "--data", "users_lm:tokens", "--out", "audit")
    expected = ga.audit(ga.from_causal_lm(tuned, mine.tokens()))
    np.testing.assert_allclose(ScoreTable.load("audit")["base_gap"], expected["base_gap"], rtol=1e-4, atol=1e-6)
    same = giveaway("audit", "--lm", "before", "--base", "before", "--data", "users_lm:tokens", "--out", "same")
    assert one_line(same).startswith("base: expected a model that fine-tuning changed")
    words = "base: expected module:function, a folder of save_pretrained with safetensors"
    assert one_line(giveaway(*SOURCE, "--base", "nowhere")).startswith(words)
    words = "tokenizer: expected module:function, or a folder of save_pretrained with a tokenizer"
    assert one_line(giveaway(*SOURCE, "--config", "tokenizer=nowhere")).startswith(words)


def test_people_are_not_validated(mine):
    texts = ga.from_causal_lm(mine.alone(), mine.tokens(), groups=np.arange(mine.N) // 2)
    refused("table: expected rows that are records, got people", ga.validate, mine.train, ga.audit(texts))
