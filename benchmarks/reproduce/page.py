"""docs/results.md from the committed results alone: what the papers print beside ours, and what they claim, judged."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.reproduce import claims as written
from benchmarks.reproduce.claims import NO_DATA, NOT_RUN, Claim, Results, judge
from benchmarks.reproduce.job import SETTINGS

FOLDER = Path(__file__).parent
PAPERS = ("per_sample", "gls", "lood", "traces")  # in the order of the page
PICTURE = re.compile(r"!\[[^]]*]\(images/([^)]+)\)")
BENCHMARKS = Path(__file__).parents[1] / "results"
FIGURES = BENCHMARKS / "lood_figures.json"
NOT_THE_PAPERS = ("per_target", "halves", "fused", "fused_records")  # phases of Table 4 that only we have


def write_page(results: Path, docs: Path) -> Path:
    """Write docs/results.md and return its path."""
    path = docs / "results.md"
    path.write_text(page(read_results(results), docs / "images"), encoding="utf-8")
    return path


def read_results(folder: Path) -> Results:
    """Read what was measured, by setting. Results of a small run have no place on the page."""
    files = {name: folder / f"{name}.json" for name in SETTINGS}
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    small = [name for name, result in found.items() if result["small"]]
    if small:
        raise SystemExit(f"results: {', '.join(small)} of {folder} is of a small run; run it again without --small")
    return found


def page(results: Results, images: Path) -> str:
    """Return the whole page; pictures that are not in `images` are left out."""
    names = {"papers": claims_of_all(results), "waiting": [name for name in SETTINGS if name not in results]}
    parts = [written.section_template("page.md.jinja").render(**names, **words("per_sample", results))]
    text = "\n\n".join([*parts, *(section(paper, results) for paper in PAPERS)])
    pictures = ((line, PICTURE.match(line)) for line in text.splitlines())
    kept = [line for line, picture in pictures if picture is None or (images / picture[1]).exists()]
    return written.unwrap("\n".join(kept))


def section(paper: str, results: Results) -> str:
    """Return one paper's part of the page."""
    return written.unwrap(written.section_template(f"{paper}/page.md.jinja").render(**words(paper, results)))


@cache
def read_paper(name: str) -> dict[str, Any]:
    """Return the printed values, claims, rules and limits of one paper."""
    return tomllib.loads((FOLDER / name / "paper.toml").read_text(encoding="utf-8"))


def claims_of_all(results: Results) -> dict[str, list[Claim]]:
    """Return the claims with their verdicts, by the paper's title."""
    return {read_paper(paper)["title"]: claims_of(paper, results) for paper in PAPERS}


def claims_of(paper: str, results: Results) -> list[Claim]:
    return judge(words(paper, results))


def words(paper: str, results: Results) -> dict[str, Any]:
    """Return all that the rules and the template of a paper may speak of."""
    names: dict[str, Any] = dict.fromkeys(SETTINGS) | results
    names |= {"results": results, "NOT_RUN": NOT_RUN, "NO_DATA": NO_DATA, **read_paper(paper)}
    return names | OF_PAPER[paper](names)


