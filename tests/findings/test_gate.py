"""A gate: which rule files are refused, what is measured, when a rule is met or waived, and that nobody is named."""

import datetime
import json
import re
import stat

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import giveaway as ga
from giveaway.auditing.store import purge
from giveaway.checks import InputError
from giveaway.findings.gate import judge, read_rules
from giveaway.records import ScoreTable
from tests.conftest import refused, save_page

TODAY = datetime.date(2026, 5, 4)
N = 200
META = {
    "unit": "record",
    "loss": "cross_entropy",
    "outputs": 10,
    "l2": 0.02,
    "predicted_by": "both views",
    "options": {"converged": True, "refit": False},
    "view": {"view": "images", "head_is_exact": False},
}
COUNT = '[[rule]]\nname = "few exposed"\nmeasure = "measured_count"\nat_most = 25\n'
PREDICTED = '[[rule]]\nname = "predicted"\nmeasure = "predicted_success"\nabove = 0.6\nat_most_share = 0.1\n'
WAIVER = '[[waiver]]\nrule = "few exposed"\nowner = "Ada"\nexpires = 2026-05-04\nreason = "data fix on its way"\n'


def rule_file(folder, text, schema="schema = 1\n"):
    path = folder / "rule.toml"
    path.write_text(schema + text, encoding="utf-8")
    return path


def made(folder, exposed: int, **meta):
    """An audit of which `exposed` records are predicted to be told with success 0.8, the others with 0.55."""
    success = np.full(N, 0.55)
    success[np.random.default_rng(0).permutation(N)[:exposed]] = 0.8
    ids = [f"patient-{i}" for i in range(N)]
    ScoreTable({"predicted_success": success}, ids, meta={**META, **meta}).save(folder)
    return folder


def validated(folder, count: int, *, records=N, power=0.9, models=64, by_success=0, judged=None):
    exposed = {"records": count, "confidence": 0.95, "by_success": by_success, "power_at_twice_that": power}
    exposed["judged"] = records if judged is None else judged
    stated = {"records": records, "models": models, "at_least_exposed": exposed}
    (folder / "validation.json").write_text(json.dumps(stated), encoding="utf-8")


@pytest.fixture
def audited(tmp_path):
    """An audit of 8 % predicted exposed, and 25 records measured."""
    validated(made(tmp_path / "audit", 16), 25)
    return tmp_path


def judged(folder, text, today=TODAY):
    return judge(read_rules(rule_file(folder, text)), folder / "audit", today)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"^gate: expected at least one \[\[rule\]\], got none"),
        ("rules = 1\n", r"^gate: expected schema, \[\[rule\]\] and \[\[waiver\]\], got 'rules'; did you mean rule\?"),
        ("rule = 1\n", r"^gate: expected \[\[rule\]\] in double brackets"),
        (COUNT.replace("name = ", "nom = "), r"^rule 1: expected name, one line of text, .* got none; add it"),
        (COUNT.replace('"few exposed"', '"few\\nexposed"'), r"^rule 1: expected one line of text, .* for name"),
        (COUNT.replace("25", '"25"'), r"^rule 'few exposed': expected a whole number, 0 or more for at_most, got '25'"),
        (COUNT.replace("25", "true"), r"expected a whole number, 0 or more for at_most, got True"),
        (COUNT.replace("25", "-1"), r"expected a whole number, 0 or more for at_most, got -1"),
        (COUNT + "at_most_share = 0.1\n", r"expected either at_most or at_most_share, got both"),
        (COUNT.replace("at_most = 25", ""), r"expected either at_most or at_most_share, got neither"),
        (COUNT + "above = 0.7\n", r"expected only at_most, at_most_share, least_power .* got 'above'"),
        (COUNT + COUNT, r"^rule: expected a different name for every rule, got 'few exposed' twice"),
        (PREDICTED.replace("0.6", "1.0"), r"expected a success of at least 0.5 and below 1 for above, got 1.0"),
        (PREDICTED.replace("0.1", "nan"), r"expected a share from 0 to 1 for at_most_share, got nan"),
        (PREDICTED.replace("above = 0.6\n", ""), r"^rule 'predicted': expected above, a success .* got none; add it"),
        (PREDICTED + "at_most = 3\n", r"got 'at_most'; did you mean at_most_share\?"),
        (COUNT + WAIVER.replace("2026-05-04", '"2026-05-04"'), r"^waiver 1: expected a date .* without quotes"),
        (COUNT + WAIVER.replace("2026-05-04", "2026-05-04T10:00:00"), r"^waiver 1: expected a date"),
        (COUNT + WAIVER.replace('owner = "Ada"\n', ""), r"^waiver 1: expected owner, one line of text, .* got none"),
        (COUNT + WAIVER.replace("few exposed", "few exposd"), r"got 'few exposd'; did you mean few exposed\?"),
        (COUNT + WAIVER + WAIVER, r"^waiver: expected one waiver per rule, got 'few exposed' twice"),
        (COUNT + WAIVER + "until = 1\n", r"^waiver 1: expected only rule, owner, expires, reason.* got 'until'"),
    ],
)
def test_a_rule_file_that_cannot_be_judged_is_refused_in_one_line(audited, text, words):
    with pytest.raises(InputError, match=words) as error:
        read_rules(rule_file(audited, text))
    assert "\n" not in str(error.value)


