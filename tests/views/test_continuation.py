"""Texts given back word for word: against greedy generation by transformers, and loops over every text."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import giveaway as ga
from giveaway.extract.language_models import from_causal_lm
from giveaway.views.tokens import continues, longest_runs
from tests.conftest import refused
from tests.scores.test_texts import texts_of

TEXTS = texts_of([3, 8, 1, 12, 5, 9], vocabulary=9)


def longest(values):
    return max(len(run) for run in "".join("1" if value else " " for value in values).split(" "))


@pytest.mark.parametrize("seed", range(5))
def test_runs_and_continuations_are_those_of_a_loop(seed):
    best = np.random.default_rng(seed).random(len(TEXTS.tokens)) < 0.7
    parts = np.split(best, TEXTS.starts[1:-1])
    assert longest_runs(TEXTS, best).tolist() == [longest(part) for part in parts]
    for prefix, tokens in ((1, 1), (2, 3), (4, 5), (1, 12), (30, 2)):
        asked = [part[prefix - 1 : prefix - 1 + tokens] for part in parts]
        found = continues(replace(TEXTS, continued=(prefix, tokens)), best)
        assert found.tolist() == [len(part) == tokens and bool(part.all()) for part in asked]


@pytest.mark.slow
def test_they_are_what_generate_gives_back():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=30, n_positions=32, n_embd=32, n_layer=1, n_head=2)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = 0
    model = transformers.GPT2LMHeadModel(config).eval()
    documents = [torch.randint(1, 30, (size,)) for size in (20, 14, 12, 9, 6, 20, 20, 11)]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(60):  # the first five are learned by heart
        for document in documents[:5]:
            optimizer.zero_grad()
            model(input_ids=document[None], labels=document[None]).loss.backward()
            optimizer.step()
    texts = from_causal_lm(model, [{"input_ids": each.tolist()} for each in documents], continued=(3, 5))

    def given_back(document, prefix, tokens):
        options = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        made = model.generate(document[None, :prefix], attention_mask=torch.ones(1, prefix), **options)
        return made[0].tolist() == document[: prefix + tokens].tolist()

    expected = [given_back(each, 3, 5) if len(each) >= 8 else False for each in documents]
    assert 0 < sum(expected) < len(documents)
    assert continues(texts, texts.best).tolist() == expected
    short = documents[4]
    spans = [span for span in range(1, 6) for at in range(1, 7 - span) if given_back(short, at, span)]
    assert longest_runs(texts, texts.best)[4] == max(spans)
    # left padding and packed rows change nothing
    padded = torch.nn.utils.rnn.pad_sequence([each.flip(0) for each in documents], batch_first=True).flip(1)
    loader = torch.utils.data.DataLoader(
        [{"input_ids": row, "attention_mask": (row > 0).long()} for row in padded], batch_size=4, shuffle=False
    )
    assert continues(replace(from_causal_lm(model, loader), continued=(3, 5)), texts.best).tolist() == expected
    places = torch.cat([torch.arange(len(each)) for each in documents[:2]])
    packed = [{"input_ids": torch.cat(documents[:2]).tolist()[:32], "position_ids": places.tolist()[:32]}]
    np.testing.assert_array_equal(from_causal_lm(model, packed).best[:19], texts.best[:19])


def test_the_table_tells_people_and_what_was_known_before():
    best = np.ones(len(TEXTS.tokens), dtype=bool)
    before = np.repeat([True, False], [TEXTS.starts[2], len(best) - TEXTS.starts[2]])
    told = replace(TEXTS, best=best, base_best=before, continued=(2, 4))
    table = ga.audit(told)
    assert table["longest_run"].tolist() == TEXTS.lengths.tolist()
    assert table["longest_run_before"].tolist() == [3, 8, 0, 0, 0, 0]
    assert table["continues"].tolist() == [False, True, False, True, True, True]
    found = table.meta.continuation
    assert (found.texts, found.continued, found.before) == (4, 4, 1)
    people = ga.audit(replace(told, groups=[0, 0, 1, 1, 2, 2]))
    assert people["longest_run"].tolist() == [8, 12, 9]
    assert people["continues"].tolist() == [True, True, True]
    assert ga.audit(replace(told, continued=(40, 40))).meta.continuation is None
    refused("continued: expected a whole number", replace, TEXTS, continued=(0, 4))
