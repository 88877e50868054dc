"""The pictures of docs/results.md from the committed results alone."""

from __future__ import annotations

from pathlib import Path

from benchmarks.reproduce import pictures_gls, pictures_lood, pictures_mia
from giveaway.figures import save_figure


def draw_all(results: Path, images: Path, data: Path | None = None) -> list[Path]:
    """Every picture that the results allow, and where it is; those that show records need their `data`."""
    images.mkdir(parents=True, exist_ok=True)
    written = []
    for part in (pictures_mia, pictures_gls, pictures_lood):
        for name, figure in part.draw(results, data).items():
            path = images / f"{name}.png"
            save_figure(figure, path)
            path.chmod(0o644)  # published, unlike pictures of an audit
            written.append(path)
    return written
