import contextlib
import gc
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings

from giveaway import Head
from giveaway.auditing.store import AuditFolder
from giveaway.checks import InputError
from giveaway.cli import main

# the same examples on every machine; HYPOTHESIS_PROFILE=hunt looks for new ones
settings.register_profile("same", derandomize=True, max_examples=25, deadline=None)
settings.register_profile("hunt", max_examples=1_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What searches the files of every command is slow, because all commands run for it."""
    for item in items:
        if "world" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking thousands of collected tests and their modules again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Take fsync's waiting out of the tests; what it is for, a machine that loses its power, no test can see."""
    with mock.patch("os.fsync"):
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with measured truth, given by GIVEAWAY_SHARED or found beside the checkout."""
    folder = Path(os.environ.get("GIVEAWAY_SHARED", Path(__file__).parents[2] / "shared"))
    if not (folder / "truth").is_dir():
        pytest.skip(f"no measured truth at {folder}: set GIVEAWAY_SHARED to the folder that holds truth/")
    return folder


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A folder in which every command was run once."""
    from tests.every_command import made_world

    return made_world(tmp_path_factory.mktemp("world"))


PICTURE = b'<svg xmlns="http://www.w3.org/2000/svg"/>'


@contextlib.contextmanager
def without_pictures(*, maps: bool = False) -> Iterator[None]:
    """Put empty pictures, and empty maps unless `maps`, into every page: drawing takes longer than a small audit."""
    empty = dict.fromkeys((f"{name}.figure_bytes" for name in ("picture", "validation", "pages")), PICTURE)
    if not maps:
        empty |= {"report.maps": {"item": "{}", "drawn": "0 points"}, "report.bokeh_script": ""}
    with contextlib.ExitStack() as stack:
        for name, made in empty.items():
            stack.enter_context(mock.patch(f"giveaway.reporting.{name}", return_value=made))
        yield


@pytest.fixture
def drawn() -> None:
    """For a test of the command line that wants its pictures drawn."""


@pytest.fixture
def giveaway(request, monkeypatch, capsys):
    """Run the command line, without pictures unless a test asks for `drawn` ones; gives (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["giveaway", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        with contextlib.nullcontext() if "drawn" in request.fixturenames else without_pictures():
            try:
                main()
            except SystemExit as stop:
                code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def done(giveaway):
    """Run a command that must go well; gives stdout, and stderr as `done.err`."""

    def run(*arguments: object) -> str:
        code, out, run.err = giveaway(*arguments)
        assert code == 0, run.err
        return out

    return run


def config(**settings: object) -> tuple[str, ...]:
    """The words of a command that set options without a flag of their own."""
    told = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
    return tuple(word for name, value in told.items() for word in ("--config", f"{name}={value}"))


KINDS = {
    "squared": ("squared", 1),
    "squared_many": ("squared", 3),
    "one_logit": ("cross_entropy", 1),
    "two_classes": ("cross_entropy", 2),
    "classes": ("cross_entropy", 5),
    "many_classes": ("cross_entropy", 27),
    "soft_labels": ("cross_entropy", 4),
    "multi_label": ("binary_cross_entropy", 3),
}


def save_page(folder: Path, name: str, page: str | bytes) -> Path:
    """Add a page to an audit folder, as commands do."""
    with AuditFolder(folder).locked() as place:
        return place.save_pages({name: page})[0]


def refused(words: str, call: Callable[..., object], *arguments: object, **options: object) -> str:
    """Assert that the call is refused with these words, in one line; return the line."""
    with pytest.raises(InputError, match=words) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun(*what: str, processes: int = 2) -> list[str]:
    """Processes that meet on this machine without asking for its name, which not every machine can resolve."""
    meeting = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), *meeting, *what]


def made_arrays(kind: str, *, n: int = 60, d: int = 4, seed: int = 0) -> dict:
    """Arrays of a head of one kind: some records far out, some confident, some wrong."""
    rng = np.random.default_rng(seed)
    loss, m = KINDS[kind]
    features = rng.normal(size=(n, d))
    features[: max(1, n // 15)] *= 5.0
    outputs = features @ rng.normal(size=(d, m)) + rng.normal(size=(n, m))
    if loss == "squared":
        targets = outputs + rng.standard_t(3, size=(n, m))
    elif kind == "soft_labels":
        targets = rng.dirichlet(np.full(m, 0.5), n)
    elif kind == "multi_label":
        targets = (rng.random((n, m)) < 0.5).astype(int)
    else:
        classes = max(m, 2)
        targets = np.where(rng.random(n) < 0.7, outputs.argmax(1) if m > 1 else outputs[:, 0] > 0, 0).astype(int)
        targets[:classes] = np.arange(classes)[: len(targets[:classes])]
    return {"features": features, "outputs": outputs, "targets": targets, "loss": loss}


def made_head(kind: str, **options) -> Head:
    shape = {key: options.pop(key) for key in ("n", "d", "seed") if key in options}
    return Head(**made_arrays(kind, **shape), **options)
