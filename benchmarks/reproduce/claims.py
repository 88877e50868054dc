"""Verdicts on what the papers claim: each rule of NAME.toml is evaluated on our results, none is stored.

A claim has a `text` and `measured`, which are templates, and `holds`, an expression that is true, false or none (not
measured); `let` names parts of them. A claim on `settings` is evaluated for each setting as `found`, one on `depths`
for each depth as `depth`; all others for the results as a whole, and `needs` names the setting they depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.reproduce.wording import say, value_of

NOT_RUN, NO_DATA = "not run yet", "data not to be had"
HOLDS, FAILS, UNMEASURED = "holds", "does not hold here", "not measured yet"

Results = dict[str, dict[str, Any]]  # by setting
Names = Mapping[str, Any]  # what a rule or template may speak of


@dataclass(frozen=True)
class Claim:
    """A sentence, one of the three verdicts, and the numbers behind it."""

    text: str
    verdict: str
    measured: str


def judge(names: Names) -> list[Claim]:
    """Judge all claims of a paper. `names` holds its TOML, the results by setting (None where missing) and `depths`."""
    return [_Rule(claim, names).judge() for claim in names["claims"]]


class _Rule:
    def __init__(self, claim: dict[str, Any], names: Names) -> None:
        self.claim, self.names = claim, names

    def judge(self) -> Claim:
        if "settings" in self.claim:
            holds, measured = self._of_settings()
        elif self.claim.get("needs_depth", "") not in ("", *self.names.get("depths", ())):
            holds, measured = None, NOT_RUN
        elif "depths" in self.claim:
            holds, measured = self._of_depths()
        elif "needs" in self.claim and self.names[self.claim["needs"]] is None:
            holds, measured = None, NOT_RUN
        else:
            names = self._let(self.claim, self.names)
            holds, measured = value_of(self.claim["holds"], names), say(self.claim["measured"], names)
        verdict = UNMEASURED if holds is None else HOLDS if holds else FAILS
        return Claim(say(self.claim["text"], self.names), verdict, measured)

    def _of_settings(self) -> tuple[bool | None, str]:
        """Say in how many settings it is true, and each with its numbers."""
        wanted = self.claim["settings"]
        rules = dict.fromkeys(self.names[wanted] if isinstance(wanted, str) else wanted, self.claim)
        rules |= self.claim.get("also", {})
        seen: list[tuple[bool, str]] = []
        beside = ""
        counted = len(rules)
        for name, rule in rules.items():
            if (found := self.names["results"].get(name)) is None:
                continue
            here = {**self.names, "found": found, "short": self.names["settings"][name]}
            if "measurable" in rule and not value_of(rule["measurable"], here):
                continue
            here = self._let(rule, here)
            if "not_counted" in rule and value_of(rule["not_counted"], here):
                beside += f"; {say(rule['beside'], here)}"
                counted -= 1
                continue
            holds = bool(value_of(rule["holds"], here))
            text = f"{here['short']}: {say(rule['measured'], here)}"
            seen.append((holds, text if holds else f"{text} (not so)"))
        holding = sum(holds for holds, _ in seen)
        if self.claim.get("quantity") == "most":
            failing = len(seen) - holding
            verdict = True if 2 * holding > counted else False if 2 * failing >= counted else None
        else:
            verdict = False if holding < len(seen) else True if holding == counted else None
        if not seen:
            return verdict, NOT_RUN + beside
        missing = f", {counted - len(seen)} not run yet" if len(seen) < counted else ""
        told = "; ".join(text for _, text in seen)
        return verdict, f"true in {holding} of {len(seen)}{missing}: {told}{beside}"

    def _of_depths(self) -> tuple[bool | None, str]:
        """Judge by the depths that count; all that were measured are told."""
        seen, judged = [], []
        for number, depth in enumerate(self.names["depths"].values()):
            if self.claim["depths"] == "deeper" and number == 0:
                continue
            here = self._let(self.claim, {**self.names, "depth": depth})
            seen.append({**depth, "text": say(self.claim.get("each", ""), here)})
            if value_of(self.claim["counts"], here):
                judged.append(bool(value_of(self.claim["holds"], here)))
        holds = all(judged) if judged else None
        if not judged and "each" not in self.claim:
            return holds, NOT_RUN
        if not seen and self.claim["depths"] != "deeper":
            return holds, NOT_RUN
        return holds, say(self.claim["measured"], {**self.names, "seen": seen})

    def _let(self, rule: Mapping[str, Any], names: Names) -> Names:
        for name, expression in rule.get("let", {}).items():
            names = {**names, name: value_of(expression, names)}
        return names
