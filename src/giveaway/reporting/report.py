"""report.html: one self-contained page for those who may see the training data, with every text escaped.

It loads nothing, is complete without JavaScript except for the maps, and its content policy forbids any request. A
section that cannot be made says why in its place.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from giveaway.auditing.texts import NEEDS
from giveaway.checks import InputError
from giveaway.findings.explain import SUBGROUP, breakdowns
from giveaway.findings.extras import ReportExtras
from giveaway.network.network import suffix
from giveaway.records import ScoreTable
from giveaway.records.reasons import why
from giveaway.reporting.answers import answers
from giveaway.reporting.figures import when_learned
from giveaway.reporting.maps import bokeh_script, maps
from giveaway.reporting.pages import page, section
from giveaway.reporting.picture import image_of
from giveaway.reporting.validation import StoredValidation, agreement_lines
from giveaway.reporting.words import access_of, layers_of, notes, standing
from giveaway.text import shown_text

TOP = 100
NO_HEAD = "the report was made from the table alone; pass head= to have it"
ABOUT_ROW = ("class", "target")  # beside rank, id, score and reason
OF_TRACE = ("trace · band", "trace · rows", "trace · losses")
MEANINGS = {
    "percentile": "the percentage of all rows that rank lower",
    "others_say": "what the other records predict for it",
    "trees_say": "what the trees that never saw it predict for it; nothing, or nan, where every tree saw it",
    "learned_by": "the epoch by which half of its √loss was behind it: the larger, the later it was learned",
    "records": "how many records the person has",
    "residual": "how far its prediction is from its target",
    "fused": "all views combined by rank: what the model did with it, and what tells what it would say without it",
    "newton": "the estimated rise of its loss if it had been left out",
    "influence": "the same to first order: too small if leverage is high",
    "left_out": "how wrongly the other records predict it",
    "trace": "how large its losses were while the model was trained: the mean of their roots over the epochs",
    "relatives": "the loss on variants of it, such as its mirror image, in normal scores",
    "recognized": "whether its variants get half of the probability for its class",
    "out_of_bag": "the loss of what the trees that never saw it predict for it",
    "leverage": "how far its own target moves its own prediction, from 0 to 1; of a person, to the number of records",
    "loss": "its loss in the audited model",
    "predicted_success": "how often an attack on it is predicted to be right, members and others alike: not measured",
    "measured_success": "the share of shadow models for which LiRA got its membership right: measured, of the recipe",
    "expected_effect": "its effect size, by models and score together: at 1.04 an attack is right 70 % of the time",
    "found_exposed": "flagged as exposed by the test of every record; not judged: too few models with or without it",
}

OF_TEXTS = {
    "tokens": "how many tokens, about words, it has of which the model's prediction counts",
    "copies": "how many other texts have the same scored tokens",
    "shared": "the share of its tokens that follow two or more tokens which stand before them in another text too",
    "longest_run": "the most tokens in a row that the model gives back, each after those before it",
    "longest_run_before": "the same of the model before fine-tuning: what it gave back then was not learned here",
    "continues": "whether the model gives back what follows the beginning, word for word",
    "records": "how many texts the person has",
} | {score.__name__: " ".join((score.__doc__ or "").split()) for some in NEEDS.values() for score in some}


def render(
    table: ScoreTable,
    *,
    extras: ReportExtras | None = None,
    measured: StoredValidation | None = None,
    top: int = TOP,
    summary: str = "",
) -> str:
    """Return the page as a string; `summary` is the page beside it to share instead."""
    extras = extras or ReportExtras(missing={"map": NO_HEAD})
    chosen, meta = access_of(table), table.meta
    sections = {
        "breakdowns": section(lambda: breakdowns(table)),
        "maps": section(lambda: maps(table, extras)),
        "learned": section(lambda: image_of(when_learned(table))),
        "agreement": section(lambda: _agreement(table, measured)),
    }
    noted, groups = section(lambda: notes(table)), sections["breakdowns"]
    compared = [(o.kind, g.name, g.ratio, g.high, g.stands_out) for o in groups.content or () for g in o.groups]
    return page(
        "report.html",
        table=table,
        **meta.nouns,
        by=table.ranking(),
        answers=answers(table, measured, chosen, None if groups.note else compared),
        standing=standing(table, measured, chosen),
        notes=[noted.note] if noted.note else noted.content,
        missing=extras.missing,
        summary=summary,
        listed=_listing(table, extras, measured, top),
        sections=sections,
        bokeh=bokeh_script() if sections["maps"].content else "",
        facts=facts(meta.to_json()),
    )


def _listing(table: ScoreTable, extras: ReportExtras, measured: StoredValidation | None, top: int) -> dict[str, Any]:
    """Return the table of the `top` rows ranked highest: a cell is its text and the number that sorts it; what else is
    known of a row is one line of text."""
    by, known = table.ranking(), {**table.attributes, **table.scores}
    rows = table.order(by)[:top]
    ranks = np.arange(1, len(rows) + 1)
    values: dict[str, Any] = {"rank": ranks, "id": table.ids[rows]}
    values |= {name: known[name][rows] for name in (*ABOUT_ROW, by) if name in known}
    more: dict[str, Any] = {"percentile": 100.0 * (len(table) - ranks) / len(table)}
    if measured is not None and len(measured.success) == len(table) and not table.meta.by_person:
        values["measured_success"] = measured.success[rows]
        told = np.where(measured.judged[rows], "not shown", "not judged")
        values["found_exposed"] = np.where(measured.flagged[rows], "yes", told)
        more["expected_effect"] = measured.expected[rows]
    values["why"] = np.array(why(table, rows, nearest=False, contents=True), dtype=object)
    more |= {name: known[name][rows] for name in sorted(known) if name not in values}  # a stored table has others
    meanings = {**MEANINGS, **(OF_TEXTS if table.meta.loss == "tokens" else {})}
    for depth in table.meta.depths or ():
        through = f"; through {layers_of(depth)} of the network"
        meanings |= {name + suffix(depth): meaning + through for name, meaning in MEANINGS.items()}
    kinds = ("number" if column.dtype.kind in "fiu" else "name" for column in values.values())
    records: list[Any] = [] if table.own_terms is None else table.own_terms.words(rows)
    heated, shown = any(records), extras.contents
    if shown is not None and not heated:
        held = dict(zip(shown.rows.tolist(), shown.held, strict=True))
        records = [held.get(row, "") if shown.pictures else [(held.get(row, ""), 0)] for row in rows.tolist()]
    lines = zip(*(column.tolist() for column in more.values()), strict=True)
    names = [shown_text(name.removeprefix(SUBGROUP), 80) for name in more]
    return {
        "columns": [(name, "text why" if name == "why" else kind) for name, kind in zip(values, kinds, strict=True)],
        "rows": list(zip(*([_cell(value) for value in column.tolist()] for column in values.values()), strict=True)),
        "more": [" · ".join(f"{name} {_cell(v)[0]}" for name, v in zip(names, line, strict=True)) for line in lines],
        "meanings": [(name, meanings[name]) for name in (*values, *more) if name in meanings],
        "numbers": rows.tolist(),
        "records": records if any(records) else [],
        "heated": heated,
        "pictures": shown is not None and shown.pictures and not heated,
    }


def _cell(value: Any) -> tuple[str, str]:
    if isinstance(value, float):
        return f"{value:.4g}", repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value), str(value)
    return shown_text(value, 600), ""


def facts(meta: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return every entry of the metadata as a name and a text, but for the lists that the figure of the trace shows."""
    found = []
    for key, value in meta.items():
        if isinstance(value, dict):
            found += facts(value, f"{prefix}{key} · ")
        elif value is not None and prefix + key not in OF_TRACE:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            found.append((shown_text(prefix + key, 120), shown_text(text, 400)))
    return found


def _agreement(table: ScoreTable, measured: StoredValidation | None) -> dict[str, Any]:
    if measured is None:
        raise InputError("no shadow models were trained; giveaway validate trains them and fills this section")
    images = [image_of(figure) for figure in measured.figures(table)]
    return {"conclusion": measured.stated["conclusion"], **agreement_lines(measured.stated), "pictures": images}
