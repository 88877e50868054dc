"""What pages say beside their answers: what was measured, predicted and assumed, kept apart, and notes on scores."""

import re
from collections.abc import Callable

from giveaway.checks import check_choice, fail
from giveaway.extract.sklearn_head import FIELDS
from giveaway.findings.explain import LEAST, about
from giveaway.network.network import suffix
from giveaway.records import ScoreTable
from giveaway.records.meta import CurvatureReport, Meta
from giveaway.reporting.validation import StoredValidation
from giveaway.text import percent
from giveaway.views.others import LEAST_MEMORIZED

ACCESS = {
    "labels": "the model's predicted label for it",
    "probabilities": "the model's output probabilities for it",
    "weights": "the model's weights",
}
OF_LOSS = {  # a regression has no probabilities, and a language model no labels
    "squared": {"probabilities": "the model's prediction for it"},
    "tokens": {
        "labels": "the text that the model writes",
        "probabilities": "the probabilities that the model gives to its words",
    },
}
ABOUT_ACCESS = {
    "labels": "Scores use the outputs behind the labels, which reveal more: nothing was estimated for labels alone, "
    "and the order may differ.",
    "probabilities": "We assume that they know how the model was trained, well enough to train others like it on "
    "similar data, and nothing else about who was in the training data.",
    "weights": "Scores use the outputs and the last layer; what the weights reveal beyond them was not estimated.",
}
BENCHMARKED = {  # docs/views.md: kinds of models, and what the 5 % that a score ranked highest held there
    "images": (
        "networks on CIFAR-10 and BloodMNIST, and a ResNet-18 that memorizes little, without the losses of training",
        {"fused": "81, 96 and 39 %", "newton": "51, 87 and 54 %"},
    ),
    "tabular": (
        "networks on six tables, without the losses of training",
        {"fused": "50 to 100 %", "newton": "25 to 100 %"},
    ),
    "text": (
        "an MLP and a transformer on the sentences of SST-2, without the losses of training",
        {"fused": "77 and 41 %", "newton": "51 and 29 %"},
    ),
    "forest": ("forests on five tables and on sentences", {"fused": "25 to 100 %"}),
    "boosted": ("XGBoost on four tables and on sentences, without a trace of its stages", {"fused": "38 to 93 %"}),
    "ridge": ("a ridge regression on California Housing", {"fused": "17 %", "newton": "17 %"}),
}
PREDICTED = {
    "theory of the head": "predicted_* columns are estimates from a theory in which only the last layer varies: not "
    "measured, not guaranteed, and far too low for networks.",
    "both views": "predicted_* columns are estimates from both views: not measured on an attack and not guaranteed; "
    "docs/views.md says how far off they were.",
}
KINDS = {"images": "patches of the images", "tabular": "columns of the table", "text": "words and letters"}
EXACT = (
    "The features are a linear function of the inputs: nothing was learned before the head, so fused ranks as newton "
    "does."
)
FROZEN = (
    "You said that nothing before the head was trained on these records (frozen), so fused ranks as newton does. If "
    "something was, fused and predicted_* do not see what it remembers of them."
)
BLIND = "The other records predict a left-out one no better than a constant does: read the ranking with care."
NO_PENALTY = (
    "No L2 penalty: none was given (weight decay times the number of records, if the model was trained with one)."
)
UNTRAINED = (
    "The model fits these records no better than the other records predict them: was it trained to the end, without "
    "noise, and on these records?"
)
ASSUMED_OPTIMUM = "scores assume that it is. To see what this changes, audit with --config optimum=refit."
WITHOUT_DRIFT = "newton and loo_gap take it into account, as requested; influence does not."
VIEWS = {
    "trace": "the losses of training",
    "left_out": "the other records",
    "relatives": "relatives of each record",
    "out_of_bag": "trees that never saw it",
    "head": "the model itself",
}
SOLVES_STOPPED = " and, as solves stopped early, by an unknown amount: at best the order of the records is meaningful"
OF_TEXTS = {"left_out": "the other texts", "newton": "the model without each text, by estimate"}
STATED_FROM = 1 / 3  # of the random error: from there the bound on the solver's error is stated
LAYERS = {"head": "the last linear layer", "all": "all layers", "last:1": "the last layer"}


def access_of(table: ScoreTable) -> str:
    """Return what the attacker has, as the audit was told."""
    return check_access(table.meta.access, table.meta.loss)


