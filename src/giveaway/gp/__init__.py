"""Gaussian processes: kernels of wide networks, leave-one-out from one factorization, and what it gives away."""

from giveaway.gp.activation_study import activation_study
from giveaway.gp.attack import query_attack, record_attack
from giveaway.gp.bounds import distance_to_constant, leakage_bounds
from giveaway.gp.conv_nngp import ConvNNGP, ConvNTK
from giveaway.gp.differing_point import steepest_point
from giveaway.gp.divergence import lood_at
from giveaway.gp.kernels import RBF, Correlation, FeatureKernel, Kernel, Laplace, Linear, Sphere, kernel_matrix
from giveaway.gp.leave_one_out import leave_group_out, leave_one_out
from giveaway.gp.named_kernels import KernelChoice
from giveaway.gp.nngp import NNGP, NTK
from giveaway.gp.normalization import remove_normalized
from giveaway.gp.posterior import Posterior, fit
from giveaway.gp.query import optimal_queries
from giveaway.gp.reconstruct import reconstruct
from giveaway.gp.removal import Removal, remove
from giveaway.gp.table import lood

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
    "Removal",
    "Sphere",
    "activation_study",
    "distance_to_constant",
    "fit",
    "kernel_matrix",
    "leakage_bounds",
    "leave_group_out",
    "leave_one_out",
    "lood",
    "lood_at",
    "optimal_queries",
    "query_attack",
    "reconstruct",
    "record_attack",
    "remove",
    "remove_normalized",
    "steepest_point",
]
