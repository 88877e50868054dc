"""Hostile text wherever a user can put text: every command ends in a result or a line, and no text becomes more.

Each case draws texts for names of records, people, columns, classes, files, folders, rules and titles, values of
tables, options and configurations, and words of errors; then all commands run on them. Wrong is a page with other tags
or scripts than one of friendly names, a cell that starts a formula, a file that its format's parser refuses, a hidden
sign on the screen or a page, a name or value in what is shared or printed, and a traceback.
"""

import contextlib
import csv
import io
import json
import os
import random
import re
import tempfile
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import markdown
import numpy as np
import pandas
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from tests.every_command import Run, holds, made_arrays, made_signals, run, working_in
from tests.reporting.test_report import Page
from tests.test_hostile import CONTENT_POLICY, HALVES, Shape
from tests.test_hostile import HOSTILE as KNOWN

from benchmarks.hunting.folders import quick_pages

COUNT = 100
N = 100
DRAWN_EVERY = 20  # cases whose pages have their pictures and maps
SECRET = "zqsecret"  # stands in every text that is neither printed nor shared
SIGNS = ("=1+1", "+1", "-1+1", "@SUM(A1)", "\uff1d1+1", '=HYPERLINK("//example.org")', '"=1+1"')
BEFORE = ["", ";", "|", "\t", "\r", "\n", "\v", "\f", "\x00", "\x1c", "\x7f", "\x85", "\x9b", "\u200b", "\u200d"]
BEFORE += [
    "\u2028",
    "\u2060",
    "\ufeff",
    "\u202e",
    "\u00ad",
    "\u180e",
    "\u3000",
    "\u3164",
    "\ufe0f",
    "\ufffe",
    " ",
    "'",
    '"',
]
BEFORE += ['";', ",", '",', "\U000e0041"]
MORE = [
    "\x1b[2J", "\x1b]8;;//example.org\x07link\x1b]8;;\x07", "\x1bP1$r\x1b\\", "\x1b[6n", "\x08" * 9, "\x7f",
    "\x80\x9f", "\x85", "\u202eabc", "\u2067abc", "\u2066=1+1\u2069", "\ufeffname", "\ufffename",
    "\U000e0001\U000e0041", "a\x00b", "\x00", "\ud800", "\udc80", "a\udfffb", "\u200d\u200c", "\u034f",
    "e" + "\u0301" * 300, "\u0600\u06dd", "\u13430", "<zqtag>", "<svg/onload=alert(1)>",
    "<img src=x onerror=alert(1)>", "<style>*{display:none}</style>", "<!--", "-->", "<![CDATA[", "]]>", "</script>",
    "</textarea><zqtag>", "<base href=//example.org>", "<a href='javascript:x'>", "&#x3c;zqtag>", "&lt;zqtag&gt;",
    "\u2028</script>", "<\x00script>", "<meta http-equiv=refresh content=0>", "`${alert(1)}`", "{% include 'x' %}",
    "{{ self }}", "{# note", '"', "''", '""', '"""', "'''", "\\", '\\"', "\\u0022", '",', '"\n', "a,b", "a;b", "a\tb",
    "#", "# note", "[x]", "]", "x = 1", '"\nl2 = 9\n"', "{}", "null", "NaN", "1e999", "$x$", "$\\frac{$", "$_{", "_^",
    "%", "%s", "%n", "{0}", "{x.__class__}", "../..", "/etc/passwd", "~", "~root", ".", "..", "C:\\", "\\\\host\\x",
    "CON", "-", "--out", "-rf", "--json", "*", "?", "[a-z]", "$HOME", "$(id)", "`id`", "; id", "| id", "&& id",
    "file://x", "http://example.org", "\\n", "\r\n\r\n", "a\u2029b", "0", "-0", "1e5", "inf", "True", "", " ",
    "\u3000", "I\u0307", "\ufb01", "L" * 1_000, "=" * 500, "<" * 900, "\u202e" * 900,
]  # fmt: skip
TEXTS = [*dict.fromkeys([*KNOWN, *HALVES, *MORE, *(before + sign for before in BEFORE for sign in SIGNS[:5])])]
LONG = ["L" * 100_000, "=1+1" * 25_000, "<zqtag>" * 15_000, "\x1b" * 100_000]
SEEN = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd"  # signs of numbers, which Unicode calls a format
UNSEEN = '"\u034f\u115f\u1160\u17b4\u17b5\u180b\u2800\u3164\ufe0f\uffa0'  # that Unicode does not call a format
JOINERS = {"\u200c", "\u200d", "\u00ad"}  # spelling
ARGUMENTS = [("report",), ("purge",), ("index",), ("validate",), ("lood",), ("audit", "--features")]
OF_CARDS = {"h2", "h3", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}
RAISED = ("ValueError({0})", "KeyError({0})", "OSError({0})", "OSError(28, {0}, {0})", "FileNotFoundError(2, 'x', {0})")
RAISED += ("UnicodeError({0})", "AssertionError({0})")


