"""What is installed is what the constraints name; the sdist stands alone; no private name of a library by accident."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
PRIVATE = re.compile(r"\b(?:torch|joblib|sklearn)(?:\.\w+)*\._[a-z]\w*")
PRIVATE_NAMES = {"extract/user_files.py": "sklearn.neural_network._stochastic_optimizers"}
OTHER_PLATFORMS = "nvidia-"  # brought by wheels of some platforms alone
QUICK = ["tests/records/test_head.py", "tests/curvature/test_dense.py", "tests/test_public_names.py"]


def needed(name: str, extras: frozenset[str], seen: dict[str, str]) -> None:
    """Add what a distribution needs here to `seen`, name by name, with the installed version."""
    for text in metadata.requires(name) or []:
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            key = canonicalize_name(wanted.name)
            if key not in seen:
                seen[key] = metadata.version(wanted.name).partition("+")[0]
                needed(wanted.name, frozenset(wanted.extras), seen)


def test_constraints_name_every_distribution_that_the_dev_extra_brings():
    pinned = {canonicalize_name(name): version for name, version in PINNED.items()}
    installed: dict[str, str] = {}
    for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        wanted = Requirement(text)
        installed[canonicalize_name(wanted.name)] = metadata.version(wanted.name).partition("+")[0]
        needed(wanted.name, frozenset(wanted.extras), installed)
    brought = {name: version for name, version in installed.items() if not name.startswith(OTHER_PLATFORMS)}
    assert {name: pinned.get(name) for name in brought} == brought


def test_ci_knows_a_sum_of_every_pinned_distribution():
    known = (ROOT / ".ci" / "requirements.txt").read_text(encoding="utf-8")
    sums = {
        name: version
        for name, version in re.findall(r"^([\w.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", known, re.M)
    }
    assert {name: sums.get(name) for name in PINNED} == PINNED, "run make hashes"


def test_private_names_of_libraries_are_these_and_exist():
    source = ROOT / "src" / "giveaway"
    found = {
        (str(file.relative_to(source)), name)
        for file in source.rglob("*.py")
        for name in PRIVATE.findall(file.read_text(encoding="utf-8"))
    }
    assert found == set(PRIVATE_NAMES.items())
    optimizers = importlib.import_module(PRIVATE_NAMES["extract/user_files.py"])
    assert {"AdamOptimizer", "SGDOptimizer"} <= set(vars(optimizers))


def interpreter(version: str) -> str:
    """A Python of this version, or a skipped test."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    found = str(kept[-1]) if kept else shutil.which(f"python{version}")
    return found or pytest.skip(f"no Python {version} here")


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(one) for one in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]


@pytest.mark.slow
def test_what_is_built_works_in_an_environment_of_its_own(tmp_path):
    """Beside the dependencies that are installed already: an empty environment takes minutes (the test below).

    What the sdist installs is what the wheel holds, so that what works from the one works from the other.
    """
    if importlib.util.find_spec("hatchling") is None:
        assert os.environ.get("HASHES") != "required", "CI installs hatchling"
        pytest.skip("hatchling is not installed")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    build = "import hatchling.build as b; print(b.build_{kind}({folder!r}))"
    built = "\n".join(build.format(kind=kind, folder=str(tmp_path)) for kind in ("wheel", "sdist"))
    made = run(sys.executable, "-c", built, cwd=ROOT, check=True).stdout.split()
    wheel, archive = (tmp_path / next(name for name in made if name.endswith(end)) for end in (".whl", ".tar.gz"))
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty", check=True)
    python = tmp_path / "empty" / "bin" / "python"
    (packages,) = (tmp_path / "empty" / "lib").glob("python*/site-packages")
    (packages / "installed.pth").write_text(
        sysconfig.get_path("purelib"), encoding="utf-8"
    )  # its own .pth do not count
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-build-isolation")
    done = run(*pip, archive, env=clean, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(wheel) as stored:
        names = [name for name in stored.namelist() if not name.endswith("/RECORD")]
        assert {name: stored.read(name) for name in names} == {name: (packages / name).read_bytes() for name in names}
    modules = [name for name in names if name.endswith(".py")]
    assert sorted(modules) == sorted(str(file.relative_to(packages)) for file in packages.glob("giveaway/**/*.py"))
    assert len(modules) > 100
    command = tmp_path / "empty" / "bin" / "giveaway"
    assert run(command, "--version", env=clean, cwd=tmp_path).stdout == f"giveaway, version {PROJECT['version']}\n"
    where = run(python, "-c", "import giveaway; print(giveaway.__file__)", env=clean, cwd=tmp_path).stdout
    assert Path(where).is_relative_to(packages)
    done = run(command, "demo", env=clean, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"report.html", "summary.html", "scores.csv"} <= {
        path.name for path in (tmp_path / "giveaway-demo").iterdir()
    }


@pytest.mark.slow
@pytest.mark.parametrize("versions", ["3.11", "3.12", "3.13", "3.11 with the least versions"])
@pytest.mark.skipif("GIVEAWAY_PACKAGING" not in os.environ, reason="minutes each: set GIVEAWAY_PACKAGING=1")
def test_the_sdist_installs_in_an_empty_environment_and_passes_its_tests(versions, tmp_path):
    version, _, least = versions.partition(" ")
    python = tmp_path / "empty" / "bin" / "python"
    run(interpreter(version), "-m", "venv", tmp_path / "empty", check=True)
    install = (python, "-m", "pip", "install", "--quiet")
    if run(*install, "hatchling", "packaging").returncode:
        pytest.skip("no package index here")
    build = f"import hatchling.build as b; print(b.build_sdist({str(tmp_path)!r}))"
    archive = tmp_path / run(python, "-c", build, cwd=ROOT, check=True).stdout.split()[-1]
    shutil.unpack_archive(archive, tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    wanted: list[object] = ["--constraint", unpacked / "constraints.txt"]
    if least:
        lowest = [text.replace(">=", "==") + ".*" for text in PROJECT["dependencies"]]
        (tmp_path / "least.txt").write_text("\n".join(lowest), encoding="utf-8")
        wanted = ["--constraint", tmp_path / "least.txt"]
    done = run(*install, *wanted, archive, "pytest", "hypothesis")
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("the package index here has not these versions: " + done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    tested = run(python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *QUICK, cwd=unpacked)
    assert tested.returncode == 0, tested.stdout[-3000:]
    assert sys.prefix not in run(python, "-c", "import giveaway; print(giveaway.__file__)", cwd=tmp_path).stdout
