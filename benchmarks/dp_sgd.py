"""DP-SGD of many small networks at once in plain torch: per-record clipping, Poisson batches, and the ε it has.

Every model draws each of its records with probability `rate` at every step, independently (the Poisson sampling that
the accountant assumes), clips every drawn record's gradient to `clip`, sums, adds noise of `noise · clip` to every
number, and divides by the expected batch. The accountant is that of Mironov, Talwar and Zhang (2019): Rényi
differential privacy of the subsampled Gaussian mechanism at whole orders, turned to (ε, δ) as in Balle et al. (2020);
neighbours differ by one record added or removed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import gammaln, logsumexp
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from benchmarks.stacked import seeded_model

ORDERS = np.arange(2, 257)
SPARE = 6.0  # standard deviations by which a batch may exceed its expected size before records are dropped


@dataclass(frozen=True)
class DPTraining:
    """Steps of DP-SGD with Adam's update of the noisy gradients."""

    steps: int
    rate: float
    noise: float
    clip: float = 1.0
    learning_rate: float = 0.01


def epsilon_of(noise: float, rate: float, steps: int, delta: float) -> float:
    """Return the ε of so many steps."""
    a = ORDERS[:, None].astype(np.float64)
    k = np.arange(ORDERS[-1] + 1)[None].astype(np.float64)
    inside = k <= a
    k = np.minimum(k, a)
    terms = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1) + k * math.log(rate) + (k * k - k) / (2 * noise**2)
    terms = terms + (a - k) * math.log1p(-rate) if rate < 1 else np.where(k == a, terms, -np.inf)
    renyi = steps * logsumexp(np.where(inside, terms, -np.inf), axis=1) / (ORDERS - 1)
    return float((renyi + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)).min())


def noise_for(epsilon: float, rate: float, steps: int, delta: float) -> float:
    """Return the least noise (within 0.1 %) under which the ε is not above the one given."""
    low, high = 0.05, 1.0
    while epsilon_of(high, rate, steps, delta) > epsilon:
        low, high = high, 2 * high
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if epsilon_of(middle, rate, steps, delta) > epsilon else (low, middle)
    return high


def clipped_sums(
    module: nn.Module,
    parameters: dict[str, torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
    clip: float,
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return Σ weight · clipped gradient of every model's records, and their losses (models, records).

    Parameters are stacked (models, …); x is (models, records, …), y and weight (models, records).
    """

    def loss(
        parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        value = nn.functional.cross_entropy(functional_call(module, parameters, (x[None],)), y[None])
        return value, value

    per_record = vmap(grad(loss, has_aux=True), in_dims=(None, 0, 0), randomness="different")
    gradients, losses = vmap(per_record, randomness="different")(parameters, x, y)
    norms = sum(g.flatten(2).square().sum(2) for g in gradients.values()).sqrt()
    factor = weight * (clip / norms.clamp_min(1e-12)).clamp_max(1.0)
    return {name: torch.einsum("mr,mr...->m...", factor, g) for name, g in gradients.items()}, losses.detach()


def train_dp(
    make_model: Callable[[], nn.Module],
    inputs: np.ndarray,
    targets: np.ndarray,
    membership: np.ndarray,
    training: DPTraining,
    *,
    seeds: Sequence[int],
    device: str | torch.device = "cpu",
    models_at_once: int = 64,
    on_losses: Callable[[int, np.ndarray], None] | None = None,
    shares: np.ndarray | None = None,
) -> Iterator[tuple[int, np.ndarray]]:
    """Train one model for each row of `membership` and yield (row number, its outputs on all inputs).

    `shares` (at most 1) of each record of the inputs are multiplied to its clipped gradient: a record of share s counts
    at most s · clip, and so has the ε of the noise divided by s, if its share does not depend on the data.
    `on_losses(row number, losses)` is given every 1/rate steps, an expected epoch, the last loss seen of every record
    of the inputs, NaN where there was none.
    """
    x, y = torch.as_tensor(inputs, device=device), torch.as_tensor(targets, device=device)
    share = (
        torch.ones_like(y, dtype=x.dtype) if shares is None else torch.as_tensor(shares, dtype=x.dtype, device=device)
    )
    members = np.asarray(membership, dtype=bool)
    size = int(members.sum(1)[0])
    if (members.sum(1) != size).any():
        raise ValueError("membership: equally many records in every model, so that they can be stacked")
    expected = training.rate * size
    width = min(size, math.ceil(expected + SPARE * math.sqrt(expected) + 1))
    epoch = max(1, round(1 / training.rate))
    for first in range(0, len(members), models_at_once):
        group = range(first, min(first + models_at_once, len(members)))
        models = [seeded_model(make_model, seeds[number]).to(device) for number in group]
        module = models[0]
        parameters = {name: value.detach().clone() for name, value in stack_module_state(models)[0].items()}
        own = torch.as_tensor(np.stack([np.flatnonzero(members[number]) for number in group]), device=device)
        generator = torch.Generator(device).manual_seed(seeds[first])
        optimizer = torch.optim.Adam(list(parameters.values()), lr=training.learning_rate)
        seen = torch.full((len(models), len(x) + 1), torch.nan, device=device)
        for step in range(training.steps):
            drawn, place = torch.rand(own.shape, generator=generator, device=device).sort(1)
            rows = own.gather(1, place[:, :width])
            weight = (drawn[:, :width] < training.rate).to(x.dtype)
            sums, losses = clipped_sums(module, parameters, x[rows], y[rows], weight * share[rows], training.clip)
            for name, parameter in parameters.items():
                white = torch.randn(parameter.shape, generator=generator, device=device)
                parameter.grad = (sums[name] + training.noise * training.clip * white) / expected
            optimizer.step()
            seen.scatter_(1, rows.masked_fill(weight == 0, len(x)), losses)
            if on_losses is not None and (step + 1) % epoch == 0:
                for number, row in zip(group, seen[:, :-1].cpu().numpy(), strict=True):
                    on_losses(number, row.copy())
        with torch.no_grad():
            outputs = vmap(lambda p: functional_call(module.eval(), p, (x,)))(parameters).cpu().numpy()  # noqa: B023
        yield from zip(group, outputs, strict=True)
