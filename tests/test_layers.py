"""Imports go one way: a file uses only what lies in the layers above it."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import giveaway

SOURCE = Path(giveaway.__file__).parent

# names of one layer do not use each other; below checks.py, records/ is the package of its layer
LAYERS = [
    {"version", "checks"},
    {"text"},
    {"storage"},
    {"records"},
    {"linalg", "theory"},
    {"extract"},
    {"curvature"},
    {"scores"},
    {"network", "gp", "attacks"},
    {"views", "evaluation"},
    {"auditing"},
    {"findings"},
    {"reporting"},
    {"figures", "integrations"},
    {"cli"},
    {"__main__"},
]
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}
DOORS = ("__init__", "cli")  # where imports may wait inside a function


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def project_imports(tree: ast.AST, package: tuple[str, ...], inside: bool = False) -> Iterator[tuple[int, str, bool]]:
    """Every import of the project as (line, dotted name without the root, whether it stands inside a function)."""
    for node in ast.iter_child_nodes(tree):
        deeper = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (above, node.module or "") if part)
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            root, _, rest = name.partition(".")
            if root == "giveaway":
                yield node.lineno, rest, inside
        yield from project_imports(node, package, deeper)


def violations(source: Path) -> list[str]:
    """What breaks the rule in a tree of files, as file:line and why."""
    found = []
    for path in sorted(source.rglob("*.py")):
        where = path.relative_to(source)
        own = where.parts[0].removesuffix(".py")
        if own != "__init__" and own not in DEPTH:
            found.append(f"{where}: in no layer")
            continue
        for line, name, inside in project_imports(parsed(path), ("giveaway", *where.parts[:-1])):
            other = name.split(".")[0]
            place = f"{where}:{line}"
            if inside and own not in DOORS:
                found.append(f"{place}: imports {name} inside a function")
            if own in ("__init__", other) or name == "VERSION":
                continue
            if other not in DEPTH:
                found.append(f"{place}: imports {name or 'the package'} through the package's door")
            elif DEPTH[other] >= DEPTH[own]:
                found.append(f"{place}: imports {name} from a layer that is not above {own}")
    return found


def test_the_source_keeps_the_layers():
    assert violations(SOURCE) == []


def test_no_files_import_each_other_in_a_circle():
    """Not even by imports inside functions; doors of packages, which only hand names on, are left out."""
    files = {f"giveaway.{'.'.join(p.relative_to(SOURCE).with_suffix('').parts)}": p for p in SOURCE.rglob("*.py")}
    files = {name: path for name, path in files.items() if path.name != "__init__.py"}
    imported = {}
    for name, path in files.items():
        nodes = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.ImportFrom)]
        names = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names} | {n.module for n in nodes}
        imported[name] = names & files.keys()
    assert len(list(TopologicalSorter(imported).static_order())) == len(files)


def test_every_layer_is_there():
    present = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert present - {"__init__", "__pycache__"} == set(DEPTH)


NOT_ABOVE = "from a layer that is not above"


@pytest.mark.parametrize(
    ("file", "code", "why"),
    [
        ("linalg/solve.py", "from giveaway.curvature.dense import root", f"curvature.dense.root {NOT_ABOVE}"),
        ("records/head.py", "import giveaway.auditing.run", f"auditing.run {NOT_ABOVE} records"),
        ("curvature/dense.py", "from giveaway.scores import batch", f"scores.batch {NOT_ABOVE}"),
        ("scores/batch.py", "from giveaway import evaluation", f"evaluation {NOT_ABOVE} scores"),
        ("curvature/dense.py", "from ..auditing import run", f"auditing.run {NOT_ABOVE} curvature"),
        ("curvature/dense.py", "from .. import cli", f"cli {NOT_ABOVE} curvature"),
        ("checks.py", "from .storage.files import write_text", f"{NOT_ABOVE} checks"),
        ("reporting/report.py", "if True:\n    from giveaway.cli import main", f"cli.main {NOT_ABOVE} reporting"),
        ("auditing/run.py", "from giveaway import Head", "imports Head through the package's door"),
        ("auditing/run.py", "import giveaway", "imports the package through the package's door"),
        (
            "auditing/run.py",
            "def f():\n    from giveaway.scores import fused",
            "imports scores.fused inside a function",
        ),
        ("auditing/run.py", "class A:\n    def f(self):\n        import giveaway.checks", "imports checks inside a"),
        ("utils/misc.py", "", "in no layer"),
        ("curvature/dense.py", "from giveaway.records import Head\nfrom giveaway.curvature.losses import Loss", None),
        ("curvature/dense.py", "from . import blocks", None),
        ("curvature/dense.py", "def f():\n    import numpy", None),
        ("cli.py", "from giveaway.version import VERSION\ndef f():\n    from giveaway.auditing.run import audit", None),
        ("__init__.py", "def f():\n    from giveaway.cli import main", None),
    ],
)
def test_a_violation_is_found_and_nothing_else(tmp_path, file, code, why):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    found = violations(tmp_path)
    assert len(found) == (why is not None)
    assert all(line.startswith(file) and why in line for line in found)
