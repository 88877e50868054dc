"""The pictures of docs/results.md from the committed results alone."""

from __future__ import annotations

from pathlib import Path

from benchmarks.drawing import publish
from benchmarks.reproduce.gls import pictures as gls
from benchmarks.reproduce.lood import pictures as lood
from benchmarks.reproduce.per_sample import pictures as per_sample


def draw_all(results: Path, images: Path, data: Path | None = None) -> list[Path]:
    """Draw every picture that the results allow and return their paths; those that show records need `data`."""
    figures = per_sample.draw(results, data) | gls.draw(results, data) | lood.draw(results)
    return [publish(figure, images / f"{name}.png") for name, figure in figures.items()]
