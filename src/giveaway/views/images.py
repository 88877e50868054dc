"""Random features of images: pooled responses to whitened patches of the images themselves (docs/derivations.md)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from giveaway.checks import as_tensor, check_finite, fail
from giveaway.linalg.processes import in_threads
from giveaway.views.left_out import RecordFeatures

SEED = 0  # of the patches
SIDE = 32  # pixels; larger images are averaged down to between this and twice this
PATCH_SHARES = (3 / 16, 5 / 16)  # of the side: patches of 6 and 10 for 32 × 32
SMALLEST_PATCH = 3
FILTERS = 256  # of each size
CELLS = 4  # by as many, over which responses are averaged
THRESHOLD = 0.25  # that a response must exceed to count
PIXEL_SHARE = 0.2  # of squared distances that the pixels have beside the patches
BLOCK = 1024  # rows of features made at a time
PATCHES = 50_000  # that the covariance is taken from
RIDGE = 0.01  # of the whitening, times the mean variance of a direction
NOISE = 1e-3  # of the normalization, times the mean variance of a patch
MAP_NUMBERS = {"cpu": 1 << 21, "cuda": 1 << 23}  # of the responses held by one thread: on a CPU, as its caches hold


def image_features(images: Any, *, device: torch.device | str = "cpu") -> tuple[dict[str, Any], RecordFeatures]:
    """Describe and make the features of images (n, c, h, w) or (n, h, w), uint8 or floats of any range, on `device`."""
    averaged = as_images(images)
    if (factor := min(averaged.shape[2:]) // SIDE) > 1:  # so that an image costs about the same whatever its size
        averaged = torch.cat([functional.avg_pool2d(part.float(), factor) for part in averaged.split(256)])
    side = min(averaged.shape[2:])
    sizes = sorted({min(side, max(SMALLEST_PATCH, round(share * side))) for share in PATCH_SHARES})
    banks = [draw_patches(averaged, FILTERS, size, SEED + k) for k, size in enumerate(sizes)]

    def of(rows: slice | torch.Tensor) -> torch.Tensor:
        chosen = averaged[rows].to(device)
        return torch.cat([*(patch_features(chosen, bank, CELLS) for bank in banks), _coarse(chosen)], dim=1)

    widths = [patch_features(averaged[:1], bank, CELLS).shape[1] for bank in banks]
    shares = ((width, (1.0 - PIXEL_SHARE) / len(banks)) for width in widths)
    features = RecordFeatures(len(averaged), of, BLOCK, (*shares, (_coarse(averaged[:1]).shape[1], PIXEL_SHARE)))
    described = {"view": "images", "side": side, "patches": sizes, "filters": FILTERS, "cells": CELLS, "seed": SEED}
    return described, features


@dataclass(frozen=True, eq=False)
class Patches:
    """Filters W f (F, c·k·k) for normalized patches, their response to m (F,), and the noise of the normalization."""

    filters: torch.Tensor
    offset: torch.Tensor
    noise: float
    shape: tuple[int, int, int]


def draw_patches(images: torch.Tensor, filters: int, size: int, seed: int) -> Patches:
    """Whiten patches at random places of random images, and take the first as filters, at unit length."""
    generator = torch.Generator().manual_seed(seed)
    n, channels, height, width = images.shape
    count = max(PATCHES, filters)
    which = torch.randint(n, (count,), generator=generator)
    top = torch.randint(height - size + 1, (count,), generator=generator)
    left = torch.randint(width - size + 1, (count,), generator=generator)
    column = torch.arange(size)
    rows, columns = top.view(-1, 1, 1) + column.view(-1, 1), left.view(-1, 1, 1) + column
    raw = images[which.view(-1, 1, 1), :, rows, columns].to("cpu", torch.float64)  # (count, size, size, channels)
    flat = raw.permute(0, 3, 1, 2).flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    variance = centred.square().mean(1)
    noise = NOISE * float(variance.mean()) or 1.0
    normal = centred / (variance + noise).sqrt().unsqueeze(1)
    mean = normal.mean(0)
    covariance = (normal - mean).T @ (normal - mean) / count
    values, vectors = torch.linalg.eigh(covariance)
    ridge = RIDGE * float(values.mean()) or 1.0
    whiten = (vectors / (values.clamp_min(0.0) + ridge).sqrt()) @ vectors.T
    # flat patches (a black border) would all be the same filter: the others first
    order = torch.sort((variance <= noise).to(torch.int8), stable=True).indices[:filters]
    chosen = (normal[order] - mean) @ whiten
    chosen = chosen / chosen.norm(dim=1, keepdim=True).clamp_min(1e-12)
    weights = chosen @ whiten
    return Patches(weights.float(), (weights @ mean).float(), noise, (channels, size, size))


def patch_features(images: torch.Tensor, patches: Patches, cells: int) -> torch.Tensor:
    """Return features (rows, 2·F·cells²), by sign, filter, grid row, grid column; a batch of images a thread."""
    count = len(patches.filters)
    channels, size, _ = patches.shape
    height, width = images.shape[2] - size + 1, images.shape[3] - size + 1
    cells = min(cells, height, width)
    out = torch.empty(len(images), 2, count, cells * cells, dtype=torch.float32, device=images.device)
    # of a normalized patch the response is ⟨f, p⟩/√(var(p) + noise) − offset, as Σf = 0: no patch is ever formed
    kernel = patches.filters - patches.filters.mean(1, keepdim=True)  # rounding, which bright images would multiply
    kernel = kernel.view(count, channels, size, size).to(images.device)
    box = torch.full((1, channels, size, size), 1.0 / (channels * size * size), device=images.device)
    offset = patches.offset.to(images.device).view(-1, 1)
    high, low = offset + THRESHOLD, offset - THRESHOLD
    average = torch.kron(_averages(height, cells), _averages(width, cells)).to(images.device)
    step = max(1, MAP_NUMBERS.get(images.device.type, MAP_NUMBERS["cuda"]) // (count * height * width))

    def fill(start: int) -> None:
        x = images[start : start + step].float()
        x = x - x.mean((1, 2, 3), keepdim=True)
        mean = functional.conv2d(x, box)
        variance = (functional.conv2d(x.square(), box) - mean.square()).clamp_min_(0.0)
        response = functional.conv2d(x, kernel).mul_((variance + patches.noise).rsqrt_()).flatten(2)
        # relu(r − offset − t) = max(r, offset + t) − (offset + t), and so for the other sign
        out[start : start + step, 0] = (torch.maximum(response, high) @ average).sub_(high)
        out[start : start + step, 1] = (torch.minimum(response, low, out=response) @ average).sub_(low).neg_()

    in_threads(fill, range(0, len(images), step), images.device)
    return out.flatten(1)


def _averages(length: int, cells: int) -> torch.Tensor:
    """Return (length, cells), which averages over `cells` equal stretches that overlap where they must."""
    at, cell = torch.arange(length).unsqueeze(1), torch.arange(cells)
    inside = (at >= length * cell // cells) & (at < -(-length * (cell + 1) // cells))
    return inside / inside.sum(0)


def as_images(images: Any) -> torch.Tensor:
    """Check images, and return them as (n, c, h, w)."""
    tensor = as_tensor("images", images)
    tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor
    if tensor.shape[3] <= 4 < min(tensor.shape[1], tensor.shape[2]):
        remedy = "move the last axis: images.transpose(0, 3, 1, 2)"
        raise fail("images", "channels before height and width", f"shape {tuple(tensor.shape)}", remedy)
    check_finite("images", tensor)
    return tensor


def _coarse(images: torch.Tensor) -> torch.Tensor:
    """Return the pixels (r, …), averaged two by two where there are as many."""
    return functional.avg_pool2d(images.float(), 2 if min(images.shape[2:]) >= 2 else 1).flatten(1)
