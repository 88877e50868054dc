"""Characters as they look in many fonts: images of 100 real classes, made from packages that can be installed.

Each font is a package of its own at npm (@fontsource/NAME, open licences); which there are is told by the package
google-font-metadata. Families are tried in the order of a hash of their names until enough of them have all characters.
An image that another font has to the last pixel is left out. Needs npm, and Pillow.
"""

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

CHARACTERS = "".join(map(chr, range(33, 127))) + "¡¿£€§©"
FONTS = 320
SIDE, HEIGHT, BASELINE = 28, 20, 20  # pixels: of an image, of the type, and from the top to the line it stands on
AT_ONCE = 8  # packages that are fetched side by side


def write_glyphs(to: Path) -> Path:
    """Fetch fonts, draw their characters, and return glyphs.npz; one that is there already is left alone."""
    path = to / "glyphs.npz"
    if path.exists():
        return path
    drawn: list[np.ndarray] = []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        waiting = _families()
        while len(drawn) < FONTS:
            if not (some := list(islice(waiting, 4 * AT_ONCE))):
                raise RuntimeError(f"only {len(drawn)} fonts with all characters were found, {FONTS} are wanted")
            found = threads.map(_of_family, some)
            drawn.extend(images for images in found if images is not None)
            print(f"\rglyphs: {len(drawn)} of {FONTS} fonts", end="", flush=True)
    images = np.stack(drawn[:FONTS])
    labels = np.broadcast_to(np.arange(len(CHARACTERS)), images.shape[:2])
    flat, y = images.reshape(-1, SIDE, SIDE), labels.reshape(-1)
    _, first = np.unique(flat.reshape(len(flat), -1), axis=0, return_index=True)
    kept = np.sort(first)
    to.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, images=flat[kept], labels=y[kept].astype(np.int64))
    return path


def _families() -> Iterator[str]:
    with _package("google-font-metadata") as files:
        listed = json.load(files.extractfile("package/data/google-fonts-v2.json"))  # type: ignore[arg-type]
    upright = [
        name
        for name, told in listed.items()
        if "latin" in told["subsets"] and 400 in told["weights"] and "normal" in told["styles"]
    ]
    return iter(sorted(upright, key=lambda name: hashlib.sha256(name.encode()).digest()))


def _package(name: str) -> tarfile.TarFile:
    """Fetch a package, and open it in memory."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", name, "--silent", "--pack-destination", folder]
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        (archive,) = Path(folder).iterdir()
        return tarfile.open(fileobj=io.BytesIO(archive.read_bytes()))


def _of_family(name: str) -> np.ndarray | None:
    """Draw a family; None where it is not there."""
    try:
        with _package(f"@fontsource/{name}") as files:
            return draw(files.extractfile(f"package/files/{name}-latin-400-normal.woff2").read())  # type: ignore[union-attr]
    except (subprocess.CalledProcessError, KeyError):
        return None


def draw(font: bytes) -> np.ndarray | None:
    """Draw all characters (characters, side, side); None where the font lacks one, or cannot be drawn at this size."""
    from PIL import Image, ImageDraw, ImageFont

    images = np.zeros((len(CHARACTERS), SIDE, SIDE), np.uint8)
    try:
        opened = ImageFont.truetype(io.BytesIO(font), HEIGHT)
        absent = bytes(opened.getmask("\uffff"))
        for row, character in enumerate(CHARACTERS):
            mask = opened.getmask(character)
            if mask.getbbox() is None or bytes(mask) == absent:
                return None
            page = Image.new("L", (SIDE, SIDE))
            ImageDraw.Draw(page).text((SIDE / 2, BASELINE), character, fill=255, font=opened, anchor="ms")
            images[row] = np.asarray(page)
    except OSError:
        return None
    return images
