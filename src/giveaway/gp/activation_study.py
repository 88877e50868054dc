"""Which activation leaks more: leave-one-out distances of wide networks that differ in activation and depth only.

Two settings, because they answer differently:

    "sphere"  each record less its own mean, on the sphere ‖x‖² = d, and kernels scaled to K(x, x) = 1 (σw² = 1, σb = 0);
    "raw"     records as they come, σw² = 2, σb = 0. A rectifier then keeps the scale of its input at every depth; an
              activation that lets less through, as GELU does, shrinks the kernel against the noise.

On the sphere every kernel tends to the constant 1 with depth, as Θ(L⁻²) for ReLU and as Θ(L⁻¹) for smooth activations
kept at unit variance from layer to layer (`sphere_kernel`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any
