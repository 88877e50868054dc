"""Audit a language model: the texts that it was trained on in, a ScoreTable out."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from giveaway.checks import check_choice, fail
from giveaway.records import LossTrace, ScoreTable
from giveaway.records.meta import Meta
from giveaway.records.texts import Texts
from giveaway.scores import texts as of_texts
from giveaway.scores.catalogue import relative_error
from giveaway.views.tokens import continuation, own_terms, predicted_by_others
from giveaway.views.trace import TraceView

Score = Callable[[of_texts.TextViews], np.ndarray]
NEEDS: dict[str, tuple[Score, ...]] = {
    "nothing": (of_texts.loss, of_texts.min_k, of_texts.min_k_plus, of_texts.left_out),
    "contents": (of_texts.zlib_ratio,),
    "base": (of_texts.base_gap, of_texts.error_gap),
    "trace": (of_texts.trace,),
    "curvature": (of_texts.leverage, of_texts.influence, of_texts.newton),
}
REMEDY = {
    "contents": "give from_causal_lm the texts or their tokenizer",
    "base": "give from_causal_lm the model before fine-tuning, base=",
    "trace": "pass trace= to audit",
    "curvature": "leave curvature=None out of from_causal_lm",
}


def audit_texts(texts: Texts, scores: str | Sequence[str], trace: LossTrace | None) -> ScoreTable:
    """Rank every text (or person, where the texts have groups) by its exposure."""
    began = time.perf_counter()
    unit = "record" if texts.groups is None else "person"
    there = {"nothing": True, "contents": texts.contents is not None, "base": texts.base is not None}
    there |= {"trace": trace is not None, "curvature": texts.steps is not None}
    known = {score.__name__: (need, score) for need, some in NEEDS.items() for score in some}
    default = [*(name for name, (need, _) in known.items() if there[need]), "fused"]
    names: list[str] = []
    for name in [scores] if isinstance(scores, str) else scores:
        check_choice("scores", name, ("default", "fused", *known))
        need = known[name][0] if name in known else "nothing"
        if not there[need]:
            raise fail("scores", f"{need} beside a score that needs it", f"{name} alone", REMEDY[need])
        names += default if name == "default" else [name]
    view = None if trace is None else TraceView(trace, texts, -texts.means(texts.log_likelihood))
    rows = texts.by_person()
    others = predicted_by_others(rows)
    roots = None if view is None else view.roots
    if roots is not None and texts.groups is not None:  # a person's mean, as the loss is
        roots = roots / np.unique(texts.groups, return_counts=True)[1]
    views = of_texts.TextViews(rows, others.log_likelihood, roots)
    columns = {name: score(views) for name, (need, score) in known.items() if there[need]}
    columns["fused"] = of_texts.fused(views)
    meta: dict[str, Any] = {
        "unit": unit,
        "rows": rows.n,
        "records": texts.n,
        "outputs": texts.vocabulary,
        "loss": texts.loss,
        "model": texts.model,
        "optimum": None,
        "fusion": {"weights": of_texts.weights(views)},
        "seconds": round(time.perf_counter() - began, 3),
    }
    if texts.steps is not None:
        error = relative_error(texts.steps["newton"], texts.steps["newton_error"])
        meta["curvature"] = {"curvature": "gradients of texts", "relative_errors": {"newton": error}}
    if view is not None:
        meta["trace"] = view.report(np.argsort(-columns["fused"], kind="stable"))
    attributes = {"tokens": rows.lengths, "shared": rows.means((others.context >= 2).astype(np.float64)).round(3)}
    if texts.groups is not None:
        attributes["records"] = np.unique(texts.groups, return_counts=True)[1]
    else:
        each = [part.tobytes() for part in np.split(texts.tokens, texts.starts[1:-1])]
        times = Counter(each)
        attributes["copies"] = np.array([times[one] - 1 for one in each])
        meta["repeats"] = {"exact": int((attributes["copies"] > 0).sum()), "near": 0}
    more, meta["continuation"] = continuation(texts)
    wanted = {name: columns[name] for name in dict.fromkeys(names)}
    table = ScoreTable(wanted, rows.ids, Meta.from_json(meta), attributes | more)
    return replace(table, own_terms=own_terms(rows, others, table.order(), unit))
