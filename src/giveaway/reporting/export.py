"""What an audit says, for where it goes next: a model card, a record for a data-release committee, a run of MLflow.

All of it is what summary.html shares: no ids, rounded counts, and what was measured, predicted and assumed kept apart.
"""

import datetime
import importlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from giveaway.checks import fail
from giveaway.findings.gate import FILE as VERDICT
from giveaway.findings.gate import Rules, Verdict, judge
from giveaway.records.meta import Meta, Provenance
from giveaway.reporting.answers import LIMITS
from giveaway.reporting.folder import audited_table
from giveaway.reporting.pages import coarse, page, summary, summary_pages
from giveaway.reporting.validation import StoredValidation
from giveaway.reporting.words import shared_count
from giveaway.text import shown_text
from giveaway.version import VERSION

SCHEMA = "giveaway.record/1"
NO_DIGESTS = (
    "audit.json, which is restricted, holds the digest of the inputs under this audit number. It is not repeated here, "
    "because it can confirm a guess at a record; nor is that of the weights, unless the attacker has them."
)
COUNTED = ("records", "confidence", "false_discovery_rate", "effect_size_above", "power_at_twice_that")
NOT_IN_NAMES = re.compile(r"[^\w.\- /]")  # of metrics in MLflow


def record(folder: str | Path, *, by: str | None = None, rules: Rules | None = None) -> dict[str, Any]:
    """Return what may be shared of an audit, for machines: `by` whom, and judged by `rules` (`read_rules`) today."""
    table, measured = audited_table(folder), StoredValidation.load(folder)
    if rules is None and (Path(folder) / VERDICT).is_file():
        raise fail("gate", "the rules that this audit was judged by", "none", "name them with --gate RULE.toml")
    today, found = datetime.date.today(), summary(table, measured)
    origin, predicted, stands = table.meta.provenance or Provenance(), table.meta.predicted_share, found["standing"]
    weights = origin.weights_sha256 if found["access"] == "weights" else None
    share = None if predicted is None else {"words": list(predicted.words), "held_out": coarse(predicted.held_out)}
    verdict = None if rules is None else judge(rules, folder, today)
    about = ("title", "unit", "rows", "records", "loss", "access", "ranked_by")
    return {
        "schema": SCHEMA,
        "statement": found["statement"],
        "limits": LIMITS,
        "by": None if by is None else shown_text(by, 200),
        "date": today.isoformat(),
        "audit": {"number": origin.audit, "date": found["date"], **{name: found[name] for name in about}},
        "measured": {"words": stands["Measured"], "attack": None if measured is None else _attack(found["validation"])},
        "predicted": {
            "words": stands["Predicted, not measured"],
            "share_exposed": share,
            "mean_success": found.get("mean_predicted_success"),
            "success_by": table.meta.predicted_by,
            "spread_over": found["spread_over"],
            "found_on_benchmarks": found["found_on_benchmarks"] or None,
        },
        "assumed": {"words": stands["Assumed"]},
        "notes": found["notes"],
        "risk_appetite": None if verdict is None else _judged(verdict),
        "provenance": {"versions": found["versions"], "weights_sha256": weights, "digests": NO_DIGESTS},
    }


def _attack(shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the summary says of the shadow models, without what they flagged one by one."""
    return {
        "models": shared["models"],
        "records": shared["records"],
        "at_least_exposed": {name: shared["at_least_exposed"][name] for name in COUNTED},
        "lira": {name: value for name, value in shared["lira"].items() if name != "nonmembers"},
        "agreement": shared["agreement"],
    }


def _judged(verdict: Verdict) -> dict[str, Any]:
    """Return the state of every rule, and what it allows, without what was counted."""
    rules = []
    for outcome in verdict.outcomes:
        waiver = outcome.to_json()["waiver"]
        stated = {"name": outcome.rule.name, "measure": outcome.rule.measure, "allowed": outcome.rule.limits}
        rules.append({**stated, "state": outcome.state, "waiver": None if outcome.state == "met" else waiver})
    note = "A rule that is met says that these numbers are within these limits, no more."
    told = {"state": verdict.state, "date": verdict.today.isoformat(), "rules_sha256": verdict.rules_digest}
    return {**told, "rules": rules, "note": note}


def json_record(told: Mapping[str, Any]) -> str:
    """Write a record as JSON, in ASCII: text of others hides nothing in it."""
    return json.dumps(told, indent=2, allow_nan=False) + "\n"


def model_card(told: Mapping[str, Any]) -> str:
    """Write a record as a section of a model card, in Markdown."""
    audit, versions = told["audit"], told["provenance"]["versions"] or {}
    shown = {"rows": shared_count(audit["rows"] or 0), "version": versions.get("giveaway", VERSION)}
    return page("model_card.md", told=told, **shown, **Meta(unit=audit["unit"], loss=audit["loss"]).nouns) + "\n"


def metrics(told: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record under names that say whether they were measured or predicted."""
    stated = told["predicted"]
    # a theory of the last layer alone is far too low for networks: a bare number would hide that
    predicted = {"mean_success": stated["mean_success"] if stated["success_by"] == "both views" else None}
    counts: dict[str, Any] = {name: told["audit"][name] for name in ("rows", "records")}
    if (judged := told["risk_appetite"]) is not None:
        states = [rule["state"] for rule in judged["rules"]]
        counts["rules"] = {state.replace(" ", "_"): states.count(state) for state in ("met", "waived", "not met")}
    return _numbers({"giveaway": {**counts, "measured": told["measured"]["attack"], "predicted": predicted}})


def _numbers(value: Any, name: str = "") -> dict[str, float]:
    """Return the numbers of nested JSON by their dotted names; an interval is a number with `.low` and `.high`."""
    if isinstance(value, list) and len(value) == 3:
        value = dict(zip(("", "low", "high"), value, strict=True))
    if isinstance(value, Mapping):
        inner = (_numbers(each, f"{name}.{key}".strip(".")) for key, each in value.items())
        return {key: number for numbers in inner for key, number in numbers.items()}
    return {NOT_IN_NAMES.sub("_", name): float(value)} if isinstance(value, int | float) else {}


def to_mlflow(folder: str | Path, *, by: str | None = None, rules: Rules | None = None) -> tuple[str, dict[str, float]]:
    """Log metrics and pages of an audit to the active run, the one that MLFLOW_RUN_ID names, or a new one.

    Returns the id of the run and the metrics.
    """
    try:
        mlflow = importlib.import_module("mlflow")
    except ImportError as error:
        raise fail("to", "mlflow installed for 'mlflow'", "none", "pip install mlflow") from error
    told = record(folder, by=by, rules=rules)
    pages = summary_pages(audited_table(folder), StoredValidation.load(folder))
    pages |= {"record.json": json_record(told), "model_card.md": model_card(told)}
    active, numbers = mlflow.active_run(), metrics(told)
    run = os.environ.get("MLFLOW_RUN_ID") if active is None else active.info.run_id
    try:
        if run is None:
            with mlflow.start_run(run_name=f"giveaway {told['audit']['number'] or ''}".strip()) as started:
                run = started.info.run_id
        mlflow.log_metrics(numbers, run_id=run)
        for name, text in pages.items():
            mlflow.log_text(text, f"giveaway/{name}", run_id=run)
        mlflow.MlflowClient().set_tag(run, "giveaway.statement", told["statement"])
    except mlflow.exceptions.MlflowException as error:
        expected, remedy = "a run that MLflow can write", "check MLFLOW_TRACKING_URI and MLFLOW_RUN_ID"
        raise fail("to", expected, shown_text(error, 300), remedy) from error
    return run, numbers
