"""Gaussian processes: kernels of wide networks, leave-one-out from one factorization, and what it gives away."""

# ruff: noqa: F401 (the names are for others)
from giveaway.gp.distinguishability import Process, RemovedRecords, divergence, divergence_at, remove
from giveaway.gp.kernels import RBF, Kernel, Laplace, Linear, Sphere, kernel_matrix
from giveaway.gp.nngp import NNGP, ConvNNGP, KernelChoice
from giveaway.gp.posterior import Posterior, fit, leave_groups_out, leave_one_out
from giveaway.gp.query import optimal_queries, record_attack
