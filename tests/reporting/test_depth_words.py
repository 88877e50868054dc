"""What is said of the error of scores through a network."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from giveaway.records.meta import Meta
from giveaway.reporting.words import about_depths

DONE = {"curvature": "ggn", "damping": 2.0, "probes": 64, "sketch_error": {"newton": 0.18}}


def said(**more) -> str:
    (line,) = about_depths(SimpleNamespace(meta=Meta().with_depths({"all": {**DONE, **more}}), attributes={}), str)
    return line


@pytest.mark.parametrize("bound", [0.0, 0.059])
def test_solves_that_leave_little_beside_chance_are_not_spoken_of(bound):
    assert said(solve_error=bound) == said()
    assert said().endswith("damping 2, estimates from 64 random probes, off by about 18 % each.")


def test_what_solves_leave_is_of_all_records_together():
    words = "% each and by the solver's error, at most 25 % of the projections whose squares the scores are, over all"
    assert words in said(solve_error=0.25)
    assert words + " records together; 3 solves did not reach their tolerance" in said(solve_error=0.25, unsolved=3)


def test_a_bound_from_one_on_says_nothing():
    words = "by an unknown amount: at best the order of the records is meaningful"
    assert words in said(solve_error=1.0)
    assert words not in said(solve_error=0.99)
