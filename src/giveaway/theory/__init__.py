"""The theory of both leverage papers as a tool: numbers in, trade-off curves, gaps and privacy figures out."""

# ruff: noqa: F401 (the names are for others)
from giveaway.theory import fixed_design
from giveaway.theory.random_design import RandomDesign, expected_gap, gap_expansion, random_design
from giveaway.theory.tradeoff import TradeOff, best_success, epsilon_lower_bound, estimated_epsilon, two_normals
