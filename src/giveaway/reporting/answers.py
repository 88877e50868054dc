"""The six answers of a first screen: what was audited, who could exploit it, how many, whose, what to do, how sure.

A reader without background decides by them, so none needs another. Without an attack measured on shadow models there is
no count. If `shared`, counts are rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from giveaway.findings.explain import LEAST, TOP, about
from giveaway.records import ScoreTable
from giveaway.reporting import words
from giveaway.reporting.validation import StoredValidation
from giveaway.reporting.words import counts
from giveaway.text import percent, shown_text

SHARES = {"few": "under 2 %", "some": "2 to 20 %", "many": "over 20 %"}  # WORDS of evaluation.exposed_share
LIMITS = "A low rank is not evidence of safety, and this is no finding on anonymity or compliance."
MOST_GROUPS = 3  # that an answer names
MANY_COPIES = 0.01  # of the records: fewer are in the notes alone
MODELS: dict[str | None, tuple[str, str]] = {  # by loss: what the model is called, and what an attacker holds
    None: ("A model", "a record, with its label,"),
    "classes": ("A classifier", "a record, with its label,"),
    "squared": ("A regression model", "a record, with its true value,"),
    "tokens": ("A language model", "a text"),
}
LOWER = {  # what usually lowers exposure, by kind of model
    "forest": "shallower trees or more records in a leaf (min_samples_leaf)",
    "boosted": "fewer or shallower trees, or a smaller learning rate",
    "linear": "a stronger penalty",
    "network": "more weight decay, fewer epochs, or differential privacy (DP-SGD)",
    "language": "fewer epochs, no repeated texts, training fewer parameters (LoRA), or differential privacy (DP-SGD)",
    "": "stronger regularization",
}
Groups = Sequence[tuple[str, str, float | None, float | None, bool]]
"""A kind, a group of it, how many times its even share it has among the rows ranked highest, how many chance alone may
give it (None where that is withheld), and whether it stands out."""


@dataclass(frozen=True)
class Answer:
    """A question, the answer in a few words, and what else there is to say; `actions` have a name, words, a command."""

    question: str
    short: str
    rest: str = ""
    actions: Sequence[tuple[str, str, str]] = ()


def answers(
    table: ScoreTable, measured: StoredValidation | None, access: str, groups: Groups | None, *, shared: bool = False
) -> list[Answer]:
    """Return the six in the order in which a page gives them; `groups` is None where they could not be compared."""
    return [
        _audited(table, shared),
        _attacker(table, access),
        Answer("How many are exposed?", *how_many(table, measured, shared=shared)),
        Answer("Whose are they?", *_whose(table, groups, shared)),
        _what_to_do(table, measured, shared, uneven=any(group[-1] for group in groups or ())),
        _how_sure(table, measured, shared),
    ]


def headline(table: ScoreTable, measured: StoredValidation | None, access: str, *, shared: bool = False) -> str:
    """Return one paragraph: a ranking, or the count that shadow models can defend."""
    short, rest = how_many(table, measured, shared=shared)
    if measured is not None:
        return f"{short} {rest}"
    known = rest if table.meta.predicted_share is None else f"{short} {rest}"
    return (
        f"Ranking only: {_rows(table, shared)}, ordered by estimated exposure to an attacker who holds the "
        f"{table.meta.record} and has {words.access_words(table, access)}. {known} {LIMITS}"
    )


def at_least(count: int) -> int:
    """Round down a count that is a lower bound, to one where it is fewer than ten."""
    return about(count, down=True) if count >= LEAST else min(count, 1)


def how_many(table: ScoreTable, measured: StoredValidation | None, *, shared: bool = False) -> tuple[str, str]:
    """Say how many records are exposed, in short and then more: measured, predicted in words, or not known."""
    told, predicted, what = counts(shared), table.meta.predicted_share, f"{table.meta.record}s"
    nothing = f"No attack was measured on this model, so no number of exposed {what} is stated."
    given_back = "".join(f" {said}" for said in words.about_continuation(table.meta, told))
    if measured is None and predicted is not None:
        share = " or ".join(f"{word} ({SHARES[word]})" for word in predicted.words)
        basis = f"how well the model knows its own {what} with how well it knows {told(predicted.held_out)} held out"
        few = " Few is not none." if "few" in predicted.words else ""
        return (
            f"Predicted, not measured: {share} of the {what}.",
            f"{nothing} The prediction compares {basis} from training.{few}{given_back}",
        )
    if measured is None:
        where = "This is a ranking: it says where to look first, not how many are exposed."
        return "Not known.", f"{nothing} {where}{given_back}"
    count, records = measured.stated["at_least_exposed"], measured.stated["records"]
    models, power = measured.stated["models"], percent(count["power_at_twice_that"])
    said = f"{models} models trained in the same way (shadow models) were attacked; {100 * count['confidence']:.3g} % "
    more = (
        f"the test finds about {power} of the {what} on which an attack would be right about 85 % of the time, and "
        "fewer of those nearer to 70 %."
    )
    if table.meta.by_person:
        counted = f"{what.capitalize()} were counted, not people"
        more += f" {counted}: a person with several can be more exposed than any one of them."
    more += given_back
    if not count["records"]:
        none = f"This does not mean that none of the {told(records)} {what} is exposed:"
        return "No number can be stated.", f"{said}confidence. {none} {more}"
    least = at_least(count["records"]) if shared else count["records"]
    share = percent(least / (about(records) if shared else records))
    short = f"At least {least:,} of {told(records)} {what} are exposed ({share}, measured)."
    return short, f"{said}confidence. More may be exposed: {more}"


def _rows(table: ScoreTable, shared: bool) -> str:
    told = counts(shared)
    people = f" of {told(len(table))} people" if table.meta.by_person else ""
    return f"{told(table.meta.records or len(table))} {table.meta.record}s{people}"


def _audited(table: ScoreTable, shared: bool) -> Answer:
    meta = table.meta
    kind = MODELS.get(meta.loss, MODELS["classes"])[0] + (f" ({shown_text(meta.model, 60)})" if meta.model else "")
    title = [f"{shown_text(meta.title, 120)}."] if meta.title else []
    ranked = f"Every {meta.row_is} got a rank; rank 1 looks easiest to recognize as part of the training data."
    said = [*title, f"{kind}, trained on {_rows(table, shared)}.", ranked]
    return Answer("What was audited?", said[0], " ".join(said[1:]))


def _attacker(table: ScoreTable, access: str) -> Answer:
    held, record = MODELS.get(table.meta.loss, MODELS["classes"])[1], table.meta.record
    short = f"Someone who already holds {held} and has {words.access_words(table, access)}."
    rest = (
        f"They could find out whether that {record} was used in training. This is harmful where being in the data "
        f"reveals something about a person, such as an illness. A {record} is called exposed if the "
        "model's outputs with it and without it lie so far apart that an attack is right about 70 % of the time or "
        "more (an effect size above 1.04); guessing is right 50 % of the time."
    )
    rest += "" if access == "probabilities" else f" {words.ABOUT_ACCESS[access]}"
    return Answer("Who could exploit it?", short, rest)


def _whose(table: ScoreTable, groups: Groups | None, shared: bool) -> tuple[str, str]:
    told, unit = counts(shared), table.meta.rows_are
    named = "" if shared else f" The list below shows the {unit} ranked highest."
    if groups is None:
        return "Not known.", f"The groups could not be compared.{named}"
    compared = sum(group[2] is not None for group in groups)
    withheld = " Groups that are too small for a page to share are withheld." if compared < len(groups) else ""
    if not compared:
        why = withheld or f" There were no groups to compare{', or they are too small to share' if shared else ''}."
        return "Not known.", f"{why.strip()}{named}"
    top = f"{'' if shared else 'the '}{told(max(1, round(TOP * len(table))))} {unit} ranked highest ({100 * TOP:.3g} %)"
    uneven = sorted((group for group in groups if group[-1]), key=lambda group: -(group[2] or 0.0))
    if not uneven:
        kinds = ", ".join(shown_text(kind, 40) for kind in dict.fromkeys(group[0] for group in groups))
        rest = f"None of {compared} groups ({kinds}) is more common among {top} than chance explains."
        return "No group stands out.", f"{rest}{withheld}{named}"
    lines = [
        f"{shown_text(kind, 40)} “{shown_text(name, 60)}” is {ratio:.1f} times as common (by chance up to {high:.1f})"
        for kind, name, ratio, high, _ in uneven[:MOST_GROUPS]
    ]
    more = f", and {len(uneven) - MOST_GROUPS} more" if len(uneven) > MOST_GROUPS else ""
    rest = f"Among {top}, compared with all {unit}: {'; '.join(lines)}{more}. {compared} groups were compared; "
    return "Some groups stand out.", f"{rest}one in forty would stand out by chance alone.{withheld}{named}"


def _what_to_do(table: ScoreTable, measured: StoredValidation | None, shared: bool, *, uneven: bool) -> Answer:
    """Name the actions that fit what was measured, the kind of model, and the data."""
    meta, question = table.meta, "What to do?"
    whom = "The commands are for whoever trained the model; FOLDER is the folder of this audit."
    training = words.how_to_train(meta)
    harm = f", and the groups that stand out would lose the most {meta.record}s" if uneven else ""
    wrong = "private" if meta.loss == "tokens" else "mislabelled"
    look = (
        f"Look at the {meta.rows_are} ranked highest{', which the restricted report lists' if shared else ''}.",
        f"Often they are {wrong}, rare, or in the data by mistake: correct what is wrong. Do not delete any just "
        f"because they rank high: others would then be the most exposed{harm}.",
        "",
    )
    lower = (
        "Change how the model is trained.",
        f"What is worth trying: {LOWER[words.kind_of(meta)]}. This command tries such changes, and measures what each "
        "costs in accuracy and how much an attack still finds:",
        f"giveaway mitigate FOLDER{training}",
    )
    if measured is None:
        text = "This command trains more models in the same way and attacks them, to say how many are exposed:"
        first = ("Have it measured.", text, f"giveaway validate FOLDER{training} --models 64")
        return Answer(question, "Do not decide by this ranking alone.", whom, (first, look, lower))
    if not measured.stated["at_least_exposed"]["records"]:
        command = f"giveaway validate FOLDER{training} --models {2 * measured.stated['models']}"
        first = ("Have it measured with more models.", "The more there are, the more the test finds:", command)
        return Answer(question, "Do not take this for an all-clear.", whom, (first, look, lower))
    text = (
        "A rule then refuses the next model whose measured number is above what you allow. One that meets it may still "
        "give away more."
    )
    limit = ("Set a limit.", text, "giveaway gate FOLDER RULE.toml")
    return Answer(question, "Decide whether this number is acceptable.", whom, (lower, look, limit))


def _how_sure(table: ScoreTable, measured: StoredValidation | None, shared: bool) -> Answer:
    told = counts(shared)
    seen = " and the losses of its training" if table.meta.trace is not None else ""
    said = [f"No attack was run: the order is an estimate from the trained model{seen}.", words.found_elsewhere(table)]
    if measured is not None and not measured.stated["at_least_exposed"]["records"]:
        said = [
            "The attack was run, and could not tell how many are exposed: there may be hardly any, the models may have "
            "been too few to show it, or the attack too weak. The order is an estimate."
        ]
    elif measured is not None:
        count = measured.stated["at_least_exposed"]
        wrong = f"{100 * count['false_discovery_rate']:.3g} %"
        said = [
            "The number is measured, but it is a lower bound, and it is about the way of training: another model "
            "trained in this way may give away others.",
            f"One by one, the test flags {told(count['flagged'])} {table.meta.record}s, of which about {wrong} or "
            f"fewer are expected to be wrong; a {table.meta.record} without a flag may still be exposed.",
        ]
    elif table.meta.predicted_share is not None:
        said.append(
            "Such predictions were held against attacks measured on 368 models of 92 kinds, on data that the rule "
            "never saw: for 95 % of the models the measured share lay within the words given, one word for three in "
            "four of them and two for the others."
        )
    said += [*words.cautions(table.meta, told, MANY_COPIES), LIMITS]
    return Answer("How sure is this?", "This does not prove safety.", " ".join(filter(None, said)))