def test_the_format_is_toml_and_has_a_version(audited):
    for schema in ("", "schema = 2\n", "schema = true\n", 'schema = "1"\n'):
        refused(r"^gate: expected schema = 1, got ", read_rules, rule_file(audited, COUNT, schema))
    refused(r"^gate: expected a readable TOML file of rules", read_rules, rule_file(audited, "= nothing"))
    refused(r"^gate: expected a readable TOML file of rules, got .*gone.toml", read_rules, audited / "gone.toml")


@pytest.mark.parametrize("measure", ["newton", "fused", "loss", "predicted_tpr", "change"])
def test_raw_scores_are_refused_with_the_reason(audited, measure):
    with pytest.raises(InputError, match=r"no common unit: the largest newton is .03 on CIFAR-10 and 80 on Blood"):
        read_rules(rule_file(audited, COUNT.replace("measured_count", measure)))


def test_what_the_rules_need_is_known_before_the_work(audited):
    assert read_rules(rule_file(audited, PREDICTED)).missing_columns(["default"]) == ["predicted_success"]


def test_the_measured_count_against_its_limit(audited):
    met = judged(audited, COUNT)
    assert (met.state == "met", met.exit_code, met.outcomes[0].value) == (True, 0, 25)
    assert "at least 25 of 200 records (12.500%) measured as exposed, allowed 25" in met.to_text()
    assert "64 models, confidence 95%, power 0.90: more may be exposed" in met.to_text()
    missed = judged(audited, COUNT.replace("25", "24"))
    assert (missed.state == "met", missed.exit_code) == (False, 3)
    assert "0 of 1 rules met; not met: few exposed" in missed.to_text()
    for share, code in ((0.125, 0), (0.1249, 3)):
        assert judged(audited, COUNT.replace("at_most = 25", f"at_most_share = {share}")).exit_code == code


def test_a_count_never_passes_where_the_success_of_the_attack_says_more(audited):
    validated(audited / "audit", 0, by_success=60)
    missed = judged(audited, COUNT)
    assert (missed.exit_code, missed.outcomes[0].value) == (3, 60)
    assert "at least 60 of 200 records (30.000%) measured as exposed, by the success of the attack" in missed.to_text()