def _of_per_sample(names: dict[str, Any]) -> dict[str, Any]:
    """Functions of one setting's result, for the rules and tables."""
    recall, printed = names["recall"], names["printed"]

    def top(found: dict[str, Any], score: str, truth: str = "lira") -> float:
        return found["agreement"][truth][score][recall][0]

    def each_target(found: dict[str, Any], score: str) -> list[float]:
        return found["top 1% in 5%, each target"][score]

    def finds_more(found: dict[str, Any], scores: list[str], other: str) -> Any:
        return written.worst(
            *(written.gain(each_target(found, score), each_target(found, other))["verdict"] for score in scores)
        )

    def differ(found: dict[str, Any], one: Sequence[str], other: Sequence[str]) -> Any:
        """Judge whether one (truth, score) has a higher recall than another, from means and deviations over targets."""
        cells = [found["agreement"][truth][score][recall] for truth, score in (one, other)]
        margin = written.ERRORS * math.hypot(cells[0][1] or 0, cells[1][1] or 0) / math.sqrt(found["targets"])
        return written.beyond(cells[0][0] - cells[1][0], margin, found["targets"])

    def above_chance(own: dict[str, Any]) -> Any:
        middle, deviation = own[recall]
        margin = written.ERRORS * (deviation or 0) / math.sqrt(own["targets"])
        return written.beyond(middle - names["limits"]["chance"], margin, own["targets"])

    def missing(name: str) -> str:
        return NOT_RUN if name in names["to_be_had"] or name not in names["settings"] else NO_DATA

    def cell(name: str, score: str, metric: str, truth: str = "lira", places: int = 2) -> str:
        """Write ours: per cent with so many places, Spearman with three; or why there is none."""
        if name not in names["results"]:
            return missing(name)
        measured = names["results"][name]["agreement"][truth]
        if score not in measured:
            return "not scored"
        digits, scale = (3, 1) if metric == "spearman" else (places, 100)
        return written.spread(measured[score][metric], digits, scale)

    def compared(
        found: dict[str, Any], cells: Iterable[tuple[str, str, Any]]
    ) -> Iterator[tuple[str, str, float, bool]]:
        """Each printed cell that has ours beside it: score, metric, how much more ours is, and whether that is far."""
        for score, metric, value in cells:
            own = found["agreement"]["lira"].get(score)
            if not value or own is None:
                continue
            scale = 1 if metric == "spearman" else 100
            middle, deviation = (scale * each for each in own[metric])
            error = math.sqrt(value[1] ** 2 / printed["targets"] + deviation**2 / own["targets"])
            yield score, metric, middle - value[0], abs(middle - value[0]) > names["limits"]["errors"] * error

    def far_in_table_1(name: str, found: dict[str, Any]) -> list[tuple[str, float]]:
        """Score, and how much more ours is, of the cells beyond two standard errors."""
        cells = ((score, recall, value) for score, value in printed["table_1"][name].items())
        return [(score, more) for score, _, more, far in compared(found, cells) if far]

    def far_in_table_5(name: str, found: dict[str, Any]) -> dict[str, Any]:
        """How many cells there are, how many are far, and the farthest by share and by rank: score, metric, more."""
        rows = printed["table_5"][name].items()
        cells = ((score, metric, row[place]) for score, row in rows for place, metric in enumerate(names["metrics"]))
        every = list(compared(found, cells))
        far = [(score, metric, more) for score, metric, more, is_far in every if is_far]
        kinds = [[each for each in far if (each[1] == "spearman") == ranks] for ranks in (False, True)]
        farthest = [max(kind, key=lambda each: abs(each[2])) for kind in kinds if kind]
        return {"cells": len(every), "far": len(far), "farthest": farthest}

    def over_splits(told: dict[str, Any], way: str, statistic: str, of: str) -> str:
        """Write a score's recall (or what two halves share, or the balanced accuracy) over the splits."""
        cells = [told[f"{way}_{split}"][statistic][of] for split in range(told["splits"])]
        if of == "balanced_accuracy":
            return written.spread([mean(cells), stdev(cells)], 3)
        values = [cell[recall] for cell in cells]
        return written.spread([mean(values), stdev(values)], 1, 100)

    def through(found: dict[str, Any], way: str) -> dict[str, Any]:
        """Return what one way through the whole network finds, in how many seconds, and whether the last layer of the
        same targets finds more (`less`)."""
        both = list(zip(found[way]["targets"], found["last layer"]["targets"], strict=False))
        pairs = [(one[recall], other[recall]) for one, other in both if one]
        seconds = mean(report["seconds"] for report in found[way]["report"])
        if not pairs:
            damping = found["damping"] * (found["records_a_model"] if way.endswith("mean") else 1)
            smallest = max(report["smallest_eigenvalue"] for report in found[way]["report"])
            text = "not positive" if smallest < -damping else "not to be had"
            return {"text": text, "seconds": seconds, "less": written.UNDECIDED, "more": {"text": ""}}
        own, last = [one for one, _ in pairs], [other for _, other in pairs]
        text = written.spread([mean(own), stdev(own) if len(own) > 1 else None], 1, 100)
        text += f" ({len(own)} of {len(both)} targets)" if len(own) < len(both) else ""
        more, less = written.gain(own, last), written.gain(last, own)["verdict"]
        return {"text": text, "seconds": seconds, "more": more, "less": less}

    def whole_cells(found: dict[str, Any], way: str) -> list[str]:
        """Write a row of the table on whole networks."""
        reports, own = found[way]["report"], through(found, way)
        both = ("smallest_eigenvalue", "largest_eigenvalue")
        ends = [report[end] for report in reports for end in both if end in report]
        how = f"{written.digits(min(ends), 2)} to {written.digits(max(ends), 2)}" if ends else "–"
        if "solve_error" in reports[0]:
            how = written.fixed(max(report["solve_error"] for report in reports), 2)
        beside = own["more"]["text"] and way != "last layer"
        more = f"{written.signed(own['more']['mean'], 1)} ± {own['more']['error']:.1f}" if beside else "–"
        return [own["text"], how, more, written.duration(own["seconds"])]

    return {
        "top": top,
        "over_splits": over_splits,
        "through": through,
        "whole_cells": whole_cells,
        "missing": missing,
        "cell": cell,
        "far_in_table_1": far_in_table_1,
        "far_in_table_5": far_in_table_5,
        "each_target": each_target,
        "finds_more": finds_more,
        "differ": differ,
        "above_chance": above_chance,
        "times_faster": lambda found: found["seconds"]["references"] / found["seconds"]["per_target"]["surrogates"],
        "shared": lambda found: names["shared_gpu"].get(found["setting"]) == found["seconds"]["surrogates"],
        # without fused, and without what only measures how noisy the truth is
        "all_seconds": lambda found: sum(
            value for phase, value in found["seconds"].items() if phase not in NOT_THE_PAPERS
        ),
    }


