"""Losses recorded while trainers of Hugging Face train: against the losses of each text, computed one at a time."""

import os

import numpy as np
import pytest
import torch

import giveaway as ga
from giveaway.extract.language_models import from_causal_lm
from tests.conftest import free_port, refused

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers")
VOCABULARY, N = 40, 13
RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(1, VOCABULARY, size).tolist() for size in RNG.integers(3, 15, N)]
TEXTS[7] = TEXTS[2]  # a copy
ROWS = [{"input_ids": text} for text in TEXTS]


def gpt2(dropout=0.0):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **off, bos_token_id=0, eos_token_id=0))


def padded(rows, side="right"):
    longest = max(len(row["input_ids"]) for row in rows)

    def fill(values, value):
        rest = [value] * (longest - len(values))
        return torch.tensor(rest + values if side == "left" else values + rest)

    ids, ones = [row["input_ids"] for row in rows], [[1] * len(row["input_ids"]) for row in rows]
    labels = [row.get("labels", row["input_ids"]) for row in rows]
    columns = {"input_ids": (ids, 0), "attention_mask": (ones, 0), "labels": (labels, -100)}
    return {name: torch.stack([fill(v, value) for v in values]) for name, (values, value) in columns.items()}


def settings(tmp_path, **options):
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_strategy": "no"}
    given = {"per_device_train_batch_size": 3, "num_train_epochs": 2, "learning_rate": 0.0} | quiet | options
    return transformers.TrainingArguments(output_dir=str(tmp_path / "run"), **given)


def recorded(tmp_path, rows=ROWS, collate=padded, model=None, callbacks=(), known=None, **options):
    from giveaway.integrations.hugging_face import RecordTextLosses

    record = RecordTextLosses(tmp_path / "losses.trace", known or rows)
    trainer = transformers.Trainer(
        model or gpt2(),
        settings(tmp_path, **options),
        train_dataset=rows,
        data_collator=collate,
        callbacks=[record, *callbacks],
    )
    return trainer


def own_losses(model, rows=ROWS):
    """The model's own mean loss on one text at a time."""
    model, found = model.eval(), []
    for row in rows:
        labels = torch.tensor([row.get("labels", row["input_ids"])])
        with torch.no_grad():
            found.append(float(model(input_ids=torch.tensor([row["input_ids"]]), labels=labels).loss))
    return np.array(found)


class LossesAtSteps(transformers.TrainerCallback):
    """All texts' losses before each step of the optimizer."""

    def __init__(self):
        self.before = []

    def on_step_begin(self, args, state, control, model, **rest):
        self.before.append(own_losses(model))
        model.train()


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_text_has_its_own_loss(tmp_path, side):
    prompts = [{"input_ids": text, "labels": [-100] * 2 + text[2:]} for text in TEXTS]

    def collate(rows):
        batch = padded(rows, side)
        return batch | {"position_ids": (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)}

    trainer = recorded(tmp_path, prompts, collate, gradient_accumulation_steps=2)
    trainer.train()
    trace = ga.LossTrace(tmp_path / "losses.trace")
    assert trace.epochs == 2
    for epoch in trace.losses:
        np.testing.assert_allclose(epoch, own_losses(trainer.model, prompts), rtol=1e-3)
    assert not trainer.model._forward_hooks


