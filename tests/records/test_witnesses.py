"""Relatives, records held out and what is said out of bag: what a head takes, refuses, saves and tells of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway import Head
from giveaway.auditing.store import fingerprint
from giveaway.extract import from_file
from giveaway.records.rows import LARGE_BYTES, LazyRows
from tests.conftest import KINDS, made_arrays, made_head, refused

N, M = 60, 5
RNG = np.random.default_rng(1)
ROWS = RNG.normal(size=(N, M))
OUTPUTS, LABELS = RNG.normal(size=(7, M)), np.arange(7) % M
PROBABILITIES = RNG.dirichlet(np.ones(M), N)
SILENT = np.where(np.arange(N)[:, None] % 4 == 1, np.nan, ROWS)


def spoilt(rows: np.ndarray, where: object, value: float) -> np.ndarray:
    rows = rows.copy()
    rows[where] = value
    return rows


def witnessed(kind: str) -> Head:
    """A head of a kind with all witnesses."""
    one, other = made_arrays(kind, seed=3), made_arrays(kind, seed=4)
    bags = spoilt(one["outputs"], np.arange(N) % 7 == 2, np.nan)
    variants = {"mirror": one["outputs"], "shift": other["outputs"].astype(np.float32)}
    return made_head(kind, relatives=variants, held_out=(other["outputs"], other["targets"]), out_of_bag=bags)


REFUSED = {
    r"^relatives: expected shape \(60, 5\), the outputs on that variant": {"relatives": ROWS[1:]},
    r"^relatives\['mirror'\]: expected shape": {"relatives": {"shift": ROWS, "mirror": ROWS[:, :2]}},
    r"^relatives\['mirror'\]: expected finite numbers, got NaN or infinity first in row 4": {
        "relatives": {"mirror": spoilt(ROWS, (4, 1), np.nan)}
    },
    r"^relatives\['mirror'\]: expected logits, got probabilities": {"relatives": {"mirror": PROBABILITIES}},
    r"^relatives: expected finite logits, got minus infinity first in row 9; clip": {
        "relatives": spoilt(ROWS, (9, 0), -np.inf)
    },
    "^relatives: expected an array of numbers, got dtype": {"relatives": ROWS.astype(str)},
    "^relatives: expected variants named by a plain word, got 'a b'": {"relatives": {"a b": ROWS}},
    "^relatives: expected variants named by a plain word, got 3": {"relatives": {3: ROWS}},
    r"^held_out: expected \(outputs, targets\) of records held out, got a ndarray": {"held_out": OUTPUTS},
    r"^held_out: expected \(outputs, targets\) of records held out, got 3 parts": {"held_out": (OUTPUTS, LABELS, 1)},
    r"^held_out outputs: expected shape \(records held out, 5\)": {"held_out": (OUTPUTS[:, :3], LABELS % 3)},
    "^held_out: expected at least one record, got none": {"held_out": (OUTPUTS[:0], LABELS[:0])},
    "^held_out outputs: expected finite numbers": {"held_out": (spoilt(OUTPUTS, (1, 1), np.inf), LABELS)},
    "^held_out outputs: expected logits, got probabilities": {"held_out": (PROBABILITIES[:7], LABELS)},
    "^held_out targets: expected 7 rows": {"held_out": (OUTPUTS, LABELS[1:])},
    "^held_out targets: expected class labels from 0 to 4, got another label in row 2": {
        "held_out": (OUTPUTS, np.array([0, 1, 9, 0, 1, 2, 3]))
    },
    r"^out_of_bag: expected shape \(60, 5\), as the outputs": {"out_of_bag": ROWS[:, 1:]},
    "^out_of_bag: expected finite numbers, got NaN or infinity first in row 3": {
        "out_of_bag": spoilt(SILENT, (3, 0), np.nan)
    },
    "^out_of_bag: expected finite numbers, got NaN or infinity first in row 6": {
        "out_of_bag": spoilt(SILENT, (6, 0), np.inf)
    },
    "^out_of_bag: expected a prediction for some records, got NaN in every row": {
        "out_of_bag": np.full((N, M), np.nan)
    },
    "^out_of_bag: expected logits, got probabilities": {"out_of_bag": spoilt(PROBABILITIES, slice(0, 50), np.nan)},
    "^out_of_bag: expected finite logits, got minus infinity first in row 8": {
        "out_of_bag": spoilt(SILENT, (8, 0), -np.inf)
    },
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused_with_these_words(words):
    refused(words, made_head, "classes", **REFUSED[words])


def test_held_out_records_may_be_of_one_class():
    head = made_head("classes", held_out=(OUTPUTS.tolist(), [2] * 7))
    outputs, targets = head.held_out
    assert targets.tolist() == [2] * 7
    assert torch.equal(outputs, torch.from_numpy(OUTPUTS))


def test_an_array_alone_is_one_variant_and_no_variant_is_none():
    assert list(made_head("classes", relatives=ROWS).relatives) == ["relatives"]
    assert made_head("classes", relatives={}).relatives is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_comes_back(tmp_path, kind):
    head = witnessed(kind)
    head.save(tmp_path / "head.npz")
    for again in (Head.load(tmp_path / "head.npz"), from_file(tmp_path / "head.npz")[0]):
        assert list(again.relatives) == ["mirror", "shift"]
        for name, rows in head.relatives.items():
            assert torch.equal(again.relatives[name], rows)
            assert again.relatives[name].dtype == rows.dtype
        for new, old in zip(again.held_out, head.held_out, strict=True):
            torch.testing.assert_close(new, old, rtol=1e-15, atol=0)  # soft labels are brought to sum 1 again
        assert torch.equal(again.out_of_bag.nan_to_num(7.0), head.out_of_bag.nan_to_num(7.0))
        assert repr(again) == repr(head)
    assert repr(head).endswith("relatives=mirror+shift, held_out=60, out_of_bag)")


def test_copies_keep_the_witnesses():
    head = witnessed("classes")
    for again in (head.to("cpu"), replace(head, l2=1.0), head.named(ids=np.arange(N) + 5)):
        assert all(torch.equal(again.relatives[name], rows) for name, rows in head.relatives.items())
        assert torch.equal(again.held_out[0], head.held_out[0])
        assert torch.equal(again.out_of_bag.isnan(), head.out_of_bag.isnan())


def test_an_audit_of_other_witnesses_is_another():
    plain, head = made_head("classes"), witnessed("classes")
    mirror, shift = head.relatives["mirror"], head.relatives["shift"]
    variants = [
        plain,
        head,
        replace(head, relatives=None),
        replace(head, relatives={"mirror": mirror}),
        replace(head, relatives={"mirror": shift, "shift": mirror}),
        replace(head, relatives={"mirror": mirror, "turn": shift}),
        replace(head, held_out=None),
        replace(head, held_out=(head.held_out[0] + 1, head.held_out[1])),
        replace(head, held_out=(head.held_out[0], head.held_out[1].flip(0))),
        replace(head, out_of_bag=None),
        replace(head, out_of_bag=head.out_of_bag + 1),
    ]
    assert len({fingerprint(one) for one in variants}) == len(variants)


@given(st.sampled_from(["one_logit", "squared"]), st.integers(1, 12))
def test_a_column_may_be_flat(kind, k):
    arrays = made_arrays(kind, n=12)
    flat, targets = arrays["outputs"][:, 0], arrays["targets"]
    head = Head(**arrays, relatives=flat, held_out=(flat[:k], targets[:k]), out_of_bag=flat)
    assert head.relatives["relatives"].shape == head.out_of_bag.shape == (12, 1)
    assert head.held_out[0].shape == (k, 1)
    assert len(head.held_out[1]) == k


def test_a_file_and_a_folder_of_shards_hold_them(tmp_path):
    arrays = made_arrays("classes")
    rows = {name: arrays[name] for name in ("features", "outputs", "targets")}
    rows |= {"relatives_mirror": ROWS, "relatives": 2 * ROWS, "out_of_bag": SILENT}
    once = {"held_out_outputs": OUTPUTS, "held_out_targets": LABELS}
    np.savez(tmp_path / "all.npz", **rows, **once)
    shards, columns = tmp_path / "shards", tmp_path / "columns"
    shards.mkdir()
    columns.mkdir()
    for place, part in enumerate((slice(0, 25), slice(25, N))):
        np.savez(shards / f"part-{place}.npz", **{name: value[part] for name, value in rows.items()})
        np.save(columns / f"relatives_mirror-{place}.npy", ROWS[part])
    np.savez(shards / "head.npz", **once)
    for name, value in (rows | once).items():
        if name != "relatives_mirror":
            np.save(columns / f"{name}.npy", value)
    prints = set()
    for path in (tmp_path / "all.npz", shards, columns):
        head, notes = from_file(path)
        assert notes == []
        assert torch.equal(head.relatives["mirror"], torch.from_numpy(ROWS))
        assert torch.equal(head.relatives["relatives"], torch.from_numpy(2 * ROWS))
        np.testing.assert_array_equal(head.out_of_bag, SILENT)
        np.testing.assert_array_equal(head.held_out[1], LABELS)
        prints.add(fingerprint(head))
    assert len(prints) == 1
    np.savez(shards / "part-1.npz", **{n: v[25:] for n, v in rows.items() if n != "relatives_mirror"})
    refused("^relatives_mirror: expected 35 rows in part-1.npz", from_file, shards)
    np.savez(tmp_path / "half.npz", **rows, held_out_outputs=OUTPUTS)
    refused("^held_out: expected .* together, got held_out_outputs alone", from_file, tmp_path / "half.npz")


def test_large_relatives_stay_on_the_disk(tmp_path):
    n = LARGE_BYTES // (8 * M) + 1
    targets = np.arange(n) % M
    mapped = np.lib.format.open_memmap(tmp_path / "variant.npy", "w+", np.float64, (n, M))
    mapped[:, 0] = 3.0
    mapped.flush()
    rows = np.load(tmp_path / "variant.npy", mmap_mode="r")
    head = Head(None, np.zeros((n, M), np.float32), targets, "cross_entropy", relatives={"mirror": rows})
    assert isinstance(head.relatives["mirror"], LazyRows)
    assert head.relatives["mirror"][5:6].tolist() == [[3.0, 0, 0, 0, 0]]
