"""The second paper's part of the results page: Tables 1, 4, 5 and 6, printed beside ours."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Results
from benchmarks.reproduce.claims_mia import RECALL, missing
from benchmarks.reproduce.costs_mia import table_4
from benchmarks.reproduce.printed_mia import ALIKE, NAMES, RECALLS, SHORT, TABLE_6, TARGETS, TOP, Cell
from benchmarks.reproduce.remarks_mia import remarks

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
    lines += remarks(results)
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
        "hardly any record), and its threshold the one with the best balanced accuracy over all references; LiRA's is "
        "a ratio of 1. Where values are predicted, RMIA and Shokri's attack, which want probabilities, are given "
        "exp(−e²/2s²), s² the mean squared error on records left out. Shokri's attack has one boundary for all "
        "records: where models hardly differ, it is right of half of them about nearly every record, and its top are "
        "records beside that boundary, not those that a model's memory shows.",
        "",
        f"| | truth | {' | '.join(NAMES[score] for score in scores)} |",
        f"|---|---|{'---|' * len(scores)}",
    ]
    for name in here:
        for truth, title in TRUTHS.items():
            cells = [results[name]["agreement"][truth][score][RECALL] for score in scores]
            shown = [_spread(100 * mean, None if spread is None else 100 * spread, 1) for mean, spread in cells]
            lines.append(f"| {SHORT[name]} | {title} | {' | '.join(shown)} |")
    return [*lines, "", *_equal_shares(results, here)]


def _equal_shares(results: Results, here: list[str]) -> list[str]:
    """Table 5's measures by the two other attacks."""
    truths = ("rmia", "shokri")
    heads = [f"{TRUTHS[truth]}, {metric.replace('%', ' %')}" for truth in truths for metric in ALIKE]
    lines = [
        "The same as Table 5 by RMIA and Shokri's attack; of these the paper prints no numbers.",
        "",
        f"| | score | {' | '.join(head.replace('spearman', 'Spearman') for head in heads)} |",
        f"|---|---|{'---|' * len(heads)}",
    ]
    for name in here:
        agreement = results[name]["agreement"]
        for score in [score for score in NAMES if score in agreement[truths[0]]]:
            cells = [_ours(name, agreement[truth], score, metric) for truth in truths for metric in ALIKE]
            lines.append(f"| {SHORT[name]} | {NAMES[score]} | {' | '.join(cells)} |")
    return [*lines, ""]


def _table_6(found: dict[str, Any] | None) -> list[str]:
    titles = ("newton", "influence", "fused")
    heads = [f"{NAMES[score]}, printed" for score in TABLE_6] + [f"{NAMES[score]}, ours" for score in titles[:-1]]
    heads.append(NAMES[titles[-1]])
    lines = [
        "Table 6: the sentences of SST-2 (linear head) with the highest scores, of our first target. Another encoder "
        "has other ones. The paper cuts long ones off.",
        "",
        f"| | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
    ]
    ours = [[NOT_RUN] * len(TABLE_6["newton"])] * len(titles)
    if found is not None:
        ours = [found["shown"][score]["sentences"] for score in titles]
    for place, sentences in enumerate(zip(*TABLE_6.values(), *ours, strict=True)):
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
    told = (
        "Bands of the curves are one standard deviation over targets; dashed is the first target alone. In Figure 7 "
        "records that LiRA finds more often lie above others."
    )
    return [told, "", *pictures]


def _spread(mean: float, spread: float | None, digits: int) -> str:
    shown = f"{mean:.{digits}f}" if spread is None else f"{mean:.{digits}f} ± {spread:.{digits}f}"
    return shown.replace("-", "−")
