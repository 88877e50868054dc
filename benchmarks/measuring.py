"""What the benchmarks share: options, fresh processes, the cost of work, the machine, and how a result is written.

Every benchmark runs as `python -m benchmarks.NAME`, and `--help` prints what it measures and with which options.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
WATCHED_EVERY = 0.005  # seconds


def read_options(doc: str, out: str = "", needs: Sequence[str] = (), **defaults: Any) -> argparse.Namespace:
    """Read the command line, with one option for each default, of the default's type.

    A type in place of a default has the default None, False is a switch, and a collection holds the choices, all of
    which are the default. `out` names the result file of --out; with --small it lies in the temporary folder.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if out:
        parser.add_argument("--out", type=Path, default=RESULTS / out)
    for name, default in defaults.items():
        told: dict[str, Any] = {"type": type(default), "default": default}
        if default is False:
            told = {"action": "store_true"}
        elif isinstance(default, type):
            told = {"type": default, "required": name in needs}
        elif isinstance(default, Collection) and not isinstance(default, str):
            choices = list(default)
            told = {"type": type(choices[0]), "nargs": "+", "choices": choices, "default": choices}
        parser.add_argument("--" + name.replace("_", "-"), **told)
    options = parser.parse_args()
    if getattr(options, "small", False) and out and options.out == RESULTS / out:
        options.out = Path(tempfile.gettempdir()) / out
    return options


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


def write_result(path: Path, result: Any, *packages: str, device: torch.device | str = "cpu") -> None:
    """Write a result with its environment, and print it."""
    write_json(path, {"environment": environment(device, *packages), **result})
    print(json.dumps(result, indent=1, ensure_ascii=False), flush=True)


def write_parts(
    path: Path,
    names: Iterable[str],
    measure: Callable[[str], dict[str, Any]],
    *packages: str,
    device: torch.device | str = "cpu",
) -> None:
    """Measure one part after another, each with its environment and seconds; other parts of the file stay."""
    results = read_json(path)
    for name in names:
        found, seconds = timed(lambda name=name: measure(name), device)
        results[name] = {"environment": environment(device, *packages), "seconds": round(seconds, 1), **found}
        print(name, json.dumps(results[name], indent=1, ensure_ascii=False), flush=True)
        write_json(path, results)


def write_json(path: Path, value: Any) -> None:
    """Write the file at once: a command that is killed leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return what an earlier run wrote, or nothing."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def timed(work: Callable[[], Any], device: torch.device | str = "cpu") -> tuple[Any, float]:
    """Return what `work` returns, and its wall seconds; a GPU is waited for before and after."""
    wait_for(device)
    began = time.perf_counter()
    result = work()
    wait_for(device)
    return result, time.perf_counter() - began


def cpu_timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what `work` returns, and the CPU seconds of all threads."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def wait_for(device: torch.device | str) -> None:
    """Wait until a GPU has done what it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def memory(field: str, process: int | str = "self") -> int:
    """Return VmRSS, VmHWM, VmSize or RssAnon of a process in bytes; 0 if it has just ended."""
    return next(
        (int(line.split()[1]) * 1024 for line in _lines(f"/proc/{process}/status") if line.startswith(field)), 0
    )


def reset_peak_memory() -> None:
    """Let VmHWM, the kernel's mark of the peak, start again from here."""
    Path("/proc/self/clear_refs").write_text("5")


def alone(
    work: Callable[..., Any], *arguments: Any, threads: int = 1, watch: Callable[[int], None] | None = None
) -> Any:
    """Return what `work` returns in a fresh process; `watch` is called with the process id again and again."""
    os.environ |= {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "MKL", "OPENBLAS")}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        process = pool.submit(os.getpid).result()
        running = pool.submit(work, *arguments)
        while watch is not None and not running.done():
            watch(process)
            wait([running], timeout=WATCHED_EVERY)
        return running.result()


def digits(value: Any, count: int = 4) -> Any:
    """Round a number, or each of an array, a list or a dict, to so many significant digits."""
    if isinstance(value, dict):
        return {name: digits(each, count) for name, each in value.items()}
    if isinstance(value, Sequence) or getattr(value, "ndim", 0):
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
