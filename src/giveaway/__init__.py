"""Find the training records whose presence your model gives away."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from giveaway.version import VERSION

if TYPE_CHECKING:
    from giveaway import attacks, evaluation, figures, gp, network, theory
    from giveaway.auditing.run import audit
    from giveaway.auditing.validate import validate
    from giveaway.checks import InputError
    from giveaway.extract import from_sklearn, from_torch
    from giveaway.findings.canaries import canaries
    from giveaway.findings.changes import changes
    from giveaway.findings.mitigation import weights
    from giveaway.gp.distinguishability import lood
    from giveaway.records import Head, ScoreTable, Signals
    from giveaway.reporting.report import report

__version__ = VERSION

_HOMES = {
    "Head": "giveaway.records",
    "InputError": "giveaway.checks",
    "ScoreTable": "giveaway.records",
    "Signals": "giveaway.records",
    "attacks": "giveaway.attacks",
    "audit": "giveaway.auditing.run",
    "canaries": "giveaway.findings.canaries",
    "changes": "giveaway.findings.changes",
    "evaluation": "giveaway.evaluation",
    "figures": "giveaway.figures",
    "from_sklearn": "giveaway.extract",
    "from_torch": "giveaway.extract",
    "gp": "giveaway.gp",
    "lood": "giveaway.gp.distinguishability",
    "network": "giveaway.network",
    "report": "giveaway.reporting.report",
    "theory": "giveaway.theory",
    "validate": "giveaway.auditing.validate",
    "weights": "giveaway.findings.mitigation",
}

__all__ = [
    "Head",
    "InputError",
    "ScoreTable",
    "Signals",
    "attacks",
    "audit",
    "canaries",
    "changes",
    "evaluation",
    "figures",
    "from_sklearn",
    "from_torch",
    "gp",
    "lood",
    "network",
    "report",
    "theory",
    "validate",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'giveaway' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    value = home if _HOMES[name] == f"giveaway.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
