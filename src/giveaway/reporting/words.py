"""What a page may say: the headline, what stands behind it, and what a reader must know besides the numbers.

Without an attack measured on shadow models there is a ranking and never a count; what was measured, what is predicted
and what is assumed are kept apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from giveaway.auditing.second_view import LEAST_MEMORIZED
from giveaway.checks import check_choice, fail
from giveaway.findings.explain import LEAST
from giveaway.findings.measured import Measured
from giveaway.records import ScoreTable
from giveaway.reporting.depth_words import about_depths

ACCESS = {
    "labels": "the model's predicted label for it",
    "probabilities": "the model's output probabilities for it",
    "weights": "the model's weights",
}
OF_VALUES = {"probabilities": "the model's prediction for it"}  # a regression has no probabilities
FOUND = {  # docs/fused.md, README's limits: means over two audited models each
    "fused": (81, 96),
    "newton": (51, 87),
}
PREDICTED = {
    "theory of the head": (
        "predicted_* columns are estimates from theory in which only the last layer varies: not measured, no "
        "guarantee, and far too low for networks."
    ),
    "both views": (
        "predicted_* columns are estimates from both views: not measured on an attack, no guarantee; docs/fused.md "
        "says how far they were off."
    ),
}
KINDS = {"images": "patches of the images", "tabular": "columns of the table", "text": "words and letters"}
EXACT = (
    "The features are a linear function of the inputs: nothing was learned before the head, fused ranks as newton does."
)
FROZEN = (
    "Nothing before the head was trained on these records, as was said (frozen): fused ranks as newton does. If "
    "something was, fused and predicted_* do not see what it holds of them."
)
BLIND = "What the other records say is no better than a constant here: read fused with care, beside the other columns."
NO_PENALTY = "No L2 penalty: none was given (weight decay times the number of records, where the trainer had one)."
UNTRAINED = (
    "The model fits these records no better than the other records predict them: is it trained to the end, without "
    "noise, and on these records?"
)
WITHOUT_DRIFT = "newton and loo_gap take it into account, as asked; influence does not."


def access_of(table: ScoreTable, access: str | None = None) -> str:
    """The attacker's access, as asked for or as the audit was told."""
    return check_access(access or table.meta.get("access", "probabilities"), table.meta.get("loss"))


def check_access(access: str, loss: str | None) -> str:
    """A kind of access that there is to a model of this loss."""
    if check_choice("access", access, ACCESS) == "labels" and loss == "squared":
        expected = "probabilities or weights for a model of values"
        raise fail("access", expected, "labels", "a value is all there is to see")
    return access


def headline(table: ScoreTable, measured: Measured | None, access: str) -> str:
    """One paragraph: a ranking, or the count that shadow models can defend."""
    if measured is not None:
        return _counted(table, measured)
    people = f" of {len(table)} people" if table.meta.get("unit") == "person" else ""
    return (
        f"Ranking only: {table.meta.get('records', len(table))} records{people}, ordered by estimated exposure to an "
        f"attacker who holds the record and has {_access(table, access)}. No attack was measured on this model, so no "
        "number exposed is stated. A low rank is not evidence of safety, and this is no finding on anonymity or "
        "compliance."
    )


def _counted(table: ScoreTable, measured: Measured) -> str:
    count, stated = measured.stated["at_least_exposed"], measured.stated
    models, power = stated["models"], f"{count['power_at_twice_that']:.2g}"
    test = f"per-record test, {models} models, false discovery rate {100 * count['false_discovery_rate']:.3g} %"
    by_record = ""
    if table.meta.get("unit") == "person":
        by_record = (
            " Measured by record: a person with several records can be more exposed than any of them, and no count of "
            "people was made."
        )
    if not count["records"]:
        return (
            f"No record of {stated['records']} could be shown to be exposed under this training recipe, which is no "
            f"finding that none is: estimated power {power} for records told apart twice as well as with 70 % balanced "
            f"success, less for others ({test}). Train more shadow models.{by_record}"
        )
    return (
        f"At least {count['records']} of {stated['records']} records are exposed under this training recipe: "
        f"membership told with over 70 % balanced success ({test}). More may be; estimated power {power} for records "
        f"told apart twice as well as that, less for others.{by_record}"
    )


