"""Scores through any part of a network: Jacobian and curvature products, solves, sketches of all records, TracIn."""

from giveaway.network.ekfac import ekfac_records
from giveaway.network.gradients import RecordDerivatives, gradient_norm
from giveaway.network.jacobian import Jacobian
from giveaway.network.network import Network
from giveaway.network.products import GaussNewton, Hessian
from giveaway.network.scores import NetworkScores, score_records
from giveaway.network.sketch import sketch_records
from giveaway.network.solves import InverseCurvature
from giveaway.network.tracin import tracin, tracin_between

__all__ = [
    "GaussNewton",
    "Hessian",
    "InverseCurvature",
    "Jacobian",
    "Network",
    "NetworkScores",
    "RecordDerivatives",
    "ekfac_records",
    "gradient_norm",
    "score_records",
    "sketch_records",
    "tracin",
    "tracin_between",
]
