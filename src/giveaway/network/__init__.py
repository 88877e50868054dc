"""Scores through any part of a network: Jacobian and curvature products, solves, sketches of all records, TracIn."""

# ruff: noqa: F401 (the names are for others)
from giveaway.network.depths import Depths, Solves
from giveaway.network.gradients import RecordDerivatives, tracin
from giveaway.network.jacobian import Jacobian
from giveaway.network.network import Network
from giveaway.network.scores import NetworkScores, score_records, sketch_records
from giveaway.network.solves import GaussNewton, Hessian, InverseCurvature
