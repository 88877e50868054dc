"""What an audit's options do to its report: access, subgroups, pseudonyms, maps, gates, the index."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from giveaway.records import ScoreTable
from tests.test_cli import SECRET, N, arrays, file, folder, one_line  # noqa: F401

PREDICTED = """
schema = 1
[[rule]]
name = "hardly any"
measure = "predicted_success"
above = {above}
at_most_share = 0.0
"""


def audited(giveaway, file, *options, out="result"):  # noqa: F811
    code, said, err = giveaway("audit", "--features", file, "--l2", 0.5, "--out", out, *options)
    assert code == 0, err
    return said


def words_of(name: str, out: str = "result") -> str:
    page = re.sub(r"<script.*?</script>", "", Path(out, name).read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_access_is_on_the_first_screen_of_both_pages(giveaway, file):  # noqa: F811
    audited(giveaway, file, "--access", "labels")
    for name in ("report.html", "summary.html"):
        assert (
            "Someone who already holds a record, with its label, and has the model's predicted label for it."
            in words_of(name)
        )
    assert json.loads(Path("result/summary.json").read_text())["access"] == "labels"
    line = one_line(giveaway("audit", "--features", file, "--access", "gradients"))
    assert "'gradients' is not one of 'labels', 'probabilities', 'weights'" in line


def test_subgroups_of_records_and_of_people(giveaway, file):  # noqa: F811
    sex = ["f" if i % 4 < 2 else "m" for i in range(N)]
    Path("sub.csv").write_text("sex,site\n" + "".join(f"{s},{i % 2}\n" for i, s in enumerate(sex)))
    audited(giveaway, file, "--subgroups", "sub.csv")
    table = ScoreTable.load("result")
    assert table["subgroup_sex"].tolist() == sex
    assert {"By class", "By sex", "By site"} <= set(re.findall(r"By (?:class|sex|site)", words_of("report.html")))
    Path("people.txt").write_text("\n".join(str(i // 2) for i in range(N)))
    audited(giveaway, file, "--subgroups", "sub.csv", "--groups", "people.txt", out="people")
    people = ScoreTable.load("people", "people")
    assert set(people["subgroup_sex"].tolist()) == {"f", "m"}
    assert set(people["subgroup_site"].tolist()) == {"several"}
    line = one_line(giveaway("audit", "--features", file, "--subgroups", "none.csv", "--out", "other"))
    assert line.startswith("subgroups: expected a file that exists")
    assert not Path("other").exists()


def test_pseudonyms_stand_for_names_everywhere(giveaway, file):  # noqa: F811
    audited(giveaway, file, "--pseudonymize", "key", "--show-records", "--inputs", _inputs())
    assert SECRET not in Path("result/scores.csv").read_text() + Path("result/report.html").read_text()
    first = ScoreTable.load("result")
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in first.ids.tolist())
    assert set(first["nearest"][int(first.order()[0])].split(", ")) <= set(first.ids.tolist())
    audited(giveaway, file, "--pseudonymize", "key", "--show-records", "--inputs", _inputs(), out="again")
    assert ScoreTable.load("again").ids.tolist() == first.ids.tolist()
    assert Path("key").stat().st_mode & 0o777 == 0o600


def _inputs() -> str:
    np.save("inputs.npy", np.random.default_rng(0).random((N, 3)))
    return "inputs.npy"


@pytest.mark.slow
def test_a_validation_is_in_the_pages_from_then_on(giveaway, done, folder):  # noqa: F811
    rng = np.random.default_rng(0)
    n = 120
    arrays_of = {"features": rng.normal(size=(n, 3)), "outputs": rng.normal(size=(n, 2)), "targets": np.arange(n) % 2}
    np.savez("large.npz", **arrays_of)
    members = np.stack([rng.permutation(np.arange(16) < 8) for _ in range(n)], axis=1)
    margin = np.where(arrays_of["targets"] == 1, 1, -1) * np.diff(arrays_of["outputs"]).ravel()
    np.savez("signals.npz", phi=rng.normal(size=(16, n)) + 5 * members + margin, members=members)
    options = ("audit", "--features", "large.npz", "--loss", "cross_entropy", "--out", "result")
    done(*options)
    assert "exposed? Not known. No attack was measured" in words_of("report.html")
    Path("rule.toml").write_text('schema = 1\n[[rule]]\nname = "few"\nmeasure = "measured_count"\nat_most = 3\n')
    said = giveaway("validate", "result", "--signals", "signals.npz")[2]
    assert "Signals: 16 models on 120 records\n" in said
    code, out, err = giveaway("validate", "result", "--signals", "signals.npz", "--gate", "rule.toml")
    assert code == 3, err
    assert "not met: few" in out
    count = json.loads(Path("result/validation.json").read_text())["at_least_exposed"]["records"]
    assert count > 3
    for name in ("report.html", "summary.html"):
        told = "At least" if name == "summary.html" else f"At least {count} of 120 records are exposed"  # rounded there
        assert told in words_of(name)
        assert "No attack was measured" not in words_of(name)
    code, said, _ = giveaway(*options)  # the same audit again keeps what was measured
    assert code == 0
    assert f"At least {count} of 120 records are exposed" in said
    assert "Ranking only" not in said
    assert f"At least {count} of 120" in words_of("report.html")
    code, out, _ = giveaway("validate", "result", "--signals", "signals.npz", "--gate", "rule.toml", "--json")
    assert code == 3
    assert json.loads(out)["gate"]["rules"][0]["value"] == count
    assert giveaway("index", "result", "--out", "index.html")[:2] == (0, "Wrote index.html\n")
    page = Path("index.html").read_text()
    shared = int(re.search(r">(\d+) of 120</td>", page)[1])
    assert count - 10 <= shared <= count  # rounded, never up
    assert "not met" in page


@pytest.fixture
def fitted(folder, arrays):  # noqa: F811
    """A model that knows its records: their classes are what it says."""
    told = 5.0 * arrays["features"] @ arrays["weight"].T
    ids = np.array([f"{SECRET}-{i:03d}" for i in range(N)])
    np.savez("fitted.npz", features=arrays["features"], outputs=told, targets=told.argmax(1), ids=ids)
    return "fitted.npz"


@pytest.mark.slow
def test_a_gate_gives_the_audit_the_columns_it_looks_at(giveaway, fitted):
    file = fitted  # noqa: F811
    options = ("--inputs", _inputs())
    Path("strict.toml").write_text(PREDICTED.format(above=0.5))
    Path("loose.toml").write_text(PREDICTED.format(above=0.999999))
    audited(giveaway, file, *options, "--gate", "loose.toml")
    assert "predicted_success" in ScoreTable.load("result").columns
    assert "1 of 1 rules met" in audited(giveaway, file, *options, "--gate", "loose.toml")
    base = ("audit", "--features", file, "--l2", 0.5, *options)
    code, out, err = giveaway(*base, "--gate", "strict.toml", "--out", "strict")
    assert code == 3, err
    assert "not met: hardly any" in out
    assert SECRET not in out + err
    code, out, _ = giveaway(*base, "--gate", "strict.toml", "--out", "strict", "--json")
    assert code == 3
    assert json.loads(out)["gate"]["met"] is False
    line = one_line(giveaway(*base, "--gate", "strict.toml", "--scores", "newton", "--out", "new"))
    assert "expected the column predicted_success among the scores" in line
    Path("raw.toml").write_text(PREDICTED.format(above=0.5).replace("predicted_success", "newton"))
    line = one_line(giveaway(*base, "--gate", "raw.toml", "--out", "new"))
    assert "no common unit" in line
    assert not Path("new").exists()


def test_columns_besides_the_default_ones(giveaway, fitted):
    audited(giveaway, fitted, "--inputs", _inputs(), "--scores", "default,predicted_success, lood_kl")
    columns = ScoreTable.load("result").columns
    assert {"fused", "newton", "predicted_success", "lood_kl"} <= set(columns)
    assert "predicted_success" in words_of("report.html")
    assert json.loads(Path("result/summary.json").read_text())["mean_predicted_success"] > 0


def test_ids_and_a_title_from_the_command_line(giveaway, folder, arrays):  # noqa: F811
    np.savez("plain.npz", **arrays)
    Path("ids.txt").write_text("".join(f"row {i}\n" for i in range(N)))
    audited(giveaway, "plain.npz", "--ids", "ids.txt", "--config", "title=<b>Readmission</b> v3")
    assert ScoreTable.load("result").ids.tolist() == [f"row {i}" for i in range(N)]
    for name in ("report.html", "summary.html"):
        page = Path("result", name).read_text()
        assert "&lt;b&gt;Readmission&lt;/b&gt; v3" in page
        assert json.loads(Path("result/audit.json").read_text())["provenance"]["date"] in page
    Path("ids.txt").write_text("one\n")
    line = one_line(giveaway("audit", "--features", "plain.npz", "--ids", "ids.txt", "--out", "other"))
    assert line.startswith("ids: expected one name a record, 40 in all, got shape (1,)")


def test_signals_of_other_records_are_refused(giveaway, done, folder):  # noqa: F811
    rng = np.random.default_rng(0)
    n = 120
    np.savez("a.npz", features=rng.normal(size=(n, 3)), outputs=rng.normal(size=(n, 2)), targets=np.arange(n) % 2)
    members = np.stack([rng.permutation(np.arange(16) < 8) for _ in range(n)], axis=1)
    labels = np.arange(n) % 2
    labels[7] = 1 - labels[7]
    np.savez("signals.npz", logits=rng.normal(size=(16, n, 2)), members=members, labels=labels)
    options = ("--features", "a.npz", "--loss", "cross_entropy", "--out", "result")
    done("audit", *options)
    code, _, err = giveaway("validate", "result", "--signals", "signals.npz")
    assert code == 2
    assert "expected the audit's own records, got other classes in 1 of them, first in row 7" in err
    assert not Path("result/validation.json").exists()
