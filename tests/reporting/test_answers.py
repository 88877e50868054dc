"""The six answers of the first screen: in order, each for itself, and no more than is known."""

from dataclasses import replace

import numpy as np
import pytest

from giveaway import audit
from giveaway.auditing.store import provenance
from giveaway.cli import cli
from giveaway.evaluation.exposed_share import WORDS
from giveaway.records import ScoreTable
from giveaway.records.meta import FusionReport, Meta, Optimum, ViewReport
from giveaway.reporting.answers import LOWER, SHARES, Answer, answers, headline
from giveaway.reporting.validation import StoredValidation
from giveaway.reporting.words import standing
from tests.conftest import made_head

COUNT = {"records": 37, "effect_size_above": 1.04, "false_discovery_rate": 0.05, "power_at_twice_that": 0.83}
COUNT |= {"confidence": 0.95, "flagged": 41, "by_success": 30, "judged": 60}
QUESTIONS = ["What was audited?", "Who could exploit it?", "How many are exposed?"]
QUESTIONS += ["Whose are they?", "What to do?", "How sure is this?"]


def measured(records: int = 60) -> StoredValidation:
    stated = {"models": 64, "records": records, "at_least_exposed": COUNT, "lira": {"auc": [0.71, 0.69, 0.73]}}
    nothing = np.zeros(records)
    return StoredValidation(stated, nothing, nothing, nothing > 0, nothing == 0, *[nothing] * 3)


@pytest.fixture(scope="module")
def table() -> ScoreTable:
    return audit(made_head("classes", l2=0.5))


def asked(table: ScoreTable, found: StoredValidation | None = None, groups=(), **more) -> dict[str, Answer]:
    given = answers(table, found, "probabilities", groups, **more)
    assert [answer.question for answer in given] == QUESTIONS
    return {answer.question: answer for answer in given}


def commands(answer: Answer) -> list[str]:
    return [command for _, _, command in answer.actions if command]


def test_each_question_is_answered_without_a_measurement(table):
    said = asked(table)
    assert said["What was audited?"].short == "A classifier, trained on 60 records."
    assert said["Who could exploit it?"].short.startswith("Someone who already holds a record, with its label, and has")
    assert said["How many are exposed?"].short == "Not known."
    assert said["Whose are they?"].short == "Not known."
    assert "There were no groups to compare." in said["Whose are they?"].rest
    assert said["What to do?"].short == "Do not decide by this ranking alone."
    assert said["How sure is this?"].short == "This does not prove safety."
    assert said["How sure is this?"].rest.startswith("No attack was run")
    titled = asked(replace(table, meta=replace(table.meta, title="Ward visits", loss="squared", model="Ridge")))
    assert titled["What was audited?"].short == "Ward visits."
    assert titled["What was audited?"].rest.startswith("A regression model (Ridge), trained on 60 records.")
    assert "with its true value, and has the model's prediction for it" in titled["Who could exploit it?"].short


def test_each_question_is_answered_after_a_measurement(table):
    said = asked(table, measured())
    assert said["How many are exposed?"].short == "At least 37 of 60 records are exposed (62 %, measured)."
    assert said["What to do?"].short.startswith("Decide whether this number is acceptable")
    sure = said["How sure is this?"]
    assert sure.short == "This does not prove safety."
    assert "the test flags 41 records, of which about 5 % or fewer are expected to be wrong" in sure.rest
    shared = asked(table, measured(), shared=True)
    assert shared["How many are exposed?"].short == "At least 30 of about 60 records are exposed (50 %, measured)."
    none = measured()
    none.stated["at_least_exposed"] = COUNT | {"records": 0}
    assert commands(asked(table, none)["What to do?"])[0].endswith("--models 128")


GROUPS = [("class", "cat", 2.04, 1.5, True), ("ward", "A & E", 3.0, 2.0, True), ("ward", "B", 0.5, 1.4, False)]


def test_groups_are_held_against_chance(table):
    said = asked(table, groups=GROUPS)["Whose are they?"]
    assert said.short == "Some groups stand out."
    assert "Among the 3 records ranked highest (5 %), compared with all records: ward “A & E” is 3.0 times" in said.rest
    assert "(by chance up to 2.0); class “cat” is 2.0 times as common (by chance up to 1.5). 3 groups were" in said.rest
    even = asked(table, groups=GROUPS[2:])["Whose are they?"]
    assert even.short == "No group stands out."
    assert even.rest.startswith("None of 1 groups (ward) is more common among the 3 records ranked highest (5 %) than")
    assert asked(table, groups=None)["Whose are they?"].rest.startswith("The groups could not be compared.")
    withheld = asked(table, groups=[("ward", "B", None, None, None)], shared=True)["Whose are they?"]
    assert withheld.short == "Not known."
    assert withheld.rest.startswith("Groups that are too small for a page to share are withheld.")
    harm = "the groups that stand out would lose the most records"
    assert harm in asked(table, groups=GROUPS)["What to do?"].actions[1][1]
    assert harm not in asked(table)["What to do?"].actions[1][1]