def found_elsewhere(by: str) -> str:
    """What the ranking score found on our benchmarks."""
    if by not in FOUND:
        return f"No benchmark of ours says how much of what attacks find {by} finds."
    first, second = FOUND[by]
    return (
        f"On two image sets where 200 shadow models were trained, the 5 % of records that {by} ranked highest held "
        f"{first} % (CIFAR-10) and {second} % (BloodMNIST) of the 1 % that the attack LiRA found most exposed. On "
        "another model it can be less."
    )


def standing(table: ScoreTable, measured: Measured | None, access: str) -> list[tuple[str, list[str]]]:
    """What was measured, what is predicted, what is assumed."""
    by = table.ranking()
    return [
        ("Measured", _measured(measured)),
        ("Predicted, not measured", _predicted(table, by)),
        ("Assumed", _assumed(table, access, measured)),
    ]


def _measured(measured: Measured | None) -> list[str]:
    if measured is None:
        return ["No attack. Only the model's own outputs and losses on its training records."]
    stated = measured.stated
    auc = stated["lira"]["auc"]
    return [
        f"LiRA over {stated['models']} shadow models: AUC {auc[0]:.3f} ({auc[1]:.3f} to {auc[2]:.3f}).",
        "The count above, a lower bound: records are missed where the models are few. It is about the recipe, not "
        "about this one model.",
    ]


def _predicted(table: ScoreTable, by: str) -> list[str]:
    said = [f"The order of the {_rows(table)}, by {by}: an estimate without retraining."]
    if any(name.startswith("predicted_") for name in table.columns):
        said.append(PREDICTED[table.meta.get("predicted_by") or "theory of the head"])
    return said


def _assumed(table: ScoreTable, access: str, measured: Measured | None) -> list[str]:
    said = [
        f"An attacker who holds the record, with its target, and has {_access(table, access)}.",
        {
            "labels": "Scores look at the outputs behind the labels, which tell more: for labels alone nothing was "
            "estimated, and the order may differ.",
            "probabilities": "Nothing else about the training is public.",
            "weights": "Scores look at outputs and the last layer; what weights tell beyond them was not estimated.",
        }[access],
    ]
    if table.meta.get("optimum") is not None and (table.meta.get("options") or {}).get("converged", True):
        said.append("A last layer at the optimum of its training objective.")
    if table.meta.get("l2") is not None and table.meta.get("optimum") is not None:
        given = f"An L2 penalty of {table.meta['l2']:.4g} in summed-loss units, as it was given."
        said.append(given if table.meta["l2"] else NO_PENALTY)
    if measured is not None:
        recipe = measured.stated.get("recipe")
        own = f"giveaway's recipe {recipe}" if recipe else "the training they came from"
        said.append(f"Shadow models trained as the audited model was: theirs is {own}.")
    return said