def hidden(text: str) -> set[str]:
    """The control, format and surrogate characters of a text, apart from those of spelling, tabs and line ends."""
    kinds = ("Cc", "Cs", "Zl", "Zp")
    marks = {sign for sign in set(text) - JOINERS - {"\n", "\t"} if unicodedata.category(sign) in kinds}
    return marks | set(
        re.findall("[\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]", text)
    )


def starts_formula(cell: str) -> bool:
    """Whether a spreadsheet could see a formula: the first visible sign, also where another separator splits a cell."""
    if re.fullmatch(r"-?\d+(\.\d*)?([eE][-+]?\d+)?", cell):
        return False
    for part in re.split("[;|\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029]", cell):
        seen = [
            sign for sign in part if sign in SEEN or (sign not in UNSEEN and unicodedata.category(sign)[0] not in "CZ")
        ]
        if seen and seen[0] in "=+-@\uff1d\uff0b\uff0d\uff20":
            return True
    return False


# ------------------------------------------------------------------------------------------------ what is drawn


def text(rng: random.Random, *, long: float = 0.0) -> str:
    if rng.random() < long:
        return rng.choice(LONG)
    return "".join(rng.choices(TEXTS, k=rng.choice([1, 1, 1, 2, 3])))[:900]


def named(rng: random.Random, n: int, mark: str) -> list[str]:
    """n different secrets, hostile from the first letter on; in one of twenty cases one of them is too long."""
    names = [f"{text(rng) if rng.random() < 0.8 else ''}{SECRET}{mark}{i}" for i in range(n)]
    if rng.random() < 0.05:
        names[rng.randrange(n)] = rng.choice(LONG) + SECRET
    return names