VIEW = ViewReport(kind="tabular", left_out_error=0.5, memorized=0.5, head_is_exact=False)
AT_OPTIMUM = Optimum(relative_gradient=None, note="")
FROM_FILE = " --estimator FILE --data module:function"


def made_of(**config):
    return provenance("0" * 64, config)


@pytest.mark.parametrize(
    ("meta", "kind", "training"),
    [
        (Meta(model="RandomForestClassifier", fusion=FusionReport(weights={"out_of_bag": 1.0})), "forest", FROM_FILE),
        (Meta(model="HistGradientBoostingClassifier"), "boosted", FROM_FILE),
        (Meta(model="SVC"), "", FROM_FILE),
        (Meta(model="SVC", provenance=made_of(estimator="svc.skops")), "", ""),
        (Meta(model="SVC", provenance=made_of(estimator="svc.pkl", allow_pickle=True)), "", " --allow-pickle"),
        (Meta(), "", " --train module:function"),
        (Meta(model="LogisticRegression", optimum=AT_OPTIMUM), "linear", FROM_FILE),
        (Meta(optimum=AT_OPTIMUM, view=replace(VIEW, head_is_exact=True)), "linear", " --train module:function"),
        (Meta(model="MLPClassifier", optimum=AT_OPTIMUM, view=VIEW), "network", FROM_FILE),
        (Meta(model="Sequential", optimum=AT_OPTIMUM, view=VIEW), "network", " --train module:function"),
    ],
    ids=lambda value: (value.model or "no name") if isinstance(value, Meta) else str(value),
)
def test_actions_fit_the_model_and_their_commands_exist(meta, kind, training):
    table = ScoreTable({"fused": np.arange(40.0)}, np.arange(40), meta)
    none = measured()
    none.stated["at_least_exposed"] = COUNT | {"records": 0}
    for found in (None, none, measured()):
        given = asked(table, found)["What to do?"]
        assert 2 <= len(given.actions) <= 3
        assert LOWER[kind] in " ".join(text for _, text, _ in given.actions)
        for command in commands(given):
            name, *options = command.removeprefix("giveaway ").split()
            known = {flag for option in cli.commands[name].params for flag in option.opts}
            assert {option for option in options if option.startswith("--")} <= known
        trained = [command for command in commands(given) if "validate" in command]
        assert all(command.startswith(f"giveaway validate FOLDER{training} --models ") for command in trained)
        assert bool(trained) is (found is None or found is none)


def test_without_an_attack_the_headline_is_a_ranking():
    table = audit(made_head("classes"))
    assert headline(table, None, "probabilities") == (
        "Ranking only: 60 records, ordered by estimated exposure to an attacker who holds the record and has the "
        "model's output probabilities for it. No attack was measured on this model, so no number of exposed "
        "records is stated. This is a ranking: it says where to look first, not how many are exposed. A low rank is "
        "not evidence of safety, and this is no finding on anonymity or compliance."
    )
    people = audit(made_head("squared", groups=np.arange(60) // 3))
    said = headline(people, None, "probabilities")
    assert said.startswith("Ranking only: 60 records of 20 people, ordered by")
    assert "has the model's prediction for it." in said
    for access, words in (("labels", "model's predicted label for it."), ("weights", "model's weights.")):
        assert f"has the {words}" in headline(table, None, access)
        assert any(f"has the {words}" in sentence for sentence in dict(standing(table, None, access))["Assumed"])


def test_a_predicted_share_is_said_in_words_and_as_not_measured():
    table = audit(made_head("classes"))
    meta = Meta.from_json({**table.meta.to_json(), "predicted_share": {"words": ["some", "many"], "held_out": 1234}})
    said = headline(replace(table, meta=meta), None, "probabilities")
    assert said.startswith("Ranking only: 60 records, ordered by")
    assert "Predicted, not measured: some (2 to 20 %) or many (over 20 %) of the records. No attack was" in said
    assert "so no number of exposed records is stated." in said
    assert "knows 1,234 held out from training. A low rank" in said
    assert "about 1,200 held out" in headline(replace(table, meta=meta), None, "probabilities", shared=True)
    assert list(SHARES) == list(WORDS)


def test_after_shadow_models_the_headline_is_a_lower_bound():
    table = audit(made_head("classes"))
    assert headline(table, measured(), "weights") == (
        "At least 37 of 60 records are exposed (62 %, measured). 64 models trained in the same way (shadow models) "
        "were attacked; 95 % confidence. More may be exposed: the test finds about 83 % of the records on which an "
        "attack would be right about 85 % of the time, and fewer of those nearer to 70 %."
    )
    few = measured()
    few.stated["at_least_exposed"] = COUNT | {"records": 0, "flagged": 0, "power_at_twice_that": 0.0013}
    said = headline(table, few, "weights")
    assert said.startswith("No number can be stated. 64 models trained in the same way")
    assert "This does not mean that none of the 60 records is exposed: the test finds about" in said
    assert "the test finds about 0.13 %" in said
    people = audit(made_head("classes", groups=np.arange(60) // 3))
    assert headline(people, measured(), "weights").endswith("more exposed than any one of them.")