def _of_gls(names: dict[str, Any]) -> dict[str, Any]:
    """The depths with what the rules ask of them; `found` is the result with the full model of more targets beside."""
    found, more, title = names["gls_resnet18"], names["gls_full_model"], names["more"]
    limits, printed_depths = names["limits"], list(names["printed"]["table_2"]["lira"])
    measured, given_up = ({}, {}) if found is None else (dict(found["depths"]), dict(found["not_to_be_had"]))
    if found is not None and more is not None:
        measured |= {title: more["depths"]["full model"]} if "full model" in more["depths"] else {}
        given_up |= {title: more["not_to_be_had"]["full model"]} if "full model" in more["not_to_be_had"] else {}
    shown = [*printed_depths, *([title] if title in measured or title in given_up else [])]
    depths: dict[str, Any] = {}
    for name, own in measured.items():
        doubtful = own.get("solve_error", 0.0) >= limits["doubtful"]
        depths[name] = {
            **own,
            "name": name,
            "title": f"{name}\\*" if doubtful else name,
            "printed": "full model" if name == title else name,
            "doubtful": doubtful,
            "judged": own["targets"] >= limits["few_targets"] and not doubtful,
            "unjudged": ", not judged: the error of its solves is too large" if doubtful else "",
        }

    def missing(depth: str) -> str:
        return "not to be had" if depth in given_up else NOT_RUN

    def cell(depth: str, metric: str, over: str = "all") -> str:
        if depth not in depths:
            return missing(depth)
        value = depths[depth][over]["gls_trace"].get(metric)
        return "–" if value is None else written.plus(value)

    def steady(metric: str, depth: dict[str, Any]) -> Any:
        """Judge whether GLS correlates with a metric, where the models themselves agree on it."""
        told = depth["all"]["gls_trace"].get(metric)
        if told is None:  # of targets without every model's answer
            return True
        agreed = found["two_halves_of_the_models"].get(metric, 1.0) >= limits["least"]
        return written.beyond(told["mean"] - limits["least"], told["half_width"]) if agreed else written.UNDECIDED

    def as_good(own: dict[str, float], last: dict[str, float]) -> Any:
        margin = math.hypot(own["half_width"], last["half_width"]) / math.sqrt(last["of"])  # two standard errors
        return written.beyond(limits["as_good"] - own["mean"] + last["mean"], margin, last["of"])

    def elsewhere(metric: str, over: str = "all") -> str:
        """Write what networks that were trained elsewhere have, which have too few targets to be judged."""
        networks = {} if (told := names["gls_elsewhere"]) is None else told["networks"]
        each = [f"{name} {written.plus(own[over][metric])}" for name, own in networks.items()]
        return f"; trained elsewhere, too few targets to be judged: {', '.join(each)}" if each else ""

    return {
        "found": found,
        "averaged": _averaged(names),
        "elsewhere": elsewhere,
        "printed_lira": names["printed"]["table_2"]["lira"][printed_depths[0]],
        "steady": steady,
        "as_good": as_good,
        "depths": depths,
        "given_up": given_up,
        "shown": shown,
        "missing_depths": [f"{name} {missing(name)}" for name in shown[1:] if name not in depths],
        "cell": cell,
        "solve_error": lambda own: f"{'' if 'sum_of_traces' in own else '≈ '}{own['solve_error']:.2f}",
        "per_cent": lambda each: written.spread([mean(each), stdev(each) if len(each) > 1 else None], 1, 100),
    }