def test_losses_are_from_before_each_step(tmp_path):
    steps = LossesAtSteps()
    options = {"learning_rate": 0.05, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    trainer = recorded(tmp_path, callbacks=[steps], **options)
    trainer.train()
    losses = ga.LossTrace(tmp_path / "losses.trace").losses.astype(float)
    each = np.array(steps.before).reshape(2, -1, N)  # epochs, steps, texts
    apart = np.abs(each - losses[:, None]) / losses[:, None]
    single = [row for row in range(N) if row not in (2, 7)]
    assert (apart.min(1) < 1e-3)[:, single].all()
    assert (apart.argmin(1)[0] != apart.argmin(1)[1]).any()  # the sampler shuffles anew
    np.testing.assert_array_equal(losses[:, 2], losses[:, 7])


def test_packed_rows_and_an_audit(tmp_path):
    def flat(rows):  # counts the first token of each text too, which is predicted from the text before it
        batch = transformers.DataCollatorWithFlattening(return_position_ids=True)(rows)
        return batch | {"labels": batch["input_ids"].clone()}

    trainer = recorded(tmp_path, collate=flat, num_train_epochs=1)
    trainer.train()
    trace = ga.LossTrace(tmp_path / "losses.trace")
    np.testing.assert_allclose(trace.losses[0], own_losses(trainer.model), rtol=1e-3)
    table = ga.audit(from_causal_lm(trainer.model, ROWS), trace=trace)
    assert "trace" in table.columns


def test_a_resumed_training_goes_on_within_the_epoch(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 0.05}
    whole = tmp_path / "whole"
    recorded(whole, **options).train()
    expected = ga.LossTrace(whole / "losses.trace").losses.copy()

    class Killed(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **rest):
            if state.global_step == 7:
                raise RuntimeError("killed")

    trainer = recorded(tmp_path, callbacks=[Killed()], **options)
    with pytest.raises(RuntimeError, match="killed"):
        trainer.train()
    next(one for one in trainer.callback_handler.callbacks if hasattr(one, "trace")).trace.close()
    for step in (5, 6, 3):  # the first epoch's last step, within the second, within the first
        again = recorded(tmp_path, **options)
        again.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{step}"))
        np.testing.assert_array_equal(ga.LossTrace(tmp_path / "losses.trace").losses, expected)


def test_what_is_refused(tmp_path):
    other = recorded(tmp_path / "other", known=[{"input_ids": [1, *text]} for text in TEXTS])
    refused("dataset: expected the texts that training sees, token by token, got 3 of 3 in a batch", other.train)
    smooth = recorded(tmp_path / "smooth", label_smoothing_factor=0.1)
    refused("trainer: expected labels in what the model is called with, got none in a whole epoch", smooth.train)
    trainer = recorded(tmp_path / "moved", save_strategy="steps", save_steps=5)
    trainer.train()
    next((tmp_path / "moved").glob("run/checkpoint-5/losses.*")).unlink()
    last = str(tmp_path / "moved" / "run" / "checkpoint-5")
    words = "resume_from_checkpoint: expected a file that exists, got .*checkpoint-5.losses.0-of-1.npz"
    refused(words, lambda: trainer.train(resume_from_checkpoint=last))


@pytest.mark.parametrize("packing", [False, True])
def test_trl_packs_shuffles_and_keeps_no_logits(tmp_path, packing):
    trl, datasets, peft = map(pytest.importorskip, ("trl", "datasets", "peft"))
    from giveaway.integrations.hugging_face import RecordTextLosses

    data = datasets.Dataset.from_list(ROWS)
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_strategy": "no"}
    quiet |= {"bf16": False, "gradient_checkpointing": False, "learning_rate": 0.0, "shuffle_dataset": True}
    args = trl.SFTConfig(str(tmp_path / "run"), packing=packing, max_length=16, num_train_epochs=2, **quiet)
    model, record = gpt2(), RecordTextLosses(tmp_path / "losses.trace", data)
    tokens = {"[UNK]": 0, "[PAD]": 1, **{f"w{n}": n for n in range(2, VOCABULARY)}}
    from tokenizers import Tokenizer, models

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(tokens, unk_token="[UNK]")), pad_token="[PAD]", eos_token="[UNK]"
    )
    adapters = None if packing else peft.LoraConfig(target_modules=["c_attn"], task_type="CAUSAL_LM")
    given = {"train_dataset": data, "processing_class": tokenizer, "callbacks": [record], "peft_config": adapters}
    trl.SFTTrainer(model, args, **given).train()
    losses = ga.LossTrace(tmp_path / "losses.trace").losses
    assert len(losses) == 2
    for epoch in losses:
        np.testing.assert_allclose(epoch, own_losses(model), rtol=2e-3)


def train_as_one_of_two(rank, folder, port):
    """What torchrun would start, but forked: importing transformers twice takes longer than all of these tests."""
    of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in of_rank.items()})
    recorded(folder, ddp_backend="gloo").train()


def test_two_processes_write_a_file_each(tmp_path):
    torch.multiprocessing.start_processes(train_as_one_of_two, (tmp_path, free_port()), nprocs=2, start_method="fork")
    names = sorted(path.name for path in tmp_path.glob("losses.trace*"))
    assert names == ["losses.trace.0-of-2", "losses.trace.1-of-2"]
    trace = ga.LossTrace(tmp_path / "losses.trace")
    assert trace.epochs == 2
    for epoch in trace.losses:
        np.testing.assert_allclose(epoch, own_losses(gpt2()), rtol=1e-3)
