"""The second paper's part of the results page: Tables 1, 4, 5 and 6, printed beside ours."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Results
from benchmarks.reproduce.claims_mia import RECALL, missing
from benchmarks.reproduce.costs_mia import table_4
from benchmarks.reproduce.printed_mia import ALIKE, NAMES, ODDITIES, RECALLS, SHORT, TABLE_6, TARGETS, TOP, Cell

TOP_SHARE = 0.01  # sought in Table 1
ERRORS = 2  # standard errors
IN_TABLE_1 = ("loss", "gradient_norm", "newton", "influence")
TRUTHS = {
    "lira": "LiRA",
    "lira_tied": "LiRA, ties left as they are",
    "effect_size": "effect size",
    "rmia": "RMIA",
    "shokri": "Shokri",
}


def section(results: Results) -> list[str]:
    """Markdown lines, from the results alone."""
    lines = ["## Scores against shadow models (eight settings)", ""]
    lines += _table_1(results)
    lines += _remarks(results)
    lines += _table_5(results)
    lines += _other_truths(results)
    lines += table_4(results)
    lines += _table_6(results.get("sst2_head"))
    return lines + _pictures(results)


def _table_1(results: Results) -> list[str]:
    heads = [*(NAMES[score] for score in IN_TABLE_1), NAMES["fused"]]
    lines = [
        "Table 1: how much of the 1 % that LiRA finds most exposed is among the 5 % with the highest scores, in per "
        f"cent, mean ± standard deviation over targets (the paper: {TARGETS}); printed → ours. 5 % is chance.",
        "",
        f"| | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
    ]
    for name, printed in TOP.items():
        cells = [f"{_spread(*printed[score], 1)} → {_top(results, name, score)}" for score in IN_TABLE_1]
        lines.append(f"| {SHORT[name]} | {' | '.join(cells)} | {_top(results, name, 'fused')} |")
    return [*lines, ""]


def _top(results: Results, name: str, score: str, digits: int = 1) -> str:
    if name not in results:
        return missing(name)
    mean, spread = results[name]["agreement"]["lira"][score][RECALL]
    return _spread(100 * mean, None if spread is None else 100 * spread, digits)


def _remarks(results: Results) -> list[str]:
    """How each setting was measured, and why it is not the paper's."""
    lines = ["How ours were measured, and where they differ:", ""]
    for name in TOP:
        found = results.get(name)
        if found is None:
            lines.append(f"- {SHORT[name]}: {missing(name)}.")
            continue
        fit = found["fit"]
        said = [
            f"{found['models']} references, {found['targets']} targets, {found['records_a_model']:,} of "
            f"{found['records']:,} records each, on {_machine(found)}; {fit['kind']} {fit['trained']:.3f} on records "
            f"trained on, {fit['left_out']:.3f} on those left out; LiRA's balanced accuracy "
            f"{found['attacks']['lira']['balanced_accuracy']:.3f}",
            *_noise(found),
        ]
        said += [*found["differs"], *([ODDITIES[name]] if name in ODDITIES else []), *_penalty(found)]
        said += [*_far(name, found), *_alike(found)]
        lines.append(f"- {SHORT[name]}: {'. '.join(_sentence(part) for part in said)}.")
    return [*lines, ""]


def _penalty(found: dict[str, Any]) -> list[str]:
    if found["training"]["optimizer"] != "adamw":
        return []
    return [f"the head's penalty of {found['l2']:g} is ours, as AdamW's decay belongs to no objective"]


def _noise(found: dict[str, Any]) -> list[str]:
    """Of the truth itself."""
    said, ties = [], found["ties"]
    if ties["share_with_it"] > TOP_SHARE:
        said = [
            f"{100 * ties['share_with_it']:.1f} % of the records have the highest success rate "
            f"({ties['largest_success']:.2f}), and are in the order of their effect sizes"
        ]
    repeated = found.get("half_of_the_references_with_the_other")
    if repeated is None:
        return said
    same = ", ".join(f"{100 * repeated[share]:.1f} %" for share in ALIKE[:-1])
    share = f"{100 * repeated[RECALL]:.1f} % of the other half's top 1 % in 5 %"
    return [*said, f"the truth of half of the references finds {share}, and in equal shares (0.1, 1 and 5 %) {same}"]


def _far(name: str, found: dict[str, Any]) -> list[str]:
    """Which of Table 1's cells are not the paper's within the noise of the targets."""
    far = []
    for score in IN_TABLE_1:
        mean, spread = TOP[name][score]
        ours, own_spread = (100 * value for value in found["agreement"]["lira"][score][RECALL])
        error = math.sqrt(spread**2 / TARGETS + own_spread**2 / found["targets"])
        if abs(ours - mean) > ERRORS * error:
            far.append(f"{NAMES[score]} ({ours - mean:+.1f})".replace("-", "−"))
    if not far:
        return [f"every cell of Table 1 is within {ERRORS} standard errors of the printed one"]
    return [f"more than {ERRORS} standard errors from the printed cell of Table 1: {', '.join(far)}"]


