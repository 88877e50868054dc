"""Table 4 of the second paper: what references, attacks and scores cost, printed beside ours."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.claims import Results
from benchmarks.reproduce.claims_mia import missing, shared_gpu, times_faster
from benchmarks.reproduce.printed_mia import ALL_HOURS, HOURS, PHASES, SECONDS, SHORT, TARGETS, TEXT_FASTER

NOT_THE_PAPERS = ("per_target", "halves", "fused", "fused_records")


def table_4(results: Results) -> list[str]:
    heads = ["a model", "200 references", "16 targets", "attacks", "scores of a target", "whole network of a target"]
    lines = [
        "Table 4: wall time, printed (one V100) → ours (on the machine named above; models are trained many at once, "
        "and the time of one is that of all over their number; of a target, the median over targets). “All” is without "
        "fused, which is ours alone.",
        "",
        f"| | {' | '.join(heads)} | all | references over scores | fused of a target |",
        f"|---|{'---|' * (len(heads) + 3)}",
    ]
    for name, printed in SECONDS.items():
        found = results.get(name)
        cells = []
        for phase, seconds in zip(PHASES, printed, strict=True):
            ours = missing(name) if found is None else _time(_seconds(found, phase))
            cells.append(f"{_time(seconds)} → {ours}")
        spent = missing(name) if found is None else _time(_all_seconds(found))
        cells.append(f"{HOURS[name]:.1f} h → {spent}")
        said = dict(zip(PHASES, printed, strict=True))
        faster = f"{said['references'] / said['surrogates']:,.0f} × → "  # type: ignore[operator]
        faster += missing(name) if found is None else f"{times_faster(found):,.0f} ×"
        fused = missing(name) if found is None else _time(found["seconds"]["per_target"]["fused"])
        lines.append(f"| {SHORT[name]} | {' | '.join(cells)} | {faster} | {fused} |")
    have = [name for name in SECONDS if name in results]
    if have:
        spent = _time(sum(_all_seconds(results[name]) for name in have))
        printed_hours = sum(HOURS[name] for name in have)
        empty = " | ".join("–" for _ in heads)
        lines.append(f"| these {len(have)} | {empty} | {printed_hours:.1f} h → {spent} | – | – |")
    lines += ["", _told(have)]
    for name in SECONDS:
        if name in results and shared_gpu(results[name]):
            lines += [
                "",
                f"{SHORT[name]}: its scores shared the GPU with another setting's training, which slows them.",
            ]
    for name, found in results.items():
        few = found.get("agreement", {}).get("lira", {}).get("whole_network", {}).get("targets")
        if few is not None and few < found["targets"]:
            lines += ["", f"{SHORT[name]}: “all” has the whole network of {few} targets, the paper's of {TARGETS}."]
    return [*lines, ""]


def _told(have: list[str]) -> str:
    """What the table does not say by itself."""
    other = [f"{times:,} × for {SHORT[name]}" for name, times in TEXT_FASTER.items()]
    said = f"The paper's total is {ALL_HOURS} GPU hours; its text has {', '.join(other)}, its table what stands above."
    heads = [SHORT[name] for name in have if name.endswith("_head")]
    if not heads:
        return said
    return (
        f"{said} {' and '.join(heads)}: features are made once, before all models, and are in none of our times; that "
        "a linear layer takes the paper a quarter of an hour and more suggests that its encoder ran with each model. "
        "Where references are that cheap, scores are faster by less."
    )


def _seconds(found: dict[str, Any], phase: str) -> float | None:
    spent = found["seconds"]
    if phase == "a model":
        return spent["references"] / found["models"]
    return spent["per_target"].get(phase) if phase in ("surrogates", "whole_network") else spent[phase]


def _all_seconds(found: dict[str, Any]) -> float:
    """Without fused, and without what only asks how noisy the truth is."""
    return sum(value for phase, value in found["seconds"].items() if phase not in NOT_THE_PAPERS)


def _time(seconds: float | None) -> str:
    """In the unit that a reader would choose."""
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
