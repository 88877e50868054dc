"""What the benchmarks share: where a result was measured, what work costs, and how a result is written."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"


def environment(device: torch.device | str = "cpu", *packages: str) -> dict[str, Any]:
    """Return the machine and the versions that a result was measured with; a package that is missing is None."""
    on_gpu = torch.device(device).type == "cuda"
    cpu = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else f"cpu, {torch.get_num_threads()} threads",
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "numpy", "giveaway", *packages)},
    }


def write_json(path: Path, value: Any, *, show: bool = False) -> None:
    """Write the file at once: a command that is killed leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    beside = path.with_suffix(".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
    if show:
        print(text, end="", flush=True)


def read_json(path: Path | None) -> dict[str, Any]:
    """Return what an earlier run wrote, or nothing."""
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else {}


def timed(work: Callable[[], Any], device: torch.device | str = "cpu") -> tuple[Any, float]:
    """Return what `work` returns, and its wall seconds; a GPU is waited for before and after."""
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    result = work()
    if on_gpu:
        torch.cuda.synchronize(device)
    return result, time.perf_counter() - began


def memory(field: str, process: int | str = "self") -> int:
    """Return VmRSS, VmHWM, VmSize or RssAnon of a process in bytes; 0 if it has just ended."""
    return next(
        (int(line.split()[1]) * 1024 for line in _lines(f"/proc/{process}/status") if line.startswith(field)), 0
    )


def reset_peak_memory() -> None:
    """Let VmHWM, the kernel's mark of the peak, start again from here."""
    Path("/proc/self/clear_refs").write_text("5")


def in_own_process(script: str, *arguments: Any, threads: int = 1) -> dict[str, Any]:
    """Run a script again with these arguments, and return the JSON in the last line that it prints."""
    environ = {**os.environ, **{f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "MKL", "OPENBLAS")}}
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ)
    return json.loads(done.stdout.splitlines()[-1])


def digits(value: Any, count: int = 4) -> Any:
    """Round a number, or each of a list, to so many significant digits."""
    if isinstance(value, Sequence):
        return [digits(each, count) for each in value]
    return float(f"{float(value):.{count}g}")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