def _averaged(names: dict[str, Any]) -> dict[str, Any] | None:
    """Return how GLS of the last layer goes with the LiRA score averaged over models: measured, or of normal laws."""
    if (long := names["gls_resnet18_long"]) is not None:
        own = long["depths"]["last layer"]
        told = f"{own['targets']} targets, {long['models_trained']} models of {long['training']['epochs']} epochs"
        return {over: own[over]["gls_trace"] for over in ("all", "first")} | {"targets": own["targets"], "told": told}
    if (kept := names["gls_averaged"]) is None:
        return None
    told = f"{kept['targets']} targets, by normal laws of the means and deviations kept of {kept['references']} models"
    return {**kept, "told": told}


def _of_lood(names: dict[str, Any]) -> dict[str, Any]:
    figures = names.get("lood_figures") or json.loads(FIGURES.read_text(encoding="utf-8"))
    made = names | {
        "figures": figures,
        "studied": figures["activations"]["gelu_beside_relu"],
        "lower": f"kl_lower_by_more_than_{names['printed']['activations']['factor']:g}",
        "rounds_error": lambda rounds: math.sqrt((2 * rounds + 1) / (12 * rounds**2)),
    }
    return made | {"rows": [_row(row, made) for row in names["rows"]]}


def _of_traces(names: dict[str, Any]) -> dict[str, Any]:
    """Each set's results, and how two scores compare on all of them, target by target."""
    files = {name: BENCHMARKS / f"loss_traces_{name}.json" for name in names["titles"]}
    measured = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    sets = names.get("loss_traces") or measured

    def more(found: dict[str, Any], one: str, other: str, figure: str) -> dict[str, Any]:
        scores = found["scores, each target"]
        return written.gain(scores[one][figure], scores[other][figure])

    def finds_more(one: str, other: str, figures: Sequence[str]) -> Any:
        enough = [found["models"] >= names["limits"]["references"] or written.UNDECIDED for found in sets.values()]
        found = (more(found, one, other, figure)["verdict"] for found in sets.values() for figure in figures)
        return written.worst(*enough, *found) if len(sets) == len(names["titles"]) else None

    def compared(one: str, other: str, figure: str) -> str:
        told = []
        for name, found in sets.items():
            means = (mean(found["scores, each target"][score][figure]) for score in (one, other))
            apart = "{} against {}".format(*(written.fixed(value, 2) for value in means))
            hundredths = more(found, one, other, figure)["text"].replace(" over", " hundredths over")
            told.append(f"{names['titles'][name]} {apart}{hundredths}, {found['models']} references")
        return "; ".join(told)

    return {
        "sets": sets,
        "finds_more": finds_more,
        "compared": compared,
        "over_targets": lambda values: written.spread([mean(values), stdev(values)], 3),
        "base_rates": lambda found: (
            written.spread([mean(found["base rate, each"]), stdev(found["base rate, each"])], 1, 100) + " %"
        ),
        "ceiling": lambda found, share: mean(min(1.0, rate / share) for rate in found["base rate, each"]),
    }


OF_PAPER = {"per_sample": _of_per_sample, "gls": _of_gls, "lood": _of_lood, "traces": _of_traces}


def _row(row: dict[str, str], names: dict[str, Any]) -> dict[str, str]:
    """A row of the table: its texts are templates, and ours needs what it speaks of."""
    missing = "needs" in row and names[row["needs"]] is None
    cells = {name: row[name] for name in ("figure", "what", "printed", "ours")} | ({"ours": NOT_RUN} if missing else {})
    return {name: written.say(text, names) for name, text in cells.items()}
