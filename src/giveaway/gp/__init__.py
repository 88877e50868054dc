"""Gaussian processes: kernels of wide networks, leave-one-out from one factorization, and what it gives away."""

from giveaway.gp.attack import distance_to_constant, leakage_bounds, query_attack, record_attack
from giveaway.gp.distinguishability import KernelChoice, Process, divergence, divergence_at
from giveaway.gp.kernels import RBF, Correlation, FeatureKernel, Kernel, Laplace, Linear, Sphere, kernel_matrix
from giveaway.gp.leave_one_out import leave_groups_out, leave_one_out
from giveaway.gp.nngp import NNGP, NTK, ConvNNGP, ConvNTK
from giveaway.gp.posterior import Posterior, RemovedRecords, fit, remove
from giveaway.gp.query import optimal_queries
from giveaway.gp.studies import activation_study, reconstruct, remove_normalized, steepest_point

__all__ = [
    "NNGP",
    "NTK",
    "RBF",
    "ConvNNGP",
    "ConvNTK",
    "Correlation",
    "FeatureKernel",
    "Kernel",
    "KernelChoice",
    "Laplace",
    "Linear",
    "Posterior",
    "Process",
    "RemovedRecords",
    "Sphere",
    "activation_study",
    "distance_to_constant",
    "divergence",
    "divergence_at",
    "fit",
    "kernel_matrix",
    "leakage_bounds",
    "leave_groups_out",
    "leave_one_out",
    "optimal_queries",
    "query_attack",
    "reconstruct",
    "record_attack",
    "remove",
    "remove_normalized",
    "steepest_point",
]
