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
    from giveaway.gp.distinguishability import lood
    from giveaway.records import Head, LossTrace, indexed
    from giveaway.reporting.report import report

__version__ = VERSION

_HOMES = {
    "Dense": "giveaway.curvature.choice",
    "Head": "giveaway.records",
    "LossTrace": "giveaway.records",
    "Sketch": "giveaway.curvature.choice",
    "attacks": "giveaway.attacks",
    "audit": "giveaway.auditing.run",
    "evaluation": "giveaway.evaluation",
    "from_sklearn": "giveaway.extract",
    "from_torch": "giveaway.extract",
    "gp": "giveaway.gp",
    "indexed": "giveaway.records",
    "lood": "giveaway.gp.distinguishability",
    "network": "giveaway.network",
    "report": "giveaway.reporting.report",
    "theory": "giveaway.theory",
    "validate": "giveaway.auditing.validate",
}
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
    home = importlib.import_module(_HOMES[name])
    value = home if _HOMES[name] == f"giveaway.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
