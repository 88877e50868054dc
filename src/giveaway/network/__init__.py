"""Scores through any part of a network: Jacobian and curvature products, solves, sketches of all records."""

# ruff: noqa: F401 (the names are for others)
from giveaway.network.jacobian import Jacobian, RecordDerivatives
from giveaway.network.network import Depths, Network
from giveaway.network.scores import NetworkScores, score_records, sketch_records
from giveaway.network.solves import GaussNewton, Hessian, InverseCurvature, Solves
