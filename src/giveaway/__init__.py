"""Find the training records whose presence your model gives away."""

# ruff: noqa: F401 (the imports are for type checkers)
import importlib
from typing import TYPE_CHECKING, Any

from giveaway.version import VERSION

if TYPE_CHECKING:
    from giveaway import attacks, evaluation, gp, network, theory
    from giveaway.auditing.run import audit
    from giveaway.auditing.validate import validate
    from giveaway.curvature.choice import Dense, Sketch
    from giveaway.extract import from_sklearn, from_torch
    from giveaway.extract.language_models import from_causal_lm
    from giveaway.extract.text_gradients import TextCurvature
    from giveaway.gp.distinguishability import lood
    from giveaway.records import Head, LossTrace, indexed
    from giveaway.reporting.folder import report

__version__ = VERSION

_NAMES = {
    "giveaway": ("attacks", "evaluation", "gp", "network", "theory"),
    "giveaway.auditing.run": ("audit",),
    "giveaway.auditing.validate": ("validate",),
    "giveaway.curvature.choice": ("Dense", "Sketch"),
    "giveaway.extract": ("from_sklearn", "from_torch"),
    "giveaway.extract.language_models": ("from_causal_lm",),
    "giveaway.extract.text_gradients": ("TextCurvature",),
    "giveaway.gp.distinguishability": ("lood",),
    "giveaway.records": ("Head", "LossTrace", "indexed"),
    "giveaway.reporting.folder": ("report",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
_MOVED = {
    "InputError": "giveaway.checks.InputError",
    "ScoreTable": "giveaway.records.ScoreTable",
    "Signals": "giveaway.records.Signals",
    "canaries": "giveaway.findings.canaries.canaries",
    "changes": "giveaway.findings.changes.changes",
    "compare": "giveaway.validate, which takes signals too",
    "weights": "giveaway.findings.mitigation.weights",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        moved = f"; it is now {_MOVED[name]}" if name in _MOVED else ""
        raise AttributeError(f"module 'giveaway' has no attribute {name!r}{moved}")
    home = _HOMES[name]
    value = importlib.import_module(f"giveaway.{name}" if home == "giveaway" else home)
    value = value if home == "giveaway" else getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
