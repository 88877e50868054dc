"""The signals of `giveaway validate`: stored ones, or those of shadow models that are trained as its options say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier
from torch.utils.data import DataLoader, Dataset

from giveaway.attacks.retraining import Retraining
from giveaway.attacks.shadow import first_model, train_shadows
from giveaway.attacks.slices import collect_slices
from giveaway.auditing.validate import LEAST_MODELS, checked_training
from giveaway.checks import check_choice, check_whole, fail
from giveaway.cli.source import Options, device_named
from giveaway.extract import from_file
from giveaway.extract.model_records import read_records
from giveaway.extract.user_files import call_factory, load_estimator, named_function, records_from, signals_from
from giveaway.records import ScoreTable, Signals
from giveaway.records.signals import MARKER
from giveaway.text import human_seconds, parts_of, say

MODELS = 64
WAYS: tuple[str, ...] = ("train", "estimator", "recipe")
OF_TRAINING = dict.fromkeys(("data", "models", "only", "device", "workers", "dry_run", "allow_pickle"), WAYS)
OF_TRAINING |= {"device": ("train",), "allow_pickle": ("estimator",)}  # options, and the ways that they stand beside
RECIPES = {  # what stands in where the audited model cannot be trained again
    "ridge": Ridge(),
    "logistic": LogisticRegression(max_iter=10_000),
    "mlp": MLPClassifier((64, 64), max_iter=1_000),
}
TAKEN_AS = {
    "probabilities": "Outputs are taken as probabilities: none is negative, and those of a record sum to 1.",
    "logits": "Outputs are taken as logits, one for each class.",
    "phi": "One output a record is taken as the log-odds of the second class.",
    "squared_error": "Predictions are held against the targets: squared errors.",
}
OF_TEXTS = "What a model says of a text is the mean log-likelihood of its tokens."
OF_FEATURES = (
    " They are trained on the features of the audit. If these are of a network that was trained on the same "
    "records, the count leaves out what that network gives away: name the records themselves (--data)."
)


def signals_named(options: Options, table: ScoreTable) -> tuple[Signals | None, str | None]:
    """Return the signals that the options name, training what is missing of them, and say what was trained.

    With `dry_run` only the first model is trained, and what the others would take is said; with `only` a slice.
    """
    audited, named = _audited(table), _ways(options)
    taken_as = TAKEN_AS | ({"phi": OF_TEXTS} if table.meta.loss == "tokens" else {})
    if options.get("collect"):
        if beside := [name for name in (*WAYS, *OF_TRAINING) if name in options]:
            raise fail("collect", "no training beside it", f"--{beside[0]}", f"drop --{beside[0]}, or --collect")
        signals, about = collect_slices(options["signals"])
        options.update(about)
        return signals, about.get("trained") and f"{about['trained']} {taken_as[signals.kind]}"
    if not named and "models" in options and "estimator" in audited:
        options, named = {**options, "estimator": audited["estimator"]}, ["estimator"]
    for name, ways in OF_TRAINING.items():
        if name in options and not {*named} & {*ways}:
            got, needed = f"--{named[0]}" if named else "none", " or ".join(f"--{way}" for way in ways)
            raise fail(name, f"{needed} beside it", got, f"drop --{name.replace('_', '-')}, or say what to train")
    if not named:
        path = options["signals"]
        if not (Path(path) / MARKER if Path(path).is_dir() else Path(path)).exists():
            remedy = "train them: --train module:function, --estimator FILE or --recipe NAME"
            if "estimator" in audited:
                remedy = f"train them: --models {MODELS} for clones of the audited estimator, or --train NAME"
            raise fail("signals", "signals of shadow models", f"none in {path}", remedy)
        return signals_from(path), None
    if "target_model" in options:
        expected, got = "signals that hold the audited model", f"--{named[0]}, which trains others"
        raise fail("target_model", expected, got, f"drop --target-model, or --{named[0]}")
    models = _how_many(options)
    place: Options = {"models": models, "folder": options["signals"], "seed": options["seed"]}
    training, trained = _training(options, audited, table)
    training, digests = checked_training(training, table)
    only = _slice(options)
    if options.get("dry_run"):
        seconds, missing = first_model(training, **place)
        took = f"the first took {human_seconds(seconds)} and is kept"
        ahead = human_seconds(seconds * missing / max(1, training.workers))
        return None, f"About {ahead} for the {missing} of {models} models that are missing: {took}."
    about = {"trained": trained} | {name: options[name] for name in ("recipe",) if name in options}
    with parts_of(enabled=True, work="shadow models", unit="model") as on_model:
        signals = train_shadows(training, **place, only=only, digests=digests, about=about, on_model=on_model)
    if only is not None:
        return None, f"Models {only.start} to {only.stop - 1} of {models} are trained; --collect joins all slices."
    return signals, f"{trained} {taken_as[signals.kind]}"


def _how_many(options: Options) -> int:
    """Return the number of models to train: never fewer than are there already, which would take their place."""
    there = Signals.load(options["signals"]).models if (Path(options["signals"]) / MARKER).exists() else 0
    models = check_whole("models", options.get("models", max(MODELS, there)), LEAST_MODELS, remedy="fewer show nothing")
    if models < there:
        remedy = "leave --models out, which takes all of them, or name another folder for --signals"
        raise fail("models", f"at least the {there} that are there already", str(models), remedy)
    return models


def _slice(options: Options) -> range | None:
    if "only" not in options:
        return None
    numbers = re.fullmatch(r"(\d{1,6}):(\d{1,6})", options["only"])
    if numbers is None or options.get("dry_run"):
        got = repr(options["only"]) if numbers is None else "--dry-run beside it"
        raise fail("only", "A:B as in 32:64", got, "name the first model and the one after the last; drop --dry-run")
    return range(int(numbers[1]), int(numbers[2]))


def training_named(options: Options, table: ScoreTable) -> Retraining:
    """Return how the audited model is trained, as the options name it or by its own estimator."""
    audited = _audited(table)
    if not _ways(options):
        if "estimator" not in audited:
            remedy = "name a function of yours that trains it: --train module:function"
            raise fail("train", "--train or --estimator", "none, and no estimator in the audit", remedy)
        options = {**options, "estimator": audited["estimator"]}
    return _training(options, audited, table)[0]


def _audited(table: ScoreTable) -> dict[str, str]:
    """Return the options of the audit that are text."""
    config = table.meta.provenance.config if table.meta.provenance is not None else {}
    return {name: value for name, value in dict(config).items() if isinstance(value, str)}


def _ways(options: Options) -> list[str]:
    named = [way for way in WAYS if way in options]
    if len(named) > 1:
        raise fail(named[1], "one way to train", " and ".join(f"--{way}" for way in named), "drop one of them")
    return named


def _training(options: Options, audited: Mapping[str, Any], table: ScoreTable) -> tuple[Retraining, str]:
    device = device_named(options.get("device"))
    run: Options = {"workers": options.get("workers", 1), "devices": () if device is None else (str(device),)}
    if (name := options.get("train")) is not None:
        say(f"Running your code: {name}", err=True)
        training = Retraining(named_function("train", name), *_data(options, audited, table), **run)
        return training, f"The shadow models are trained by your function {name}."
    if (recipe := options.get("recipe")) is not None:
        given = RECIPES[check_choice("recipe", recipe, RECIPES)]
    else:
        given = load_estimator(options["estimator"], allow_pickle=bool(options.get("allow_pickle")))
    X, y = _data(options, audited, table)
    if recipe is not None and getattr(X, "ndim", 0) != 2:
        got = "none" if X is None else f"a {type(X).__name__} of {getattr(X, 'ndim', 'unknown')} dimensions"
        raise fail("data", "a matrix of numbers beside --recipe", got, "name a function that returns (X, y)")
    training = Retraining(given, X, y, **run)
    kind, like = training.name, table.meta.model
    said = f"clones of a {kind} with the same settings" if recipe is None else f"{kind}s of giveaway's recipe {recipe}"
    if type(given).__name__ != type(training.model).__name__:
        said += f", the best that {type(given).__name__} found; the search is not repeated"
    if like not in (None, kind):
        said += f"; the audited model is a {like}: the count is of {kind} models"
    elif recipe is not None:
        said += "; the count is of these, whose settings need not be those of the audited model"
    on_features = not {"data", "inputs"} & {*options, *audited}
    return training, f"The shadow models are {said}.{OF_FEATURES if on_features else ''}"


def _data(options: Options, audited: Mapping[str, Any], table: ScoreTable) -> tuple[Any, Any]:
    """Return the records and their targets as far as the options, or those of the audit, name them."""
    if table.meta.loss == "tokens":  # whose function says what its model makes of every text
        return None, None
    if (name := options.get("data", audited.get("data"))) is not None:
        say(f"Running your code: {name}", err=True)
        data = call_factory("data", name)
        if isinstance(data, tuple) and len(data) == 2:
            return data
        if not isinstance(data, DataLoader | Dataset):
            raise fail("data", "a function that returns (X, y) or a Dataset", type(data).__name__, "return both")
        if "train" in options and "class" in table.attributes:
            return data, None
        records = read_records(data, torch.device("cpu"), torch.float32)
        X = data if "train" in options else records.arguments[0].numpy() if records.arguments else None
        return X, records.targets.numpy()
    if "features" in audited and ("train" not in options or table.meta.loss == "squared"):
        head, _ = from_file(audited["features"])
        if "inputs" in audited:
            records = records_from(audited["inputs"])
            return records.reshape(len(records), -1), head.targets.numpy()
        return head.features if head.linear else None, head.targets.numpy()
    if "train" not in options:
        raise fail("data", "--data module:function", "none, and none in the audit", "name your data set")
    return None, None
