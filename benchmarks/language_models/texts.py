"""Texts as token numbers, in one small file: what the small GPT is pretrained on, and the documents it is tuned on.

The byte-level BPE is trained on the pretraining text alone (WikiText-2 valid and test, and the one of SST-2 and AG News
that is not tuned on), which leaves the documents out as the vocabulary of a published model leaves out its users'. In
the file (token numbers are uint16):

pretraining : the running text; articles and sentences end with the token END.
held_out_wikitext, held_out_sst2 : text that is not pretrained on: the last articles of WikiText-2, SST-2's dev file.
documents, offsets : document i is documents[offsets[i] : offsets[i + 1]], END first and last; `classes` are 0 to 3.
"""

import csv
import gzip
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.data import arrays, sst2
from giveaway.storage.files import write_atomically

CORPORA = ("ag_news", "sst2")  # to fine-tune on: rules are chosen on the second, and checked on the first
MOST = 7600  # documents, the number of AG News
END, END_TEXT = 0, "<|endoftext|>"
HELD_OUT = 0.05  # share of WikiText-2's articles
ARTICLE = re.compile(r"\n(?= = [^=])")  # before a heading of the first level


@dataclass(frozen=True)
class Documents:
    """Documents (n, longest) in rows of one length, filled up with END, and the number of tokens of each.

    The first token is given, the others are predicted. `truncated` documents were longer and have lost their end.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    truncated: int

    def to(self, device: torch.device | str) -> "Documents":
        return Documents(self.tokens.to(device), self.lengths.to(device), self.truncated)


def write_texts(data: Path, to: Path, vocabulary: int, corpus: str = CORPORA[0]) -> None:
    """Train the vocabulary, and write tokens to the file `to` and the tokenizer beside it, as tokenizer.json."""
    from tokenizers import ByteLevelBPETokenizer

    articles = [text for part in ("valid", "test") for text in _articles(data / f"wikitext2_{part}.txt.gz")]
    kept = round((1 - HELD_OUT) * len(articles))
    sentences, labels = sst2(data / "sst2_train.tsv.gz")
    titles, texts = _ag_news(data / "ag_news_test.csv.gz")
    pretraining = articles[:kept] + (sentences if corpus == "ag_news" else texts)
    if corpus == "sst2":  # the longest, as they differ most; in their order
        chosen = np.sort(np.argsort([-len(text) for text in sentences], kind="stable")[:MOST])
        titles, texts = np.asarray(labels)[chosen].astype(np.int8), [sentences[row] for row in chosen]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(pretraining, vocab_size=vocabulary, special_tokens=[END_TEXT], show_progress=False)

    def tokens_of(pieces: Iterable[str]) -> list[np.ndarray]:
        return [np.array([*each.ids, END], np.uint16) for each in tokenizer.encode_batch(list(pieces))]

    documents = [np.array([END, *ids], np.uint16) for ids in tokens_of(texts)]
    held = {
        "pretraining": np.concatenate(tokens_of(pretraining)),
        "held_out_wikitext": np.concatenate(tokens_of(articles[kept:])),
        "held_out_sst2": np.concatenate(tokens_of(sst2(data / "sst2_dev.tsv.gz")[0])),
        "documents": np.concatenate(documents),
        "offsets": np.cumsum([0, *map(len, documents)]),
        "classes": titles,
        "vocabulary": np.array(tokenizer.get_vocab_size()),
    }
    to.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(to, partial(np.savez_compressed, **held))
    tokenizer.save(str(to.with_name("tokenizer.json")))
    lengths = np.diff(held["offsets"])
    quantiles = ", ".join(f"{np.quantile(lengths, share):.0f} ({share:.0%})" for share in (0.05, 0.5, 0.95, 1))
    print(f"{held['pretraining'].size:,} tokens to pretrain on, vocabulary {tokenizer.get_vocab_size():,}")
    print(f"{len(documents):,} documents of {lengths.mean():.1f} tokens on average; quantiles {quantiles}")


def read_documents(file: Path, longest: int) -> Documents:
    """Return the documents, cut off after `longest` tokens."""
    flat, offsets = arrays(file, "documents", "offsets")
    sizes = np.diff(offsets)
    lengths = np.minimum(sizes, longest)
    tokens = np.full((len(lengths), longest), END, np.int64)
    for row, first, length in zip(tokens, offsets, lengths, strict=False):
        row[:length] = flat[first : first + length]
    return Documents(torch.from_numpy(tokens), torch.from_numpy(lengths), int((sizes > longest).sum()))


def _articles(file: Path) -> list[str]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [text for text in ARTICLE.split("\n" + lines.read()) if text.strip()]


def _ag_news(file: Path) -> tuple[np.ndarray, list[str]]:
    """Return the classes and the documents: title, line break, description."""
    with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines))
    return np.array([int(row[0]) - 1 for row in rows], np.int8), [f"{row[1]}\n{row[2]}" for row in rows]
