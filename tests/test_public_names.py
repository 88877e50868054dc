"""The package's own door: few names, loaded when they are asked for."""

import importlib
import json
import subprocess
import sys

import pytest

import giveaway
from tests import forked


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_few_names_and_each_is_there():
    assert len(giveaway.__all__) <= 20
    for name in giveaway.__all__:
        assert getattr(giveaway, name) is not None
    assert set(giveaway.__all__) < set(dir(giveaway))
    assert callable(giveaway.network.sketch_records)
    for module in ("giveaway.findings", "giveaway.reporting.report"):
        importlib.import_module(module)
    assert callable(giveaway.report)
    with pytest.raises(AttributeError, match="module 'giveaway' has no attribute 'nothing'"):
        _ = giveaway.nothing
    with pytest.raises(AttributeError, match="no attribute 'canaries'; it is now giveaway"):
        _ = giveaway.canaries


def test_importing_the_package_loads_nothing_heavy():
    loaded = json.loads(run_python("import json, sys, giveaway; print(json.dumps(sorted(sys.modules)))"))
    assert not {"torch", "numpy", "scipy", "sklearn", "click", "jinja2"} & set(loaded)


@pytest.mark.slow
def test_audits_run_where_only_the_numerical_libraries_are_installed():
    run_python(
        "import sys\n"
        "for name in ('tqdm', 'click', 'jinja2', 'safetensors', 'pandas', 'joblib.externals.loky', 'skops', 'bokeh'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np, giveaway as ga\n"
        "x = np.random.default_rng(0).normal(size=(20, 3))\n"
        "table = ga.audit(ga.Head(x, x[:, :1], x[:, 1], 'squared', l2=0.1), progress=True)\n"
        "assert len(table.top(3)) == 3\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("first", ["giveaway.report", "import giveaway.findings", "import giveaway.reporting.report"])
def test_functions_are_not_hidden_by_packages_of_their_name(first):
    code = f"import giveaway\n{first}\nassert callable(giveaway.audit)\nassert callable(giveaway.report)\n"
    done = forked.python("-c", code)
    assert done.returncode == 0, done.stderr
