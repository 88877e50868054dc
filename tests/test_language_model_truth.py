"""The GPTs of the language models' truth: GPT-2 and LoRA as their makers define them, many at once as one alone."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.language_models import table, train, truth
from benchmarks.language_models.__main__ import main
from benchmarks.language_models.gpt import Architecture, first_adapters, first_parameters, stacked, token_losses
from benchmarks.language_models.texts import END, Documents, read_documents
from benchmarks.language_models.train import Tuning
from scipy.special import logit
from scipy.stats import spearmanr

from giveaway.attacks.shadow_store import balanced_membership, model_seed

SMALL = Architecture(vocabulary=60, positions=12, width=16, layers=2, heads=2, rank=3, scale=2.0)
EVERYWHERE = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
FULL = Tuning(3e-3, batch_size=4, precision="float32")


def spread_out(state, seed):
    """The same names and shapes, in numbers that leave nothing at zero."""
    torch.manual_seed(seed)
    return {name: value + 0.3 * torch.randn_like(value) for name, value in state.items()}


def gpt2(state):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=SMALL.vocabulary, n_positions=SMALL.positions, n_embd=SMALL.width, n_layer=SMALL.layers,
        n_head=SMALL.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=END, eos_token_id=END,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    missing = model.transformer.load_state_dict(state, strict=True)
    assert not missing.missing_keys
    return model


def losses_of(model, tokens):
    logits = model(input_ids=tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


@pytest.fixture
def tokens():
    return torch.randint(SMALL.vocabulary, (5, SMALL.positions + 1), generator=torch.Generator().manual_seed(3))


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_transformers(tokens):
    states = [spread_out(first_parameters(SMALL, 0), seed) for seed in (1, 2)]
    held = {name: value.requires_grad_(True) for name, value in stacked(states).items()}
    ours = token_losses(SMALL, held, torch.stack([tokens, tokens.flip(0)]))
    ours.sum().backward()
    for place, (state, given) in enumerate(zip(states, (tokens, tokens.flip(0)), strict=True)):
        model = gpt2(state)
        theirs = losses_of(model, given)
        torch.testing.assert_close(ours[place], theirs, rtol=1e-5, atol=1e-5)
        theirs.sum().backward()
        for name, parameter in model.transformer.named_parameters():
            torch.testing.assert_close(held[name].grad[place], parameter.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("adapted", [("attn.c_attn",), EVERYWHERE])
def test_adapters_are_those_of_peft(tokens, adapted):
    peft = pytest.importorskip("peft")
    base = spread_out(first_parameters(SMALL, 0), 1)
    adapters = [spread_out(first_adapters(SMALL, adapted, seed), seed) for seed in (4, 5)]
    held = stacked([base]) | {name: value.requires_grad_(True) for name, value in stacked(adapters).items()}
    ours = token_losses(SMALL, held, tokens.expand(2, *tokens.shape))
    ours.sum().backward()
    for place, state in enumerate(adapters):
        config = peft.LoraConfig(
            r=SMALL.rank, lora_alpha=round(SMALL.scale * SMALL.rank), target_modules=list(adapted), fan_in_fan_out=True
        )
        model = peft.get_peft_model(gpt2(base), config).eval()
        learned = {name: value for name, value in model.named_parameters() if value.requires_grad}
        assert len(learned) == len(state)
        ours_of = {name: name.split("transformer.")[1].removesuffix(".default.weight") for name in learned}
        with torch.no_grad():
            for name, value in learned.items():
                value.copy_(state[ours_of[name]])
        theirs = losses_of(model, tokens)
        torch.testing.assert_close(ours[place], theirs, rtol=1e-5, atol=1e-5)
        theirs.sum().backward()
        for name, value in learned.items():
            torch.testing.assert_close(held[ours_of[name]].grad[place], value.grad, rtol=1e-4, atol=1e-4)


def test_adapters_start_as_those_of_peft():
    drawn = first_adapters(replace(SMALL, width=64, rank=64), ("attn.c_attn",), 0)
    assert sorted(name for name in drawn if name.endswith("B")) == [f"h.{k}.attn.c_attn.lora_B" for k in (0, 1)]
    for name, value in drawn.items():
        if name.endswith("A"):
            linear = torch.nn.Linear(64, 64)
            torch.nn.init.kaiming_uniform_(linear.weight, a=5**0.5)  # what peft calls
            torch.testing.assert_close(value.abs().max(), linear.weight.abs().max(), rtol=2e-3, atol=0)
            assert float(value.std()) == pytest.approx(float(linear.weight.detach().std()), rel=0.05)
        else:
            assert not value.any()


def documents_of(count, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, SMALL.positions + 2, count)
    tokens = rng.integers(1, SMALL.vocabulary, (count, SMALL.positions + 1))
    tokens[np.arange(SMALL.positions + 1) >= lengths[:, None]] = END
    return Documents(torch.from_numpy(tokens), torch.from_numpy(lengths), 0)


@pytest.mark.parametrize("tuning", [FULL, replace(FULL, adapted=("attn.c_attn",))], ids=["full", "lora"])
def test_a_model_among_others_is_the_model_alone(tuning):
    documents, base = documents_of(10), first_parameters(SMALL, 0)
    members = balanced_membership(4, 10, seed=train.SEED)
    together = [
        (trainer.log_likelihoods(documents), seen.clone())
        for _, trainer, seen in train.fine_tune(SMALL, base, documents, range(4), tuning, members)
    ]
    assert len(together) == max(train.STAGES)
    alone = train.fine_tune(SMALL, base, documents, range(1, 2), tuning, members[1:2])
    for (likely, seen), (_, trainer, seen_alone) in zip(together, alone, strict=True):
        torch.testing.assert_close(likely[1], trainer.log_likelihoods(documents)[0], rtol=0, atol=2e-5)
        torch.testing.assert_close(trainer.log_likelihoods(documents, 1), trainer.log_likelihoods(documents))
        torch.testing.assert_close(seen[1], seen_alone[0], rtol=0, atol=2e-5, equal_nan=True)
        assert np.array_equal(~np.isnan(seen_alone[0].numpy()), members[1])


@pytest.mark.slow
def test_fine_tuning_is_adam_on_the_tokens_of_each_batch():
    """One model by torch's own Adam on transformers' GPT-2, the batches in the order of its seed."""
    documents, base = documents_of(10), spread_out(first_parameters(SMALL, 0), 6)
    members = balanced_membership(2, 10, seed=train.SEED)[:1]
    trained = train.fine_tune(SMALL, base, documents, range(1), FULL, members)
    _, trainer, _ = next(trained)
    batches = train.EpochBatches([np.flatnonzero(members[0])], 2, [model_seed(0, seed=train.SEED)])
    model = gpt2(base)
    adam = torch.optim.Adam(model.parameters(), lr=FULL.learning_rate)
    for step, (rows, weight) in enumerate(zip(batches.epoch()[0], batches.weights[0], strict=True), start=1):
        adam.param_groups[0]["lr"] = FULL.learning_rate * step / train.WARM_UP
        rows = rows[weight > 0]
        losses = losses_of(model, documents.tokens[rows])
        each = [loss[: length - 1] for loss, length in zip(losses, documents.lengths[rows], strict=True)]
        adam.zero_grad()
        torch.cat(each).mean().backward()
        adam.step()
    for name, value in model.transformer.named_parameters():
        counts = torch.ones(len(value), dtype=torch.bool)
        if name.endswith("c_attn.bias"):
            counts[SMALL.width : 2 * SMALL.width] = (
                False  # keys' biases have no gradient, and Adam follows its rounding
            )
        torch.testing.assert_close(trainer.trained[name][0][counts], value[counts], rtol=0, atol=3e-5)


@pytest.fixture
def texts(tmp_path):
    """Running text in which each token tells the next, and documents of the same kind."""
    rng = np.random.default_rng(0)
    stream = (np.arange(3000) * 7 + rng.integers(0, 2, 3000)) % 59 + 1
    lengths = rng.integers(4, 20, 24)
    held = {"pretraining": stream[:2000], "held_out_wikitext": stream[2000:2600], "held_out_sst2": stream[2600:]}
    documents = rng.integers(1, SMALL.vocabulary, lengths.sum())
    tokens = {name: value.astype(np.uint16) for name, value in {**held, "documents": documents}.items()}
    np.savez(tmp_path / "texts.npz", offsets=np.cumsum([0, *lengths]), **tokens)
    return tmp_path / "texts.npz"


@pytest.mark.slow
def test_slices_hold_what_the_models_say(texts, tmp_path, capsys):
    sizes = "--vocabulary 60 --positions 12 --width 16 --layers 2 --heads 2 --epochs 2 --batch 8 --batch-size 4"
    given = [*sizes.split(), "--work", str(tmp_path)]
    main(["pretrain", *given])
    assert "held-out perplexity" in capsys.readouterr().out
    shape, base = train.read_pretrained(tmp_path / "pretrained.npz")
    assert replace(shape, rank=SMALL.rank) == SMALL
    main(["tune", "--kind", "full", "--only", "0:2", "--targets", "1", *given])
    assert "cut off after 12 tokens" in capsys.readouterr().out
    with np.load(tmp_path / "full_epoch_10_target_0.npz") as state:
        assert {value.dtype for value in state.values()} == {np.dtype(np.float16)}
        assert {name: value.shape for name, value in state.items()} == {n: v.shape for n, v in base.items()}
    documents = read_documents(texts, SMALL.positions + 1)
    with np.load(texts) as held:
        offsets, flat = held["offsets"], held["documents"]
    assert documents.truncated == (np.diff(offsets) > 13).sum() > 0
    first = flat[: offsets[1]][:13]
    assert documents.tokens[0].tolist() == [*first, *[END] * (13 - len(first))]

    tuning = replace(FULL, adapted=("attn.c_attn",), learning_rate=0.05)
    asked = {"targets": 1, "at_once": 2}
    for only in (range(4), range(4, 8)):
        train.write_slice(tmp_path / "pretrained.npz", documents, tmp_path, tuning, only=only, **asked)
    signals = truth.signals_of(tmp_path, "lora", 10)
    assert np.array_equal(signals.members, balanced_membership(8, 24, seed=train.SEED))
    with np.load(tmp_path / "lora_0_4.npz") as held, np.load(tmp_path / "lora_epoch_3_target_0.npz") as state:
        assert json.loads(str(held["options"]))["truncated"] == documents.truncated
        np.testing.assert_allclose(-held["losses_after"][0, [0, 2, 9]], [held[f"phi_{e}"][0] for e in (1, 3, 10)])
        assert np.isfinite(held["losses_seen"][0, 0]).sum() == 12
        adapters = {name: torch.from_numpy(state[name])[None] for name in state.files}
        said = train.mean_log_likelihoods(shape, {**stacked([base]), **adapters}, documents, 1)[0]
        np.testing.assert_allclose(said, held["phi_3"][0], atol=1e-5)
        assert held["before"].mean() < held["phi_10"][held["phi_10"].shape[0] // 2].mean()
    written = (tmp_path / "lora_4_8.npz").stat().st_mtime_ns
    train.write_slice(tmp_path / "pretrained.npz", documents, tmp_path, tuning, only=range(4, 8), **asked)
    assert (tmp_path / "lora_4_8.npz").stat().st_mtime_ns == written

    main(["tokens", "--kind", "lora", *given])
    with np.load(tmp_path / "lora_0_4.npz") as held, np.load(tmp_path / "lora_epoch_3_tokens.npz") as said:
        own, lengths = np.flatnonzero(signals.members[0]), documents.lengths.numpy() - 1
        starts = np.cumsum([0, *lengths[own]])
        means = np.add.reduceat(said["log_likelihood_0"].astype(float), starts[:-1]) / lengths[own]
        np.testing.assert_allclose(means, held["phi_3"][0, own], atol=2e-3)
        np.testing.assert_allclose(-said["outside_loss_0"], held["phi_3"][0, ~signals.members[0]], atol=1e-4)
        columns = table.columns_of(tmp_path, said, 0, documents, own, held["losses_seen"][0, :3][:, own])
        np.testing.assert_allclose(-columns["loss"], held["phi_3"][0, own], atol=2e-3)
        assert {"newton", "newton (adapters)", "fused", "trace", "left_out", "fused without newton"} < columns.keys()
        assert spearmanr(columns["newton"], columns["newton (adapters)"]).statistic < 1
    assert table.rates_of(np.arange(100.0), np.arange(50.0)) == {"TPR at 1.0%": 0.51, "TPR at 0.1%": 0.51}

    probability = np.exp(truth.signals_of(tmp_path, "lora", 1).values)
    np.testing.assert_allclose(truth.signals_of(tmp_path, "lora", 1, "logit").values, logit(probability), rtol=1e-10)
    (tmp_path / "lora_0_4.npz").unlink()
    with pytest.raises(SystemExit, match="models 0 to 3 are missing"):
        truth.signals_of(tmp_path, "lora", 1)


@pytest.mark.slow
def test_truth_finds_the_documents_that_were_made_exposed(tmp_path, capsys):
    members = balanced_membership(32, 400, seed=train.SEED)
    rng = np.random.default_rng(1)
    effect = np.where(np.arange(400) < 20, 4.0, 0.2)
    likely = -3 + 0.1 * (rng.normal(size=members.shape) + effect * members)
    packed = np.packbits(members, axis=1)
    for first in (0, 16):
        part = slice(first, first + 16)
        held = {f"phi_{stage}": likely[part].astype(np.float32) for stage in train.STAGES}
        np.savez(tmp_path / f"full_{first}_{first + 16}.npz", members=packed[part], **held)
    np.savez(tmp_path / "full_epoch_1_target_0.npz", weight=np.zeros(1))
    assert list(truth.settings(tmp_path)) == ["full, 1 epochs", "full, 3 epochs", "full, 10 epochs"]
    found = truth.measure(tmp_path, "full", 3)
    assert found["models"] == 32
    assert found["has a truth"] == {"mean": True, "logit": True}
    assert found["mean"]["halves agree"][0] > 0.9
    assert found["mean"]["effect size"]["99%"] == pytest.approx(4.5, abs=0.8)
    assert found["mean"]["LiRA with"]["16 models"]["top 5 % in 5 %"][0] > 0.9
    truth.write_truth(tmp_path, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["full, 3 epochs"] == found
    assert "full, 10 epochs, logit | 32 | " in capsys.readouterr().out
    for drawn, others in truth.pairs_drawn(32, 8):
        assert (members[drawn].sum(0) == 4).all()
        assert sorted([*drawn, *others]) == list(range(32))
