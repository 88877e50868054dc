"""Processes of Python that need not import the libraries again: forked from one that has imported nothing else.

A start of the command line takes five seconds, nearly all of them for importing. What is forked here has the libraries
already, but nothing of giveaway: it imports that itself, has an environment, a folder and streams of its own, and ends
as an interpreter ends.
"""

import atexit
import os
import runpy
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path

LIBRARIES = (
    *("torch", "torch._dynamo", "torch.distributed", "torch.utils.data", "torch.nn.parallel", "torch.func", "numpy"),
    *("scipy.optimize", "scipy.stats", "scipy.sparse.linalg", "scipy.spatial", "scipy.ndimage", "joblib", "tqdm"),
    *("sklearn.linear_model", "sklearn.neural_network", "sklearn.ensemble", "sklearn.datasets", "sklearn.manifold"),
    *("sklearn.feature_extraction.text", "sklearn.model_selection", "sklearn.pipeline", "sklearn.decomposition"),
    *("bokeh.plotting", "bokeh.embed", "bokeh.resources", "matplotlib.figure", "matplotlib.backends.backend_agg"),
    *("pandas", "click", "jinja2", "safetensors.torch", "distributed"),
)
SERVER = get_context("forkserver")


def serve() -> None:
    """Start what others are forked from, unless it runs."""
    SERVER.set_forkserver_preload(list(LIBRARIES))
    ensure_running()


def _begin(words: Sequence[str], environment: Mapping[str, str], folder: str, streams: str) -> None:
    """Be `python` with these words: a script, -m with a module, or -c with code; -W before them."""
    for number, name in ((1, "out"), (2, "err")):
        stream = os.open(f"{streams}/{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    assert not any(name.partition(".")[0] == "giveaway" for name in sys.modules), "what is started imports it itself"
    if words[0] == "-W":
        warnings._processoptions([words[1]])
        words = words[2:]
    place, sys.argv = (Path(words[0]).resolve().parent, [*words]) if words[0][0] != "-" else ("", [*words[1:]])
    sys.path[:] = [str(place), *environment.get("PYTHONPATH", "").split(os.pathsep), *filter(None, sys.path)]
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(environment.get("OMP_NUM_THREADS", 1)))
    try:
        if words[0] == "-c":
            sys.argv[0] = "-c"
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        elif words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()


def started(words: Sequence[object], environment: Mapping[str, str], folder: Path | None, streams: Path) -> BaseProcess:
    """Start `python` with these words, and go on; what it says goes to two files in a folder."""
    told = ([*map(str, words)], dict(environment), str(folder or Path.cwd()), str(streams))
    serve()
    process = SERVER.Process(target=_begin, args=told)
    process.start()
    return process


def run_together(
    commands: Sequence[tuple[Sequence[object], Mapping[str, str]]], folder: Path | None = None, timeout: float = 300
) -> list[subprocess.CompletedProcess[str]]:
    """Run each of the commands, words behind `python` and an environment, all at the same time."""
    with tempfile.TemporaryDirectory() as place:
        end, processes = time.monotonic() + timeout, []
        try:
            for number, (words, environment) in enumerate(commands):
                streams = Path(place, str(number))
                streams.mkdir()
                processes.append(started(words, environment, folder, streams))
            for process in processes:
                process.join(max(0.0, end - time.monotonic()))
                if process.exitcode is None:
                    raise subprocess.TimeoutExpired([str(word) for words, _ in commands for word in words], timeout)
        finally:
            for process in processes:
                process.kill()
        return [
            subprocess.CompletedProcess(
                [*words], process.exitcode, *(Path(place, str(number), name).read_text() for name in ("out", "err"))
            )
            for number, ((words, _), process) in enumerate(zip(commands, processes, strict=True))
        ]


def python(
    *words: object, folder: Path | None = None, env: Mapping[str, str] | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `python` with these words to its end, and return what subprocess.run would."""
    return run_together([(words, {**(os.environ if env is None else env), **variables})], folder)[0]


def team(*words: object, processes: int = 2, **variables: str) -> list[subprocess.CompletedProcess[str]]:
    """Run processes that have the environment in which torchrun starts them, but not its eye on them."""
    from tests.conftest import free_port  # what is forked would import all of it

    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(processes)}
    shared = {**os.environ, "OMP_NUM_THREADS": "1", **place, **variables}
    ranks = map(str, range(processes))
    return run_together([(words, {**shared, "RANK": rank, "LOCAL_RANK": rank}) for rank in ranks])