def check_access(access: str | None, loss: str | None) -> str:
    """Return `access`, probabilities by default, if a model with this loss can be accessed in that way."""
    access = access or "probabilities"
    if check_choice("access", access, ACCESS) == "labels" and loss == "squared":
        expected = "probabilities or weights for a regression"
        raise fail("access", expected, "labels", "a regression has no labels, only a predicted value")
    return access


def shared_count(count: int) -> str:
    """Write a count as those may see it who may not see the data."""
    return f"fewer than {LEAST}" if count < LEAST else f"about {about(count):,}"


def counts(shared: bool) -> Callable[[int], str]:
    """Return how counts are written: rounded if `shared`."""
    return shared_count if shared else "{:,}".format


def found_elsewhere(table: ScoreTable) -> str:
    """Say what the ranking score found on benchmarks of models like the audited one; nothing where there are none."""
    models, found = BENCHMARKED.get(_benchmark(table.meta), ("", {}))
    by = table.ranking()
    if by not in found:
        return ""
    return (
        f"In our own tests ({models}), the 5 % ranked highest held {found[by]} of the 1 % that a measured attack found "
        "most exposed; by chance it would be 5 %. Here it may be less."
    )


def kind_of(meta: Meta) -> str:
    """Name the kind of the audited model: forest, boosted, linear, network or language; empty if not known."""
    model = meta.model or ""
    if meta.loss == "tokens":
        return "language"
    if meta.fusion is not None and "out_of_bag" in meta.fusion.weights:
        return "forest"
    if meta.optimum is None:
        return "boosted" if re.search("XGB|LGBM|CatBoost|Boosting", model) else ""
    exact = meta.view is not None and meta.view.head_is_exact
    return "linear" if exact or (is_estimator(meta) and "MLP" not in model) else "network"


def is_estimator(meta: Meta) -> bool:
    """Whether the audited model is a scikit-learn estimator, or looks like one: its clones need no code of the user."""
    black_box = meta.optimum is None and meta.loss != "tokens"
    return meta.model is not None and (black_box or meta.model in {kind.__name__ for kind in FIELDS})


def how_to_train(meta: Meta) -> str:
    """Return the options by which `validate` and `mitigate` can train such a model again."""
    config = {} if meta.provenance is None else meta.provenance.config
    if "estimator" in config:
        return " --allow-pickle" if config.get("allow_pickle") else ""
    return " --estimator FILE --data module:function" if is_estimator(meta) else " --train module:function"


def _benchmark(meta: Meta) -> str:
    """Name the benchmark of models like the audited one, if there is one."""
    kind = kind_of(meta)
    if kind == "linear":
        return "ridge" if meta.loss == "squared" and not meta.frozen and meta.view is not None else ""
    if kind == "network":
        return "" if meta.view is None else meta.view.kind
    return kind if kind == "forest" or (meta.model or "").startswith("XGB") else ""


def standing(table: ScoreTable, measured: StoredValidation | None, access: str) -> list[tuple[str, list[str]]]:
    """Say what was measured, what is predicted and what is assumed."""
    meta = table.meta
    found = [f"No attack. Only the model's own outputs and losses on its training {meta.record}s."]
    if meta.continuation is not None:
        found.append("Which texts it gives back word for word when asked to go on after their beginning.")
    predicted = [f"The order of the {meta.rows_are}, by {table.ranking()}: an estimate without retraining."]
    target = "" if meta.loss == "tokens" else ", with its target,"
    attacker = f"An attacker who holds the {meta.record}{target} and has {access_words(table, access)}."
    assumed = [attacker, ABOUT_ACCESS[access]]
    if meta.optimum is not None and meta.assumes_optimum:
        assumed.append("A last layer at the optimum of its training objective.")
    if meta.l2 is not None and meta.optimum is not None:
        source = "as the estimator has it" if is_estimator(meta) else "as it was given"
        assumed.append(f"An L2 penalty of {meta.l2:.4g} in summed-loss units, {source}." if meta.l2 else NO_PENALTY)
    if measured is not None:
        auc, low, high = measured.stated["lira"]["auc"]
        none = "A count, which came to no number that can be stated"
        counted = "The count above, which is a lower bound" if measured.stated["at_least_exposed"]["records"] else none
        found = [
            f"LiRA over {measured.stated['models']} shadow models: AUC {auc:.2f} ({low:.2f} to {high:.2f}).",
            f"{counted}: with few models, exposed records are missed. It is about the training recipe, not about this "
            "one model.",
        ]
        recipe = measured.stated.get("recipe")
        source = f"giveaway's recipe {recipe}" if recipe else "your own"
        assumed.append(f"Shadow models trained in the same way as the audited model: their training is {source}.")
        assumed += [trained] if (trained := measured.stated.get("trained")) else []
    elif meta.predicted_share is not None:
        predicted.append("How many records are exposed, in words, from the model's outputs on records held out.")
        assumed.append("Records held out that come from where the training records come from.")
    predicted += _about_predictions(table)
    return [("Measured", found), ("Predicted, not measured", predicted), ("Assumed", assumed)]


