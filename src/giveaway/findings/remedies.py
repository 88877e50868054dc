"""The remedies that a training can try: changes of its settings, of the records it gets, or of their weights.

A function is offered what its keywords allow, an estimator what its parameters allow. What neither can try is told,
with the keyword that is missing.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter

from giveaway.attacks.retraining import Retraining
from giveaway.checks import fail, nearest
from giveaway.extract.sklearn_fits import predicting_step

PENALTIES = ("l2", "weight_decay", "C", "alpha", "l2_regularization", "reg_lambda", "l2_leaf_reg")
FROM_NOTHING = {name: (1.0, 10.0) for name in PENALTIES[4:]}  # where there is no penalty yet; others are weight decays
STOPS = ("epochs", "max_iter", "n_estimators")
TREES = ("min_samples_leaf", "max_depth")
PENALTY, STOP, SMALLER, PRIVATE = "stronger penalty", "early stop", "smaller trees", "DP-SGD"
DROPPED, WEIGHTED, YOURS, AS_IT_IS = "most exposed left out", "most exposed count less", "yours", "as it is"
KINDS = {**dict.fromkeys(PENALTIES, PENALTY), **dict.fromkeys(STOPS, STOP), **dict.fromkeys(TREES, SMALLER)}
KINDS |= {"epsilon": PRIVATE, "drop": DROPPED}
OF_FUNCTION = {PENALTY: "l2", STOP: "epochs", WEIGHTED: "sample_weight", PRIVATE: "epsilon"}  # the keyword of each
DROP = (0.01, 0.05)  # shares of the records
EPSILONS = (8.0, 3.0, 1.0)


@dataclass(frozen=True)
class Remedy:
    """A change of how a model is trained; `drop` is the share of the records, the most exposed, that it leaves out."""

    kind: str
    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    drop: float = 0.0
    weighted: bool = False

    def applied(self, training: Retraining, weights: np.ndarray | None) -> Retraining:
        """Return the training with this remedy; which records it leaves out is up to who trains."""
        told = {"remedy": {"drop": self.drop, **{name: repr(value) for name, value in self.settings.items()}}}
        changed = replace(training, fingerprint={**training.fingerprint, **told})
        if weights is not None:
            own = training.sample_weight
            return replace(changed, sample_weight=weights if own is None else own * weights)
        if training.is_estimator:
            return replace(changed, model=clone(training.model).set_params(**self.settings))
        return replace(changed, model=partial(training.model, **self.settings)) if self.settings else changed


def remedies(
    training: Retraining, *, tried: Mapping[str, Sequence[Any]] | None = None, weighted: bool = True
) -> tuple[list[Remedy], dict[str, str]]:
    """Return what this training can try, beginning with itself as it is, and why it cannot try the rest.

    tried : values for keywords or parameters, in place of the usual ones or besides.
    weighted : whether there are weights to try (the audit of a linear head has the columns they come from).

    >>> def train(rows, seed, l2=0.1): ...
    >>> found, missing = remedies(Retraining(train, y=[0, 1, 0, 1]))
    >>> [remedy.label for remedy in found]
    ['as it is', 'l2=1', 'l2=10', 'without the 1 % most exposed', 'without the 5 % most exposed']
    >>> missing["DP-SGD"]
    'epsilon= is no keyword of your function'
    """
    known, prefix = _settings(training)
    deep = tuple(training.model.get_params()) if training.is_estimator else ()
    chosen: dict[str, Sequence[Any]] = {
        name: own for name, current in known.items() if name in KINDS and (own := usual(name, current))
    }
    chosen["drop"] = DROP
    for name, values in (tried or {}).items():
        if name not in known and name not in ("drop", *deep):
            whose = "a parameter of your estimator" if training.is_estimator else "a keyword of your function"
            raise fail("try", whose, repr(name), nearest(name, [*known, "drop"]))
        chosen[name] = tuple(values)
    found = [Remedy(AS_IT_IS, AS_IT_IS)]
    for name, values in sorted(chosen.items(), key=lambda one: [*KINDS, one[0]].index(one[0])):
        for value in values:
            if name == "drop":
                if not isinstance(value, float) or not 0 < value < 1:
                    raise fail("try", "a share of the records above 0 and below 1 for drop", repr(value), "give 0.05")
                found.append(Remedy(DROPPED, f"without the {100 * value:.3g} % most exposed", drop=value))
            else:
                at = name if name in deep else prefix + name
                shown = f"{value:.4g}" if isinstance(value, float) else str(value)
                found.append(Remedy(KINDS.get(name, YOURS), f"{name}={shown}", {at: value}))
    takes = "sample_weight" in known
    if training.is_estimator:
        takes = has_fit_parameter(predicting_step(training.model)[0], "sample_weight")
    if takes and weighted:
        found.append(Remedy(WEIGHTED, WEIGHTED, weighted=True))
    found.sort(key=lambda remedy: remedy.kind == PRIVATE)  # it takes longest
    return found, _missing(training, known, {remedy.kind for remedy in found}, takes)


def usual(name: str, current: Any) -> tuple[Any, ...]:
    """Return values of a setting that should expose records less than the current one; none where it cannot be told."""
    number = isinstance(current, int | float) and not isinstance(current, bool)
    if name == "epsilon":
        return EPSILONS
    if name == "C":
        return () if not number else (1.0, 0.1) if current == math.inf else (current / 10, current / 100)
    if name == "reg_lambda" and current is None:
        return 10.0, 100.0  # XGBoost's own is 1
    if name in PENALTIES:
        return (10.0 * current, 100.0 * current) if number and current > 0 else FROM_NOTHING.get(name, (1e-3, 1e-2))
    if name == "max_depth":
        return (12, 6) if current is None else (current // 2,) if number and current > 1 else ()
    if name == "min_samples_leaf":
        return (5 * current, 20 * current) if isinstance(current, int) else ()
    return tuple(dict.fromkeys((current // 2, current // 4))) if number and current >= 4 else ()


def _settings(training: Retraining) -> tuple[dict[str, Any], str]:
    """Return the settings that a training takes with their values, and what set_params wants before their names."""
    if not training.is_estimator:
        parameters = list(inspect.signature(training.model).parameters.values())[2:]
        named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        return {one.name: one.default for one in named if one.name != "device"}, ""
    last, prefix = predicting_step(training.model)
    known = last.get_params(deep=False)
    learns = any(name.startswith("learning_rate") for name in known)  # other solvers go on to the optimum
    off = {"epsilon"}  # that one is Adam's
    off |= set() if learns else set(STOPS)
    off |= {"C", "alpha"} if known.get("penalty", "") is None else set()  # which are ignored then
    off |= set() if "min_samples_leaf" in known else {"max_depth"}
    return {name: value for name, value in known.items() if name not in off}, prefix


def _missing(training: Retraining, known: Mapping[str, Any], there: set[str], takes_weights: bool) -> dict[str, str]:
    """Say why a kind of remedy is not tried."""
    missing = {}
    for kind, keyword in OF_FUNCTION.items():
        if kind in there:
            continue
        if kind == WEIGHTED and takes_weights:
            missing[kind] = "weights come from newton and influence, which the audit of a linear head has"
        elif not training.is_estimator:
            why = "has no number as its default" if keyword in known else "is no keyword of your function"
            missing[kind] = f"{keyword}= {why}"
        elif kind == PRIVATE:
            missing[kind] = "scikit-learn has none; a function of yours that takes epsilon= can try it (--train)"
        elif kind == PENALTY and known.get("penalty", "") is None:
            missing[kind] = "its penalty is None: name another with --try penalty=l2"
        elif kind == STOP and (unset := [name for name in STOPS if name in known]):
            missing[kind] = f"its {unset[0]} is {known[unset[0]]}: name values with --try {unset[0]}=50,100"
        else:
            missing[kind] = f"{training.name} has no setting for it"
    return missing