def agreement_lines(stated: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The agreement of every score with the attack, as headings and lines of text."""
    found = stated["agreement"]
    tops = [key for key in next(iter(found.values())) if key.startswith("top ")]
    heads = [_top_in_words(key) for key in tops]
    lines = [
        (name, *(_interval(values[key]) for key in [*tops, "spearman"]), _worth(values["worth_in_shadow_models"]))
        for name, values in found.items()
    ]
    return {"heads": [*heads, "Spearman", "worth in shadow models"], "lines": lines}


def _top_in_words(key: str) -> str:
    """A recall of validation.json, "top 0.01 in 0.05", as a heading."""
    _, top, _, keep = key.split()
    return f"of the top {100 * float(top):g} %, found in {100 * float(keep):g} %"


def _interval(cell: list[float]) -> str:
    return f"{cell[0]:.2f} ({cell[1]:.2f} to {cell[2]:.2f})"


def _worth(models: float | None) -> str:
    """Outside of what the curve shows a worth has only a bound."""
    return "more than were measured" if models is None else f"about {models:.1f}" if models >= 2 else "fewer than 2"


def notes(table: ScoreTable, *, shared: bool = False) -> list[str]:
    """What a reader must know of this table besides its numbers; `shared`, without counts of a few rows."""
    meta = table.meta

    def told(count: int) -> str:
        return f"fewer than {LEAST}" if shared and 0 < count < LEAST else str(count)

    said = [*_about_view(meta)]
    optimum = meta.get("optimum")
    relative = (optimum or {}).get("relative_gradient")
    if optimum is None:
        if "optimum" in meta:
            said.append("A black box: nothing inside the model was looked at.")
    elif relative is None:
        said.append("How far the head is from its optimum is not known: its weights were not given.")
    elif relative >= 1e-4:
        assumed = (meta.get("options") or {}).get("converged", True)
        said.append(
            f"The head is not at the optimum of its training objective (relative gradient {relative:.2g}), as is usual "
            "for networks: "
            + ("scores assume it is. To see what that changes, audit with --refit." if assumed else WITHOUT_DRIFT)
        )
    if any(name.startswith("predicted_") for name in table.columns):
        said.append(PREDICTED[meta.get("predicted_by") or "theory of the head"])
    if meta.get("no_prediction"):
        said.append(meta["no_prediction"])
    repeats = meta.get("repeats") or {}
    if repeats.get("exact") or repeats.get("near"):
        said.append(
            f"{told(repeats['exact'])} records have an exact copy and at least {told(repeats['near'])} more a near "
            "copy. Scores of repeated people are understated: pass groups to score people instead of rows."
        )
    if meta.get("newton_capped"):
        said.append(
            f"{told(meta['newton_capped'])} rows are alone in some direction; their newton and loo_gap are capped."
        )
    curvature = meta.get("curvature") or {}
    if "eigenvectors" in curvature.get("inverse", ""):
        said.append(
            f"The curvature is singular; its pseudo-inverse was used{'' if shared else ' (rank and cut below)'}."
        )
    if curvature.get("curvature") == "sketch":
        said.append(_about_sketch(curvature, told))
    if meta.get("depths"):
        said += about_depths(table, told)
    sensitivity = meta.get("l2_sensitivity")
    if sensitivity:
        low, high = sensitivity["spearman_at_0.1_l2"], sensitivity["spearman_at_10_l2"]
        said.append(f"Rank correlation of newton with itself at a tenth of l2: {low:.3f}, at ten times: {high:.3f}.")
    return said


def _about_sketch(curvature: Mapping[str, Any], told: Callable[[int], str]) -> str:
    """What stands between sketched scores and exact ones."""
    said = f"Scores of the head are estimates from {curvature['probes']} random probes of its curvature"
    error = next((e for n in ("newton", "influence", "leverage") if (e := curvature["relative_errors"].get(n))), None)
    if error is not None:
        said += f", off by about {100 * error:.2g} % each: records with close scores may stand in either order"
    high, solved = curvature.get("high_leverage", 0), curvature.get("solved_exactly", 0)
    if solved:
        said += f". Of {told(high)} rows with high leverage {told(solved)} were solved exactly"
    return said + "."


def _about_view(meta: Mapping[str, Any]) -> list[str]:
    """The second view in words, or why there is none."""
    view = meta.get("view")
    if not view:
        return [meta["no_view"]] if meta.get("no_view") else []
    error, kept = view["left_out_error"], view["memorized"]
    said = [
        f"The other records predict a left-out one with {100 * error:.3g} % of the squared error of a constant "
        f"({KINDS.get(view['view'], view['view'])}, {view['kernel']} kernel, {view['method']}); training took away "
        f"{100 * kept:.3g} % of that error, which is no share of records."
    ]
    if view["head_is_exact"]:
        return [*said, FROZEN if meta.get("frozen") else EXACT]
    said[0] += f" In fused the model's own view counts {view['head_weight']:.2g} and theirs 1."
    if kept < LEAST_MEMORIZED:
        said.insert(0, UNTRAINED)
    return [*said, BLIND] if error >= 1.0 else said


def _access(table: ScoreTable, access: str) -> str:
    return (OF_VALUES if table.meta.get("loss") == "squared" else {}).get(access, ACCESS[access])


def _rows(table: ScoreTable) -> str:
    return "people" if table.meta.get("unit") == "person" else "records"
