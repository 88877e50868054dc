"""Small float64 networks with records, and their dense Jacobians, curvatures and scores by plain autograd."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call

from giveaway.network import Network

M = 3


class TinyTransformer(nn.Module):
    """Embedding, a position parameter of its own, one layer with attention, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.position = nn.Parameter(0.3 * torch.randn(5, 4))
        self.encoder = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
        self.head = nn.Linear(4, M)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens) + self.position).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, M))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 2, padding="same"),
        nn.BatchNorm2d(3),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3, M),
    )


def made(kind: str, n: int = 18) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network that has been trained a little, its inputs and its labels; the first records lie far out."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = {"mlp": mlp, "cnn": cnn, "transformer": TinyTransformer}[kind]().double()
        x = torch.randn(n, 4).double() if kind == "mlp" else torch.randn(n, 2, 5, 5).double()
        if kind == "transformer":
            x = torch.randint(0, 7, (n, 5))
        else:
            x[:2] *= 4.0
        y = torch.randint(0, M, (n,))
        step = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(30):
            step.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            step.step()
    model.zero_grad(set_to_none=True)
    return model.eval(), x, y


KINDS = ("mlp", "cnn", "transformer")
DEPTHS = ("head", "last:2", "all")


def targets_for(loss: str, y: torch.Tensor) -> torch.Tensor:
    """Targets of the same records for another loss."""
    generator = torch.Generator().manual_seed(5)
    if loss == "squared":
        return torch.randn(len(y), M, generator=generator, dtype=torch.float64)
    if loss == "binary_cross_entropy":
        return torch.randint(0, 2, (len(y), M), generator=generator).double()
    return y


@dataclass
class Dense:
    """Everything dense, in the parameters called `names` one after another."""

    jacobian: torch.Tensor  # (n, m, P)
    outputs: torch.Tensor
    g: torch.Tensor
    W: torch.Tensor
    hessian: torch.Tensor | None
    y: torch.Tensor
    loss: str

    @property
    def ggn(self) -> torch.Tensor:
        return sum(J.T @ W @ J for J, W in zip(self.jacobian, self.W, strict=True))

    def gradients(self) -> torch.Tensor:
        return torch.stack([J.T @ g for J, g in zip(self.jacobian, self.g, strict=True)])

    def damped(self, damping: float) -> torch.Tensor:
        return self.ggn + damping * torch.eye(self.jacobian.shape[2], dtype=torch.float64)

    def scores(self, damping: float) -> dict[str, torch.Tensor]:
        """Each record by its own small dense solve; no basis, no root."""
        inverse, rows = torch.linalg.inv(self.damped(damping)), []
        m = self.g.shape[1]
        identity = torch.eye(m, dtype=torch.float64)
        softmax = self.loss == "cross_entropy"
        off = identity - 1.0 / m if softmax else identity
        for J, f, y, g, W in zip(self.jacobian, self.outputs, self.y, self.g, self.W, strict=True):
            B = J @ inverse @ J.T
            step = B @ torch.linalg.inv(identity - W @ B) @ g
            value, moved = (total_loss(at[None], y[None], self.loss) for at in (f, f + step))
            logit = (2.0 if self.loss == "squared" else 1.0) * off @ B @ off
            row = {
                "loss": value,
                "gradient_norm": (g @ J).norm(),
                "leverage": torch.trace(W @ B) / (m - 1 if softmax else m),
                "gls_trace": torch.trace(W @ B),
                "gls_frobenius": (W @ B).square().sum().sqrt(),
                "gls_spectral": torch.linalg.svdvals(W @ B)[0],
                "gls_trace_logit": torch.trace(logit),
                "gls_frobenius_logit": logit.square().sum().sqrt(),
                "gls_spectral_logit": torch.linalg.svdvals(logit)[0],
                "influence": g @ B @ g,
                "newton": g @ step,
                "loo_gap": moved - value,
            }
            if softmax:
                p = torch.softmax(f, 0)
                row["entropy"] = -(p * p.log()).sum()
                row["margin"] = max(f[c] - f[y] for c in range(m) if c != int(y))
            elif self.loss == "binary_cross_entropy":
                p = torch.sigmoid(f)
                row["entropy"] = -(p * p.log() + (1 - p) * (1 - p).log()).sum()
                row["margin"] = max((-f[c] if y[c] == 1 else f[c]) for c in range(m))
            rows.append(row)
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def total_loss(f: torch.Tensor, y: torch.Tensor, loss: str) -> torch.Tensor:
    if loss == "squared":
        return ((f - y) ** 2).sum()
    if loss == "binary_cross_entropy":
        return nn.functional.binary_cross_entropy_with_logits(f, y, reduction="sum")
    return nn.functional.cross_entropy(f, y, reduction="sum")


def network_of(kind: str, loss: str = "cross_entropy", depth="all", n: int = 18, **options) -> Network:
    model, x, y = made(kind, n)
    return Network(model, (x, targets_for(loss, y)), loss=loss, parameters=depth, **options)


def dense(
    network: Network, loss: str = "cross_entropy", names: list[str] | None = None, *, hessian: bool = False
) -> Dense:
    """By torch.autograd alone, with the loss written out."""
    model, (x,), y = network.model, network.records.arguments, network.records.targets
    names = list(network.parameters.values) if names is None else names
    own = {name: value.detach() for name, value in model.named_parameters()}

    def outputs(flat: torch.Tensor) -> torch.Tensor:
        values, start = dict(own), 0
        for name in names:
            values[name] = flat[start : start + own[name].numel()].view(own[name].shape)
            start += own[name].numel()
        return functional_call(model, values, (x,))

    flat = torch.cat([own[name].flatten() for name in names])
    H = None
    with network.evaluating():  # without fused attention, which has no second derivatives
        J, f = torch.autograd.functional.jacobian(outputs, flat), outputs(flat)
        if hessian:
            H = torch.autograd.functional.hessian(lambda values: total_loss(outputs(values), y, loss), flat)
    p = torch.softmax(f, 1)
    if loss == "squared":
        g, W = 2 * (f - y), 2 * torch.eye(f.shape[1], dtype=torch.float64).expand(len(f), -1, -1)
    elif loss == "binary_cross_entropy":
        p = torch.sigmoid(f)
        g, W = p - y, torch.diag_embed(p * (1 - p))
    else:
        g = p - nn.functional.one_hot(y, f.shape[1])
        W = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    return Dense(J, f, g, W, H, y, loss)