def test_records_that_could_not_be_judged_lower_the_power(audited):
    validated(audited / "audit", 0, power=0.9, judged=N // 9)
    words = "a count with a power of at least 0.5, got 0.10 with 64 models; train more shadow models"
    refused(words, judged, audited, COUNT + "least_power = 0.5\n")


def test_a_count_that_few_models_could_not_have_found_can_be_refused(audited):
    validated(audited / "audit", 0, power=0.1, models=8)
    with pytest.raises(
        InputError, match=r"expected a count with a power of at least 0.5, got 0.10 with 8 models; train more shadow"
    ):
        judged(audited, COUNT)
    assert judged(audited, COUNT + "least_power = 0.05\n").state == "met"
    refused(r"a power of at least 0.8, got 0.10", judged, audited, COUNT + "least_power = 0.8\n")
    validated(audited / "audit", 26, power=0.1, models=8)
    assert judged(audited, COUNT + "least_power = 0.8\n").exit_code == 3  # a lower bound above the limit needs no power


@pytest.mark.parametrize(("words", "met"), [(["few"], True), (["few", "some"], True), (["some", "many"], False)])
def test_a_predicted_share_is_judged_by_the_worst_of_its_words(tmp_path, words, met):
    share = '[[rule]]\nname = "share"\nmeasure = "predicted_share"\nat_most_word = "some"\n'
    rules = read_rules(rule_file(tmp_path, share))
    assert rules.missing_columns(["default"]) == []
    folder = made(tmp_path / "audit", 5, predicted_share={"words": words, "held_out": 900})
    (outcome,) = judge(rules, folder, TODAY).outcomes
    assert (outcome.state == "met") is met
    assert outcome.words == (
        f"{' or '.join(words)} records predicted to be exposed, allowed some (predicted from 900 records held out, not "
        "measured)"
    )
    without = made(tmp_path / "without", 5)
    assert "at least 500 records held out" in refused("share", judge, rules, without, TODAY)
    refused("at_most_word", read_rules, rule_file(tmp_path, share.replace('"some"', '"many"')))


def test_predicted_success_is_a_share_of_rows_above_a_level(audited):
    assert judged(audited, PREDICTED).outcomes[0].value == 16 / N
    assert judged(audited, PREDICTED).exit_code == 0
    assert judged(audited, PREDICTED.replace("0.1", "0.079")).exit_code == 3
    assert judged(audited, PREDICTED.replace("above = 0.6", "above = 0.8")).outcomes[0].value == 0  # above, not at
    assert judged(audited, PREDICTED.replace("above = 0.6", "above = 0.5")).outcomes[0].value == 1


def test_what_is_missing_is_an_error_and_never_met(audited):
    (audited / "audit" / "validation.json").unlink()
    refused(r"^rule 'few exposed': expected an audit that was validated, got none; run giv", judged, audited, COUNT)
    for text in ("[]", "{}", "nothing", '{"records": "many", "models": 8, "at_least_exposed": {}}'):
        (audited / "audit" / "validation.json").write_text(text, encoding="utf-8")
        refused(r"expected a readable validation.json", judged, audited, COUNT)
    validated(audited / "audit", 0, records=N - 1)
    refused(r"expected a validation of this audit, got one of 199 records beside an audit", judged, audited, COUNT)
    ScoreTable({"fused": np.arange(3.0)}, np.arange(3), meta=META).save(audited / "audit")
    words = r"expected an audit with the column predicted_success, got none; audit again with"
    refused(words, judged, audited, PREDICTED)
    black_box = META | {"optimum": None, "view": None, "predicted_by": None}
    ScoreTable({"fused": np.arange(3.0)}, np.arange(3), meta=black_box).save(audited / "audit")
    words = "predicted_success, got a black box, for which there is none; use measured_count, and giveaway validate"
    refused(words, judged, audited, PREDICTED)
    with pytest.raises(InputError, match=r"expected an audit folder with scores.npz"):
        judge(read_rules(rule_file(audited, COUNT)), audited / "gone", TODAY)


def test_theory_alone_gates_no_network(audited):
    made(audited / "audit", 16, predicted_by="theory of the head")
    refused(r"got theory of the head; .* far too low for networks and hides exposure", judged, audited, PREDICTED)
    made(audited / "audit", 16, predicted_by="theory of the head", view=None)
    refused(r"known not to be learned, got theory of the head", judged, audited, PREDICTED)
    made(audited / "audit", 16, predicted_by="theory of the head", view={"view": "tabular", "head_is_exact": True})
    assert judged(audited, PREDICTED).state == "met"


def test_a_real_audit_of_a_head_that_is_exact(tmp_path):
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    head = ga.from_sklearn(LogisticRegression().fit(x, y), x, y)
    ga.audit(head, scores=["newton", "predicted_success"]).save(tmp_path / "audit")
    (outcome,) = judged(tmp_path, PREDICTED).outcomes
    table = ScoreTable.load(tmp_path / "audit")
    assert outcome.value == np.mean([value > 0.6 for value in table["predicted_success"]])
    assert outcome.details["predicted_by"] == "theory of the head"


def test_a_waiver_holds_through_its_last_day_and_no_longer(audited):
    text = COUNT.replace("25", "1") + PREDICTED + WAIVER
    held = judged(audited, text)
    assert (held.state == "met", held.exit_code) == (False, 0)
    assert "waived: few exposed: at least 25" in held.to_text()
    assert "waived by Ada until 2026-05-04: data fix on its way" in held.to_text()
    assert "1 of 2 rules met, 1 waived." in held.to_text()
    told = held.to_json()["rules"][0]
    assert (told["met"], told["waived_by"], told["waiver"]["expired"]) == (False, "Ada", False)
    over = judged(audited, text, TODAY + datetime.timedelta(days=1))
    assert over.exit_code == 3
    assert "not met: few exposed" in over.to_text()
    assert "the waiver of Ada expired on 2026-05-04" in over.to_text()
    told = over.to_json()["rules"][0]
    assert (told["waived_by"], told["waiver"]["expired"]) == (None, True)
    met = judged(audited, COUNT + WAIVER)
    assert (met.state == "met", met.to_json()["rules"][0]["waived_by"]) == (True, None)
    assert "waived" not in met.to_text()  # a rule that is met needs no waiver


def test_the_verdict_is_kept_in_the_folder_and_purged_with_it(audited):
    verdict = judged(audited, COUNT + PREDICTED)
    path = save_page(audited / "audit", "gate.json", json.dumps(verdict.to_json()))
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["schema"] == "giveaway.gate/1"
    assert (told["met"], told["exit_code"], told["date"]) == (True, 0, "2026-05-04")
    assert [(rule["name"], rule["measure"], rule["met"]) for rule in told["rules"]] == [
        ("few exposed", "measured_count", True),
        ("predicted", "predicted_success", True),
    ]
    assert told["rules"][1]["above"] == 0.6
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (audited / "audit" / "validation.json").unlink()
    purge(audited / "audit")
    assert not (audited / "audit").exists()


def test_no_word_says_more_than_the_rules_and_no_record_is_named(audited):
    for text in (COUNT + PREDICTED, COUNT.replace("25", "1") + WAIVER):
        verdict = judged(audited, text)
        told = verdict.to_text() + json.dumps(verdict.to_json())
        assert not re.search(r"pass|\bsafe\b|compliant|anonymous|patient", told, re.IGNORECASE)
