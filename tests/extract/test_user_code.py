import pickle
import sys
import warnings

import joblib
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

from giveaway.checks import InputError
from giveaway.extract import from_sklearn
from giveaway.extract.torch_model import load_weights
from giveaway.extract.user_files import call_factory, load_estimator
from tests.conftest import refused
from tests.extract.examples import Bomb

SOURCE = """
import random
answer = 42
class Net:
    pass
def make(): return "made"
def make_with_defaults(width=3, *rest, **options): return width
def build(width, *, depth): return width
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with modules of the user's, and an interpreter that forgets them afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_models.py").write_text(SOURCE)
    (tmp_path / "my_broken.py").write_text("import not_installed_anywhere")
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("")
    (tmp_path / "my_package" / "inner.py").write_text(SOURCE)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


# module:function


def test_functions_of_the_working_folder_are_called(folder):
    assert call_factory("model", "my_models:make") == "made"
    assert call_factory("model", "my_package.inner:make") == "made"
    assert call_factory("model", "my_models:make_with_defaults") == 3
    assert type(call_factory("model", "my_models:Net")).__name__ == "Net"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("my_models", "model: expected module:function, got 'my_models'; name a function of yours"),
        ("my_models:", "expected module:function, got 'my_models:'"),
        (":make", "expected module:function, got ':make'"),
        ("./my_models:make", "expected module:function, got './my_models:make'"),
        (".my_models:make", "expected module:function, got '.my_models:make'"),
        ("my_modles:make", "a module that can be imported, got 'my_modles'; run from the folder that holds it"),
        ("my_models.py:make", r"a module that can be imported, got 'my_models.py'; run .* and leave out .py"),
        ("my_package.outer:make", "a module that can be imported, got 'my_package.outer'"),
        ("my_broken:make", "got 'my_broken', which imports 'not_installed_anywhere'; install not_installed_anywhere"),
        ("my_models:mak", r"model: expected a function of my_models, got 'mak'; did you mean make\?"),
        ("my_models:answer", "expected a function of my_models, got 'answer'; choose from Net, make"),
        ("my_models:build", "a function without arguments, got 'build', which needs 2; wrap it in one"),
    ],
)
def test_references_that_lead_nowhere(folder, reference, words):
    refused(words, call_factory, "model", reference)


def test_what_the_users_function_raises_is_left_alone(folder):
    (folder / "my_models.py").write_text("def make(): raise OSError('no data here')")
    with pytest.raises(OSError, match="no data here"):
        call_factory("data", "my_models:make")


# Weights


@pytest.fixture
def trained():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.fixture
def fresh():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def saved(kind, net, folder):
    path = folder / {"safetensors": "w.safetensors", "exported": "w.pt2"}.get(kind, "w.pt")
    state = net.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "safetensors":
            save_file(state, path)
        elif kind == "script":
            torch.jit.script(net).save(path)
        elif kind == "exported":
            torch.export.save(torch.export.export(net, (torch.zeros(1, 4),)), path)
        else:
            forms = {
                "state": state,
                "lightning": {"state_dict": state, "epoch": 3},
                "tutorial": {"model_state_dict": state, "optimizer_state_dict": {"state": {}}},
                "parallel": {f"module.{name}": value for name, value in state.items()},
                "compiled": {f"_orig_mod.module.{name}": value for name, value in state.items()},
                "attribute": {
                    "pytorch-lightning_version": "2.5.0",
                    "state_dict": {f"model.{name}": value for name, value in state.items()}
                    | {"metric.sum": torch.ones(1)},
                    "hyper_parameters": {"lr": 0.1},
                },
                "module": net,
                "with_numpy": {"state_dict": state, "score": np.float64(0.5)},
            }
            torch.save(forms[kind], path)
    return path


def assert_same_weights(model, other):
    for name, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_of_a_lightning_module_the_attribute_that_is_the_model_is_taken(tmp_path, trained, fresh):
    said, path = [], saved("attribute", trained, tmp_path)
    load_weights(fresh, path, say=said.append)
    assert_same_weights(fresh, trained)
    assert said == ["note: a Lightning checkpoint: weights under 'model.'; hyper-parameters and 1 other arrays ignored"]
    stored = torch.load(path)
    stored["state_dict"] |= {f"average.{name}": value for name, value in trained.state_dict().items()}
    torch.save(stored, path)
    words = r"expected one attribute of the Lightning module that holds the model, got 2 of them \(average\., model\.\)"
    refused(words, load_weights, fresh, path)
    del stored["pytorch-lightning_version"]
    torch.save(stored, path)
    refused("got 4 missing .*, 9 unknown", load_weights, fresh, path)


@pytest.mark.parametrize("kind", ["state", "lightning", "tutorial", "parallel", "compiled", "safetensors"])
def test_weights_are_read_without_pickle(tmp_path, trained, fresh, kind):
    assert load_weights(fresh, saved(kind, trained, tmp_path)) is fresh
    assert_same_weights(fresh, trained)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["module", "script", "exported", "with_numpy"])
def test_weights_with_code_need_the_flag(tmp_path, trained, fresh, kind):
    path = saved(kind, trained, tmp_path)
    words = rf"weights: expected a plain state dict, got {path.name}, which needs pickle; save model.state_dict\(\), or"
    refused(words + r" trust it with --allow-pickle", load_weights, fresh, path)
    load_weights(fresh, path, allow_pickle=True)
    assert_same_weights(fresh, trained)


def test_a_pickle_among_the_weights_is_refused_unread(tmp_path, fresh):
    torch.save({"0.weight": Bomb(tmp_path / "exploded")}, tmp_path / "w.pt")
    refused(r"got w.pt, which needs pickle", load_weights, fresh, tmp_path / "w.pt")
    assert not (tmp_path / "exploded").exists()


def fail_in_its_own_way():
    raise RuntimeError("GLOBAL state is missing")


class Grumpy:
    def __reduce__(self):
        return fail_in_its_own_way, ()


def test_trusted_weights_that_fail_are_not_to_be_trusted_again(tmp_path, fresh):
    torch.save({"0.weight": Grumpy()}, tmp_path / "w.pt")
    refused(r"which needs pickle; .*--allow-pickle", load_weights, fresh, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"expected a whole file of torch.save, got w.pt, truncated or not"):
        load_weights(fresh, tmp_path / "w.pt", allow_pickle=True)


@pytest.mark.parametrize("allow_pickle", [False, True])
@pytest.mark.parametrize(("kind", "named"), [("state", "file of torch.save"), ("safetensors", "safetensors file")])
def test_truncated_weights(tmp_path, trained, fresh, kind, named, allow_pickle):
    path = saved(kind, trained, tmp_path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        words = f"weights: expected a whole {named}, got {path.name}, truncated or not of that format; write the file"
        refused(words, load_weights, fresh, path, allow_pickle=allow_pickle)


def test_damaged_weights_fail_in_one_line_whatever_the_damage(tmp_path, trained, fresh):
    path = saved("state", trained, tmp_path)
    whole = path.read_bytes()
    errors = []
    for at in range(0, len(whole), 17):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            load_weights(fresh, path)  # a changed weight passes, anything else but an InputError fails the test
        except InputError as error:
            errors.append(str(error))
    assert len(errors) > 20
    assert not any("\n" in error for error in errors)


def test_weights_of_another_model(tmp_path, trained):
    path = saved("state", trained, tmp_path)
    words = r"weights: expected the parameters of Sequential, got 2 missing \(first 1.weight\), 2 unknown \(first "
    words += r"2.weight\), 1 of another shape \(first 0.weight\); use the function that made the model"
    refused(words, load_weights, nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2)), path)
    torch.save([1, 2], path)
    refused(r"weights: expected a state dict, got a list; save model.state_dict\(\)", load_weights, trained, path)
    torch.save({"0.weight": 1.0, "0.bias": 2.0, "2.weight": 3.0, "2.bias": 4.0}, path)
    refused(r"weights: expected the parameters of Sequential, got 4 of another shape", load_weights, trained, path)
    refused(r"model: expected a torch.nn.Module, got str; return the model from the", load_weights, "model", path)


def test_weights_that_are_not_there(tmp_path, fresh):
    for path in (tmp_path / "absent.pt", tmp_path):
        refused(r"weights: expected a file that exists, got .*; check the path", load_weights, fresh, path)


# Estimators


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, 3)), np.arange(40) % 3


def dumped(estimator, path):
    pytest.importorskip("skops.io", reason="extra safe (skops) is not installed").dump(estimator, path)
    return path


def log_of_size(X):
    return np.log1p(np.abs(X))


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(),
        make_pipeline(StandardScaler(), LogisticRegression()),
        MLPClassifier(hidden_layer_sizes=(4,), max_iter=3, random_state=0),
        MLPClassifier(hidden_layer_sizes=(4,), max_iter=3, random_state=0, solver="sgd"),
    ],
    ids=["logistic", "pipeline", "adam", "sgd"],
)
def test_estimators_come_back_from_skops(tmp_path, data, estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(*data)
    again = load_estimator(dumped(estimator, tmp_path / "model.skops"))
    head, same = from_sklearn(again, *data), from_sklearn(estimator, *data)
    assert torch.equal(head.outputs, same.outputs)
    assert head.l2 == same.l2


@pytest.mark.parametrize("suffix", [".pkl", ".pickle", ".joblib"])
def test_pickled_estimators_need_the_flag(tmp_path, data, suffix):
    path = tmp_path / f"model{suffix}"
    estimator = LogisticRegression().fit(*data)
    if suffix == ".joblib":
        joblib.dump(estimator, path, compress=3)
    else:
        path.write_bytes(pickle.dumps(estimator))
    words = rf"estimator: expected a .skops file, got model{suffix}, which needs pickle; save it with skops.io.dump"
    refused(words + ", or trust it with --allow-pickle", load_estimator, path)
    np.testing.assert_array_equal(load_estimator(path, allow_pickle=True).coef_, estimator.coef_)


def test_a_pickled_estimator_is_refused_unread(tmp_path):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    refused("which needs pickle", load_estimator, path)
    assert not (tmp_path / "exploded").exists()


def test_types_skops_does_not_trust_are_counted_and_named(tmp_path, data):
    forest = RandomForestClassifier(2).fit(*data)
    words = r"estimator: expected types that skops trusts, got 1 unknown to it \(sklearn.tree._tree.Tree\); save the"
    refused(words, load_estimator, dumped(forest, tmp_path / "model.skops"))
    own_code = make_pipeline(FunctionTransformer(log_of_size), LogisticRegression()).fit(*data)
    path = dumped(own_code, tmp_path / "model.skops")
    refused(r"1 unknown to it \(tests.extract.test_user_code.log_of_size\); .*--allow-pi", load_estimator, path)
    np.testing.assert_array_equal(load_estimator(path, allow_pickle=True).predict(data[0]), own_code.predict(data[0]))


def test_skops_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skops.io", None)
    (tmp_path / "model.skops").touch()
    words = r"estimator: expected skops, to read .skops files, got none; pip install skops"
    refused(words, load_estimator, tmp_path / "model.skops")


def test_estimator_files_that_cannot_be_read(tmp_path, data):
    path = dumped(LogisticRegression().fit(*data), tmp_path / "model.skops")
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(r"estimator: expected a whole .skops file, got model.skops, truncated or", load_estimator, path)
    (tmp_path / "model.pkl").write_bytes(b"not a pickle")
    with pytest.raises(InputError, match=r"estimator: expected a whole .pkl file, got model.pkl, truncated or not"):
        load_estimator(tmp_path / "model.pkl", allow_pickle=True)
    with pytest.raises(InputError, match=r"expected a .skops file, or .pkl, .pickle, .joblib, got model.onnx; save it"):
        load_estimator(tmp_path / "model.onnx")
    for name in ("absent.skops", "absent.joblib"):
        with pytest.raises(InputError, match=f"estimator: expected a file that exists, got .*{name}; check the path"):
            load_estimator(tmp_path / name)


def test_a_pickle_whose_code_is_not_here_says_which(folder):
    (folder / "model.pkl").write_bytes(pickle.dumps(call_factory("model", "my_models:Net")))
    del sys.modules["my_models"]
    (folder / "my_models.py").unlink()
    words = r"a file whose code can be imported, got model.pkl, which needs my_models; run"
    refused(words, load_estimator, folder / "model.pkl", allow_pickle=True)