def _about_predictions(table: ScoreTable) -> list[str]:
    there = any(name.startswith("predicted_") for name in table.columns)
    return [PREDICTED.get(table.meta.predicted_by or "", PREDICTED["theory of the head"])] if there else []


def notes(table: ScoreTable, *, shared: bool = False) -> list[str]:
    """Say what a reader must know of this table besides its numbers; if `shared`, with rounded counts."""
    meta, told = table.meta, counts(shared)
    said = [*cautions(meta, told), *_about_view(meta), *_about_fusion(table, told), *_about_optimum(meta)]
    said += [*_about_predictions(table), *filter(None, [meta.no_prediction])]
    if meta.newton_capped:
        alone = f"Rows alone in some feature direction: {told(meta.newton_capped)}"
        said.append(f"{alone}. Their newton and loo_gap are capped.")
    curvature = meta.curvature
    if curvature is not None and "eigenvectors" in (curvature.inverse or ""):
        where = "" if shared else " (rank and cut below)"
        said.append(f"The curvature is singular; its pseudo-inverse was used{where}.")
    if curvature is not None and curvature.rounded:
        lost = "Rows whose newton rounding may have changed by more than 1e-8 of it"
        said.append(f"{lost}: {told(curvature.rounded)}. Models trained with a larger l2 lose less.")
    if curvature is not None and curvature.kind == "sketch":
        said.append(_about_sketch(curvature, told))
    said += about_depths(table, told)
    return said


def cautions(meta: Meta, told: Callable[[int], str], repeated: float = 0.0) -> list[str]:
    """Say what makes the ranking itself doubtful; repeated records only if they are more than this share of all."""
    said, view, repeats = [], meta.view, meta.repeats
    if view is not None and not view.head_is_exact:
        said += [UNTRAINED] if view.memorized < LEAST_MEMORIZED else []
        said += [BLIND] if view.left_out_error >= 1.0 else []
    if repeats is not None and repeats.exact + repeats.near > repeated * (meta.records or 0):
        near = f" and at least {told(repeats.near)} more a near copy" if repeats.near else ""
        said.append(
            f"{told(repeats.exact)} {meta.record}s have an exact copy{near}. Repeated {meta.record}s rank "
            "too low: pass groups to rank people instead of rows."
        )
    return said


def about_continuation(meta: Meta, told: Callable[[int], str]) -> list[str]:
    """Say how many texts a language model gives back word for word; nothing where none is long enough."""
    if (asked := meta.continuation) is None:
        return []
    some = "none" if not asked.continued else told(asked.continued)
    long = f"{told(asked.texts)} texts of {asked.prefix + asked.tokens} tokens or more"
    said = f"Asked to go on after the first {asked.prefix} tokens of a text, the model gives back the next "
    said += f"{asked.tokens} word for word for {some} of {long} (measured)."
    if asked.continued and asked.before is not None:
        before = "None of them did so" if not asked.before else f"For {told(asked.before)} of them it did so"
        said += f" {before} before fine-tuning{': those were not learned here' if asked.before else ''}."
    return [said]


def _about_optimum(meta: Meta) -> list[str]:
    if meta.optimum is None:
        trees = meta.fusion is not None and "out_of_bag" in meta.fusion.weights
        but = " but which records each of its trees saw" if trees else ""
        black_box = meta.of_model and meta.loss != "tokens"
        return [f"A black box: nothing inside the model was used{but}."] if black_box else []
    if (relative := meta.optimum.relative_gradient) is None:
        return ["It is not known how far the head is from its optimum: its weights were not given."]
    if relative < 1e-4:
        return []
    usual = ", as is usual for networks" if kind_of(meta) == "network" else ""
    if relative > 2.0:  # no less would prove it of every set of gradients
        usual = "; the penalty pulls harder than all records together: check that l2 is that of the training"
    return [
        f"The head is not at the optimum of its training objective (relative gradient {relative:.2g}){usual}: "
        + (ASSUMED_OPTIMUM if meta.assumes_optimum else WITHOUT_DRIFT)
    ]


