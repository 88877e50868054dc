"""docs/results.md from the committed results alone: what the papers print beside ours, and what they claim, judged."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.reproduce import claims_gls, claims_mia, page_gls, page_lood, page_mia
from benchmarks.reproduce.claims import NO_DATA, NOT_RUN, Claim, Results
from benchmarks.reproduce.printed_mia import TOP
from benchmarks.reproduce.settings import HOMES

PICTURE = re.compile(r"!\[[^]]*]\(images/([^)]+)\)")
ASKED = {"gls_resnet18": " --models 65", "gls_full_model": " --targets 4"}  # beside --data
OPENING = """\
# The papers' experiments

The three papers that this library builds on print tables and figures. Here is each that can be had, beside what we
measure with our own code, and a verdict on every claim. Numbers of ours come from `benchmarks/reproduce/results`; of
LOOD, some come from `benchmarks/results/lood_figures.json` (its section says which). This page and its pictures are
written by

```console
python -m benchmarks.reproduce table
python -m benchmarks.reproduce figures --data DIR
```

from what is kept, without training or measuring anything (`--data` for the two pictures that show records). One setting
is measured again, from its data to its numbers, by `python -m benchmarks.reproduce run SETTING --data DIR` (`--small`
tries it out on made data). A run that is stopped goes on where it was. Ours differ from the papers' experiments in
encoders, splits, numbers of models and machines; each section says where.

All of these are rankings, compared with what attacks find. A ranking is not a count of exposed records, and a record
that none of these attacks finds may be found by another.
"""


def write_page(results: Path, docs: Path) -> Path:
    """Write docs/results.md; where it is."""
    path = docs / "results.md"
    path.write_text(page(read_results(results), docs / "images"), encoding="utf-8")
    return path


def read_results(folder: Path) -> Results:
    """What was measured, by setting. Results of a small run have no place on the page."""
    files = {name: folder / f"{name}.json" for name in HOMES}
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    small = [name for name, result in found.items() if result["small"]]
    if small:
        raise SystemExit(f"results: {', '.join(small)} of {folder} is of a small run; run it again without --small")
    return found


def page(results: Results, images: Path) -> str:
    """The whole page; pictures that are not in `images` are left out."""
    lines = [*OPENING.splitlines(), "", *_verdicts(results), *_still_to_run(results)]
    lines += [*page_mia.section(results), *page_gls.section(results), *page_lood.section(results)]
    kept = []
    for line in lines:
        picture = PICTURE.match(line)
        if picture is None or (images / picture[1]).exists():
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).rstrip("\n") + "\n"


def claims_of_all(results: Results) -> dict[str, list[Claim]]:
    """By paper."""
    return {
        "Scores against shadow models": claims_mia.claims(results),
        "Generalized leverage scores": claims_gls.claims(results),
        "Leave-one-out distinguishability": page_lood.claims(results),
    }


def _verdicts(results: Results) -> list[str]:
    lines = ["## Verdicts", ""]
    for paper, claims in claims_of_all(results).items():
        lines += [f"### {paper}", "", "| claim | verdict | measured |", "|---|---|---|"]
        lines += [f"| {_capital(claim.text)} | **{claim.verdict}** | {_capital(claim.why)} |" for claim in claims]
        lines.append("")
    return lines


def _still_to_run(results: Results) -> list[str]:
    waiting = [name for name in HOMES if name not in results]
    here = [name for name in waiting if claims_mia.missing(name) == NOT_RUN or name not in TOP]
    lines = []
    if here:
        lines = ["## Still to be run", "", f"Rows of these settings say “{NOT_RUN}”.", "", "```console"]
        lines += [f"python -m benchmarks.reproduce run {name} --data DIR{ASKED.get(name, '')}" for name in here]
        lines += ["```", ""]
    if "cifar100_resnet20" in waiting:
        lines += [
            f"CIFAR-100, ResNet-20: {NO_DATA}. Its recipe and loader are there, for the folder that torchvision writes "
            "(`python -m benchmarks.reproduce run cifar100_resnet20 --data DIR`).",
            "",
        ]
    return lines


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