def file_name(rng: random.Random, end: str) -> str:
    """A name that the file system takes."""
    name = re.sub("[/\x00\ud800-\udc7f\udd00-\udfff]", "", text(rng))
    name = os.fsdecode(os.fsencode(name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape"))[:150])
    return f"./{name}x{end}"


def extra_key(rng: random.Random) -> dict[str, np.ndarray]:
    """An array under a name that a zip takes."""
    return {re.sub("[/\ud800-\udfff]", "", f"x{text(rng)}"): np.zeros(2)}


def in_toml(value: str) -> str:
    """A string of TOML, with everything but plain letters escaped; halves of letters have no escape there."""
    whole = re.sub("[\ud800-\udfff]", "", value)
    return '"' + "".join(sign if sign.isascii() and sign.isalnum() else f"\\U{ord(sign):08x}" for sign in whole) + '"'


def write_case(rng: random.Random) -> list[tuple[str, ...]]:
    """Write what a user hands over into the working folder; return the commands to run there."""
    features, out, rules = file_name(rng, ".npz"), file_name(rng, ""), file_name(rng, ".toml")
    np.savez(features, **made_arrays(N), ids=np.array(named(rng, N, "id")), **extra_key(rng))
    np.save("people.npy", np.array([name for name in named(rng, N // 2, "person") for _ in range(2)]))
    np.savez("text.npz", inputs=np.array([f"{name} red cat" for name in named(rng, N, "words")]))
    np.savez("table.npz", inputs=np.c_[made_arrays(N)["features"][:, 0].astype(str), np.array(named(rng, N, "cell"))])
    np.savez("signals.npz", **made_signals(N), **extra_key(rng))
    wards = [f"{text(rng)} {k}" for k in range(3)]
    table = io.StringIO(newline="")
    lines = csv.writer(table, quoting=csv.QUOTE_ALL)
    small = f"{text(rng)}{SECRET}small"  # of too few for a summary
    lines.writerow([f"{text(rng)} {k}" for k in range(2)])
    lines.writerows([[small if i in (3, 50) else wards[i % 2], wards[2 - i % 2]] for i in range(N)])
    Path("wards.csv").write_bytes(table.getvalue().encode("utf-8", "replace"))
    words = [text(rng) + "r" for _ in range(3)]
    if rng.random() < 0.7:  # rules take one line without hidden signs
        words = ["".join(sign for sign in word if sign.isprintable())[-150:] for word in words]
    rule, *words = map(in_toml, words)
    Path(rules).write_text(
        f'schema = 1\n[[rule]]\nname = {rule}\nmeasure = "measured_count"\nleast_power = 0.0\nat_most = 0\n'
        f"[[waiver]]\nrule = {rule}\nowner = {words[0]}\nexpires = 9999-01-01\nreason = {words[1]}\n"
    )
    title = in_toml(text(rng, long=0.02))
    Path("config.toml").write_text(f'title = {title}\nmap = "pca"\n')
    option = rng.choice(
        ["features", "inputs", "groups", "ids", "loss", "layer", "device", "by", "gate", "trace", "scores"]
    )
    option = rng.choice([option, "pseudonymize", "held_out", "model", "data", "cache", "kernel", "precision", "out"])
    Path("bad.toml").write_text(f"{option} = {in_toml(text(rng, long=0.02))}\n")
    classes = [f"{text(rng)}{SECRET}class{k}" for k in range(2)]
    y = np.array([classes[i % 2] for i in range(N)])
    values = [name[:900] for name in named(rng, 4, "value")]
    frame = pandas.DataFrame(
        {f"{text(rng)} {SECRET} a": np.arange(N) % 3, f"{text(rng)} b": [values[i % 4] for i in range(N)]}
    )
    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(frame, y)
    joblib.dump((model, frame, y), "data.joblib")
    joblib.dump(model, "model.joblib")
    raised = rng.choice(RAISED).format(ascii(text(rng) + SECRET))
    Path("users_code.py").write_text(
        "import joblib\ndef data():\n    return joblib.load('data.joblib')[1:]\ndef broken():\n    raise "
        + raised
        + "\n"
    )
    return commands_of(rng, features, out, rules)


def commands_of(rng: random.Random, features: str, out: str, rules: str) -> list[tuple[str, ...]]:
    as_json = [("--json",) if rng.random() < 0.5 else () for _ in range(7)]
    estimator = ("--estimator", "model.joblib", "--data", "users_code:data", "--allow-pickle")
    given = rng.choice([("--inputs", "text.npz"), ("--inputs", "table.npz"), ()])
    more = [
        ("--subgroups", "wards.csv"),
        ("--groups", "people.npy"),
        ("--show-records",),
        ("--pseudonymize", file_name(rng, ".key")),
    ]
    source = estimator if rng.random() < 0.25 else ("--features", features, "--l2", "0.5", *given)
    options = [
        word
        for option, chance in zip(more, (0.7, 0.3, 0.5, 0.1), strict=True)
        if rng.random() < chance
        for word in option
    ]
    csv_file = file_name(rng, ".csv")
    page = file_name(rng, ".html")
    return [
        ("audit", *source, *options, "--config", "config.toml", "--out", out, *as_json[0]),
        ("report", out),
        ("validate", out, "--signals", "signals.npz", *as_json[1]),
        ("gate", out, rules, *as_json[2]),
        ("canaries", out, "-k", "3", "--out", rng.choice([out, csv_file]), *as_json[3]),
        ("weights", out, "--out", rng.choice([out, csv_file]), *as_json[4]),
        ("compare", out, out, "--out", out, *as_json[5]),
        ("index", out, "others", "--out", page),
        ("export", out, "--to", "model-card", "--by", text(rng), "--gate", rules, "--out", "summary.card.md"),
        ("export", out, "--to", "json", "--by", text(rng), *(("--gate", rules) if rng.random() < 0.5 else ())),
        ("audit", "--config", "bad.toml", *as_json[6]),
        ("audit", "--model", "users_code:broken", "--data", "users_code:broken"),
        ("audit", "--estimator", "model.joblib", "--data", "users_code:broken", "--allow-pickle"),
        (*rng.choice(ARGUMENTS), f"{text(rng, long=0.05)}x".replace("\x00", "")),
    ]


def write_others(rng: random.Random) -> None:
    """A summary that somebody else wrote, with hostile texts in place of some of its entries."""
    made = json.loads(Path("others/summary.json").read_text(encoding="utf-8"))
    for name in rng.sample(
        sorted(name for name, value in made.items() if isinstance(value, str) and name != "schema"), 2
    ):
        made[name] = text(rng, long=0.1)
    Path("others/summary.json").write_text(json.dumps(made))


# ------------------------------------------------------------------------------------------------ what is checked


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def wrong_on_screen(done: Run) -> Iterator[str]:
    if "Traceback (" in done.said or done.code not in (0, 1, 2, 3):
        yield f"a traceback or code {done.code}: {done.said[-200:]!a}"
    if found := hidden(done.said):
        yield f"{found!a} on the screen"
    if SECRET in done.said.replace(" ".join(done.arguments), "") and not any(SECRET in word for word in done.arguments):
        yield f"a name or value on the screen: {done.said[max(0, done.said.index(SECRET) - 150) :][:250]!a}"
    lines = [line for line in done.err.splitlines() if line.startswith("giveaway: ")]
    if done.code in (1, 2) and (len(lines) != 1 or len(lines[0]) > 2_500):
        yield f"not one line but {len(lines)} of {max(map(len, lines), default=0)} letters"
    if done.code == 1 and " at line " in done.err and "users_code" not in done.err:
        yield f"unforeseen: {lines}"
    printed = "--json" in done.arguments or "json" in done.arguments
    if printed and done.code in (0, 3):
        json.loads(done.out, parse_constant=refuse)


def wrong_with(path: Path, friendly: dict[str, Shape]) -> Iterator[str]:
    """Say what is wrong with a file that was written."""
    shared = path.name.startswith("summary.") or (path.suffix == ".html" and path.name != "report.html")
    if shared and holds(path, SECRET):
        yield "a name or value in what is shared"
    if path.suffix == ".html":
        page = path.read_text(encoding="utf-8")
        Page(page)
        like = friendly[path.name if path.name in friendly else "index.html"]
        found = Shape(page)
        if more := {*found.tags} - {*like.tags} | {f"{tag} {name}" for tag, name in found.named - like.named}:
            yield f"tags of others: {more}"
        if [one for one in found.addresses if not one.startswith(("data:", "#"))] or CONTENT_POLICY not in page:
            yield "an address, or another policy"
        if {*found.scripts} - {*like.scripts} or any(
            content != like.scripts[name] for name, content in found.scripts.items() if name != "maps-data"
        ):
            yield "another script"
        if marks := hidden(" ".join(found.said)):
            yield f"{marks!a} on the page"
        if "could not be made" in page:
            yield "a section could not be made: " + page[page.index("could not be made") :][:200]
        if "maps-data" in found.scripts:
            json.loads(found.scripts["maps-data"])
    elif path.suffix == ".csv":
        csv.field_size_limit(2**30)
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.reader(stream, strict=True))
        if len({len(row) for row in rows}) != 1:
            yield "rows of different lengths"
        yield from (f"a formula: {cell[:60]!a}" for row in rows for cell in row if starts_formula(cell))
    elif path.name == "summary.card.md":
        card = path.read_text(encoding="utf-8")
        tags = {*Shape(markdown.markdown(card, extensions=["tables"])).tags}
        if tags - OF_CARDS or hidden(card):
            yield f"{tags - OF_CARDS} or {hidden(card)!a} in a model card"
    elif path.suffix == ".json":
        json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    elif path.suffix == ".toml":
        tomllib.loads(path.read_text(encoding="utf-8"))


def pages_of_friends(names: tuple[str, ...] = ("report.html", "summary.html")) -> dict[str, Shape]:
    """Audit friendly names with every option that adds a part to a page; the summary stays for the index of others."""
    np.savez("features.npz", **made_arrays(N), ids=np.array([f"name {i}" for i in range(N)]))
    np.savez("text.npz", inputs=np.array([f"red cat {i % 7} {i}" for i in range(N)]))
    np.savez("signals.npz", **made_signals(N))
    np.save("people.npy", np.array([f"person {i // 2}" for i in range(N)]))
    Path("wards.csv").write_text("ward\n" + "".join(f"ward {i % 2}\n" for i in range(N)))
    source = ("audit", "--features", "features.npz", "--l2", "0.5", "--inputs", "text.npz", "--subgroups", "wards.csv")
    merged: dict[str, Shape] = {}
    for out, options in (("others", ("--show-records",)), ("people", ("--groups", "people.npy"))):
        for command in (
            (*source, *options, "--config", "title=friends", "--out", out),
            ("validate", out, "--signals", "signals.npz"),
            ("index", out, "--out", f"{out}/index.html"),
        ):
            done = run(*command)
            if done.code:
                raise RuntimeError(done.said)
        for name in (*names, "index.html"):
            shape = Shape(Path(out, name).read_text(encoding="utf-8"))
            if name in merged:
                shape.tags += merged[name].tags
                shape.named |= merged[name].named
                shape.scripts = merged[name].scripts | shape.scripts
            merged[name] = shape
    return merged


def hunt(count: int, seed: int) -> dict[str, Any]:
    wrong, ended, files = list[str](), Counter[str](), Counter[str]()
    friendly: dict[bool, dict[str, Shape]] = {}
    for number in range(count):
        rng, drawn = random.Random(f"{seed} {number}"), number % DRAWN_EVERY == 0
        pictures = contextlib.nullcontext() if drawn else quick_pages()
        with tempfile.TemporaryDirectory(prefix="hunt-") as place, working_in(Path(place)), pictures:
            if drawn not in friendly:
                friendly[drawn] = pages_of_friends()
                summary = Path("others/summary.json").read_text(encoding="utf-8")
            for path in Path().iterdir():
                if path.is_file():
                    path.unlink()
            Path("others").mkdir(exist_ok=True)
            Path("others/summary.json").write_text(summary, encoding="utf-8")
            commands = write_case(rng)
            write_others(rng)
            given = {path for path in Path().rglob("*") if path.is_file()}
            for command in commands:
                done = run(*command)
                ended[f"{command[0]}: {'refused' if done.code in (1, 2) else 'a result'}"] += 1
                try:
                    found = list(wrong_on_screen(done))
                except ValueError as error:
                    found = [f"{error!a}"]
                wrong += [f"{number}, {command[0]}: {words}" for words in found]
            for path in sorted({path for path in Path().rglob("*") if path.is_file()} - given):
                files[path.suffix] += 1
                try:
                    found = list(wrong_with(path, friendly[drawn]))
                except (ValueError, AssertionError, csv.Error) as error:
                    found = [f"{type(error).__name__}: {error!a}"]
                wrong += [f"{number}, {path.name!a}: {words}" for words in found]
            done = run("purge", commands[0][commands[0].index("--out") + 1])
            wrong += [f"{number}, purge: {words}" for words in wrong_on_screen(done)]
    told = {
        "files read again": dict(files),
        "commands": sum(ended.values()) + count,
        "ended": dict(sorted(ended.items())),
    }
    return {"cases": count, "texts": len(TEXTS) + len(LONG), **told, "wrong": len(wrong), "first": wrong[:10]}
