"""Write .ci/requirements.txt: constraints.txt and what builds the package, each with the sha256 of its files.

    make hashes        # after every change of constraints.txt

CI installs by that file with pip's --require-hashes. The index is the one that pip is set to (PIP_INDEX_URL, or pip's
configuration); the sums are its own, of every wheel that Python 3.11 to 3.13 on Linux x86_64 can take; of torch, those
of the CPU wheels that pip finds in PIP_FIND_LINKS or with `--torch FILE ...` instead, because the index has only the
builds for CUDA, which bring the nvidia packages along.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).parents[1]
BUILD = ("hatchling==1.33.0", "editables==0.6", "tomlkit==0.15.2", "trove-classifiers==2026.9.21.13")
LINK = re.compile(r'href="[^"#]*/([^/"#]+)#sha256=([0-9a-f]{64})"')
INTERPRETERS = re.compile(r"py3\d*|cp31[123]")


def usable(file: str, version: str) -> bool:
    """Whether this is a wheel of this version for the machines that CI runs on."""
    try:
        _, own, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return False
    return own.public == Version(version).public and any(
        (INTERPRETERS.fullmatch(tag.interpreter) or tag.abi == "abi3")
        and not tag.abi.endswith("t")
        and (tag.platform == "any" or ("manylinux" in tag.platform and tag.platform.endswith("x86_64")))
        for tag in tags
    )


def index_of_pip() -> str:
    """The address of the package index that pip is set to."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    told = os.environ.get("PIP_INDEX_URL") or subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    if not told:
        raise SystemExit("set PIP_INDEX_URL to the package index whose sums are wanted")
    return told.rstrip("/")


def listed(index: str, pin: str) -> list[str]:
    """The sums of the files of one pinned version that the index lists."""
    name, _, version = pin.partition("==")
    with urllib.request.urlopen(f"{index}/{canonicalize_name(name)}/") as answer:
        page = answer.read().decode()
    found = {total for file, total in LINK.findall(page) if usable(file.replace("%2B", "+"), version)}
    if not found:
        raise SystemExit(f"{pin}: {index} lists no wheel of it for these interpreters")
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = [file for place in os.environ.get("PIP_FIND_LINKS", "").split() for file in Path(place).glob("torch-*.whl")]
    parser.add_argument("--torch", type=Path, nargs="+", default=here, help="CPU wheels of torch")
    wheels = parser.parse_args().torch
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = sorted([*(line for line in lines if line and not line.startswith("#")), *BUILD], key=str.lower)
    index = index_of_pip()
    with ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda pin: [] if pin.startswith("torch==") else listed(index, pin), pins)
        sums = dict(zip(pins, found, strict=True))
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    sums[torch] = sorted(
        hashlib.sha256(file.read_bytes()).hexdigest() for file in wheels if usable(file.name, torch.partition("==")[2])
    )
    if not sums[torch]:
        raise SystemExit(f"{torch}: no CPU wheel in PIP_FIND_LINKS; name one with --torch")
    text = "# Written by .ci/hashes.py; read by `make HASHES=required`.\n"
    for pin in pins:
        text += " \\\n    ".join([pin, *(f"--hash=sha256:{one}" for one in sums[pin])]) + "\n"
    (ROOT / ".ci" / "requirements.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