def _about_sketch(curvature: CurvatureReport, told: Callable[[int], str]) -> str:
    said = f"Scores of the head are estimates from {curvature.probes} random probes of its curvature"
    errors = curvature.relative_errors or {}
    error = next((e for n in ("newton", "influence", "leverage") if (e := errors.get(n))), None)
    if error is not None:
        said += f", off by about {percent(error)} each: records with close scores may be in either order"
    if curvature.solved_exactly:
        high, solved = told(curvature.high_leverage or 0), told(curvature.solved_exactly)
        said += f". Of {high} rows with high leverage {solved} were solved exactly"
    if curvature.threads:
        said += f". They were computed by {curvature.threads} threads: other numbers of them change the last digits"
    return said + "."


def _about_view(meta: Meta) -> list[str]:
    if (view := meta.view) is None:
        return [meta.no_view] if meta.no_view else []
    said = (
        f"The other records predict a left-out one with {percent(view.left_out_error)} of the squared error of a "
        f"constant ({KINDS.get(view.kind, view.kind)}, {view.kernel} kernel, {view.method}); training removed "
        f"{percent(view.memorized)} of that error, a share of error and not of records."
    )
    return [said, *([FROZEN if meta.frozen else EXACT] if view.head_is_exact else [])]


def _about_fusion(table: ScoreTable, told: Callable[[int], str]) -> list[str]:
    """Say which views `fused` asked, with what weight, and what that rests on."""
    fusion, trace, what = table.meta.fusion, table.meta.trace, f"{table.meta.record}s"
    if fusion is None:
        return []
    said = []
    ordered = sorted(fusion.weights.items(), key=lambda item: -item[1])
    if "fused" in table.scores and len(ordered) > 1:
        views = VIEWS | (OF_TEXTS if table.meta.loss == "tokens" else {})
        weights = ", ".join(f"{views.get(name, name)} {weight:.2g}" for name, weight in ordered)
        said.append(f"fused adds up what each view says, by rank, with these weights: {weights}.")
    if trace is not None:
        proof, own = trace.proof, fusion.trace_share_of_its_own
        of = "epochs" if trace.steps == "epochs" else f"{trace.steps}, taken after training"
        said.append(f"The losses of training are those of {trace.epochs} {of}, matched to these {what} by {proof}.")
        if own is not None:
            said[-1] += f" The share of them that the finished model's loss does not repeat is {own:.2g}."
        if trace.never_seen:
            never = f"{what.capitalize()} that never came up: {told(trace.never_seen)}"
            said[-1] += f" {never}; they stand in the middle of that view."
    if fusion.held_out_error is not None:
        said.append(
            f"Records held out have a mean squared error of {fusion.held_out_error:.2g}: with them, what the model "
            "generalizes is not taken for memory."
        )
    if fusion.without_out_of_bag:
        seen = f"{told(fusion.without_out_of_bag)} of the {table.meta.rows_are}"
        said.append(f"Every tree saw {seen}: trees say nothing of them.")
    return said


def about_depths(table: ScoreTable, told: Callable[[int], str]) -> list[str]:
    """Say, for each depth of the network, what its columns are and how far off they may be."""
    said = []
    for depth, done in (table.meta.depths or {}).items():
        name = f"Columns ending in {suffix(depth)} are scores through {layers_of(depth)} of the network"
        if table.meta.by_person:
            name += ", of single records: they are in scores.csv and are not added up for people"
        curvature = "the exact Hessian" if done.curvature == "hessian" else "Gauss–Newton curvature"
        how = f"{curvature}, damping {done.damping:.4g}"
        if errors := done.sketch_error:
            error = errors.get("newton", next(iter(errors.values())))
            how += f", estimates from {done.probes} random probes, off by about {percent(error)} each"
            bound = done.solve_error or 0.0
            if bound >= 1 and bound >= STATED_FROM * error:
                how += SOLVES_STOPPED
            elif bound >= STATED_FROM * error:
                how += f" and by the solver's error, at most {percent(bound)} of the projections whose squares the "
                how += "scores are, over all records together"
        if done.unsolved:
            how += f"; {told(done.unsolved)} solves did not reach their tolerance, which was allowed"
        capped = table.attributes.get(f"newton_capped{suffix(depth)}")
        if capped is not None and capped.any():
            how += f"; newton{suffix(depth)} of {told(int(capped.sum()))} rows is capped"
        said.append(f"{name}: {how}.")
    return said


def layers_of(depth: str) -> str:
    return LAYERS.get(depth, f"the last {depth.removeprefix('last:')} layers")


def access_words(table: ScoreTable, access: str) -> str:
    """Say what an attacker with this access has."""
    return OF_LOSS.get(table.meta.loss or "", {}).get(access, ACCESS[access])