def _alike(found: dict[str, Any]) -> list[str]:
    agreement = found["agreement"]["lira"]
    if agreement["fused"] != agreement["newton"]:
        return []
    if "fused_records" not in agreement:
        return ["fused found nothing in the records to add, and ranks as the Newton step does"]
    share = 100 * agreement["fused_records"][RECALL][0]
    return [
        "fused was given the features of the frozen encoder, and is the Newton step there; with the records themselves "
        f"it finds {share:.1f} %"
    ]


def _table_5(results: Results) -> list[str]:
    lines = [
        "Table 5: how much of LiRA's top share is in the same share of highest scores (per cent), and Spearman's "
        "correlation; printed → ours. – is not printed.",
        "",
        "| | score | 0.1 % | 1 % | 5 % | Spearman |",
        "|---|---|---|---|---|---|",
    ]
    for name, printed in RECALLS.items():
        measured = results[name]["agreement"]["lira"] if name in results else {}
        scores = dict.fromkeys([*printed, *(score for score in measured if score in NAMES)])
        for score in scores:
            cells = [
                f"{_printed(cell, metric)} → {_ours(name, measured, score, metric)}"
                for cell, metric in zip(printed.get(score, (None,) * len(ALIKE)), ALIKE, strict=True)
            ]
            lines.append(f"| {SHORT[name]} | {NAMES[score]} | {' | '.join(cells)} |")
    return [*lines, ""]


def _printed(cell: Cell | None, metric: str) -> str:
    return "–" if cell is None else _spread(*cell, 3 if metric == "spearman" else 2)


def _ours(name: str, measured: dict[str, Any], score: str, metric: str) -> str:
    if not measured:
        return missing(name)
    if score not in measured:
        return "not scored"
    mean, spread = measured[score][metric]
    if metric == "spearman":
        return _spread(mean, spread, 3)
    return _spread(100 * mean, None if spread is None else 100 * spread, 2)


def _other_truths(results: Results) -> list[str]:
    """The paper draws curves of RMIA and Shokri's attack, and prints no numbers."""
    here = [name for name in TOP if name in results]
    if not here:
        return []
    scores = (*IN_TABLE_1, "fused")
    lines = [
        "The same as Table 1 by other truths. Many records share a success rate: LiRA's, wherever nothing else is "
        "said, has its ties in the order of the effect size. The paper draws curves of RMIA and Shokri's attack, and "
        "prints no numbers. RMIA's γ is 1 here (its authors mostly have 2, at which models that generalize well favour "
        "hardly any record). Shokri's attack has one boundary for all records: where models hardly differ, it is right "
        "of half of them about nearly every record, and its top are records beside that boundary, not those that a "
        "model's memory shows.",
        "",
        f"| | truth | {' | '.join(NAMES[score] for score in scores)} |",
        f"|---|---|{'---|' * len(scores)}",
    ]
    for name in here:
        for truth, title in TRUTHS.items():
            cells = [results[name]["agreement"][truth][score][RECALL] for score in scores]
            shown = [_spread(100 * mean, None if spread is None else 100 * spread, 1) for mean, spread in cells]
            lines.append(f"| {SHORT[name]} | {title} | {' | '.join(shown)} |")
    return [*lines, ""]


def _table_6(found: dict[str, Any] | None) -> list[str]:
    lines = [
        "Table 6: the sentences of SST-2 (linear head) with the highest scores. Another encoder has other ones; the "
        f"paper's first are “{TABLE_6[0]}” (Newton step) and “{TABLE_6[1]}” (influence).",
        "",
    ]
    if found is None:
        return [*lines, f"Ours: {NOT_RUN}.", ""]
    titles = ("newton", "influence", "fused")
    lines += [f"| | {' | '.join(NAMES[score] for score in titles)} |", f"|---|{'---|' * len(titles)}"]
    for place, sentences in enumerate(zip(*(found["shown"][score]["sentences"] for score in titles), strict=True)):
        cells = [sentence.replace("|", "\\|") for sentence in sentences]
        lines.append(f"| {place + 1} | {' | '.join(cells)} |")
    return [*lines, ""]


def _pictures(results: Results) -> list[str]:
    if not any(name in results for name in TOP):
        return []
    shown = {
        "mia_recall_lira": "Figure 2: recall of LiRA's top share in the same share of highest scores",
        "mia_recall_whole": "Figure 3: the same with influence through the whole network",
        "mia_recall_rmia": "Figure 4: recall of RMIA's top share",
        "mia_recall_shokri": "Figure 5: recall of the top share of Shokri's attack",
        "mia_images": "Figure 6: images with the highest scores",
        "mia_loss_influence": "Figure 7: loss, influence and LiRA's success",
    }
    pictures = [line for file, title in shown.items() for line in (f"![{title}](images/{file}.png)", "")]
    told = "Bands of the curves are one standard deviation over targets; dashed is the first target alone."
    return [told, "", *pictures]


def _machine(found: dict[str, Any]) -> str:
    return found["environment"]["device"].replace("cpu, 1 threads", "one CPU thread").replace("cpu, ", "")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _spread(mean: float, spread: float | None, digits: int) -> str:
    shown = f"{mean:.{digits}f}" if spread is None else f"{mean:.{digits}f} ± {spread:.{digits}f}"
    return shown.replace("-", "−")
