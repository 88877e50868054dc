"""Slow reference values of the head scores, written from the formulas alone.

Derivatives come from automatic differentiation, the curvature is a full P x P matrix, every record is scored by
its own small dense solve. Nothing is shared with the library, so an agreement between the two means something.

Conventions: float64; the bias column of ones is the LAST column of the design matrix, so the bias is the last row
of theta (d or d + 1, m); parameters are flattened feature-major, so x x^T (x) W is np.kron(outer(x, x), W).
A loss is "squared", "cross_entropy" (m >= 2 outputs: softmax; one output: a single logit with targets in [0, 1]) or
"binary_cross_entropy" (m independent logits). Penalties are in units of the summed loss.
"""

import numpy as np
import torch

EPS = np.finfo(np.float64).eps
CAP = 1.0 - 1e-8  # largest eigenvalue of W^1/2 B W^1/2 that the Newton step may see


def kind_of(loss, n_outputs):
    """Which of the three loss functions applies: "squared", "softmax" or "logistic" (independent logits)."""
    if loss == "squared":
        return "squared"
    if loss == "binary_cross_entropy":
        return "logistic"
    if loss == "cross_entropy":
        return "logistic" if n_outputs == 1 else "softmax"
    raise ValueError(f"unknown loss {loss!r}")


def target_matrix(targets, loss, n_outputs):
    """Targets as an (n, m) float64 matrix; class indices become one-hot rows."""
    targets = np.asarray(targets)
    if kind_of(loss, n_outputs) == "softmax" and targets.ndim == 1:
        one_hot = np.zeros((len(targets), n_outputs))
        for i, label in enumerate(targets):
            one_hot[i, int(label)] = 1.0
        return one_hot
    matrix = targets.astype(np.float64).reshape(len(targets), -1)
    if matrix.shape[1] != n_outputs:
        raise ValueError(f"targets have {matrix.shape[1]} columns, outputs have {n_outputs}")
    return matrix


def record_loss(output, target, kind):
    """Loss of one record as a differentiable torch function of its output vector (m,)."""
    if kind == "squared":
        return ((output - target) ** 2).sum()
    if kind == "softmax":
        return -(target * torch.log_softmax(output, dim=0)).sum()
    zero = torch.zeros_like(output)
    return (target * torch.logaddexp(zero, -output) + (1.0 - target) * torch.logaddexp(zero, output)).sum()


def losses(outputs, target, kind):
    """Loss of every record, (n,)."""
    f, y = torch.as_tensor(outputs), torch.as_tensor(target)
    return np.array([float(record_loss(f[i], y[i], kind)) for i in range(len(f))])


def derivatives(outputs, target, kind):
    """Gradients g (n, m) and Hessians W (n, m, m) of the loss in the outputs, by automatic differentiation."""
    f, y = torch.as_tensor(outputs), torch.as_tensor(target)

    def one(output, goal):
        return record_loss(output, goal, kind)

    g = torch.vmap(torch.func.grad(one))(f, y)
    W = torch.vmap(torch.func.hessian(one))(f, y)
    return g.numpy(), W.numpy()


def design_matrix(features, intercept):
    """Features with a last column of ones when there is an intercept."""
    x = np.asarray(features, dtype=np.float64)
    return np.column_stack([x, np.ones(len(x))]) if intercept else x


def penalty_vector(d, r, l2, intercept, penalize_intercept):
    """Diagonal of the penalty's Hessian, in the order of the flattened parameters (d * r,)."""
    rows = np.full(d, float(l2))
    if intercept and not penalize_intercept:
        rows[-1] = 0.0
    return np.repeat(rows, r)


def output_basis(kind, m):
    """Orthonormal columns spanning the output directions that matter: all, or the complement of 1 for softmax."""
    if kind != "softmax":
        return np.eye(m)
    # Left singular vectors of the column of ones: the first is 1 / sqrt(m), the others span its complement.
    left, _, _ = np.linalg.svd(np.ones((m, 1)), full_matrices=True)
    return left[:, 1:]


def weights_or_ones(sample_weight, n):
    """Sample weights as float64, ones when absent."""
    return np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)


def curvature(x, W, weight, penalty):
    """H = sum_j s_j x_j x_j^T (x) W_j + diag(penalty), the sum of a Kronecker product a record."""
    products = np.einsum("j,ja,jb,jkl->akbl", weight, x, x, W, optimize=True)
    return np.diag(penalty) + products.reshape(len(penalty), len(penalty))


def pseudo_inverse(H):
    """Inverse of a symmetric matrix on its numerical range: eigenvalues above P * eps times the largest."""
    return np.linalg.pinv((H + H.T) / 2, rcond=len(H) * EPS, hermitian=True)


def _setup(features, outputs, targets, loss, l2=0.0, intercept=True, penalize_intercept=True, sample_weight=None):
    """Everything the scores need: (x, f, y, s, kind, Q, g, g reduced, W reduced, H reduced, its penalty)."""
    f = np.asarray(outputs, dtype=np.float64).reshape(len(outputs), -1)
    m = f.shape[1]
    kind = kind_of(loss, m)
    y = target_matrix(targets, loss, m)
    x = design_matrix(features, intercept)
    s = weights_or_ones(sample_weight, len(x))
    g, W = derivatives(f, y, kind)
    Q = output_basis(kind, m)
    g_reduced = g @ Q
    W_reduced = np.array([Q.T @ W_i @ Q for W_i in W])
    penalty = penalty_vector(x.shape[1], Q.shape[1], l2, intercept, penalize_intercept)
    H = curvature(x, W_reduced, s, penalty)
    return x, f, y, s, kind, Q, g, g_reduced, W_reduced, H, penalty


def _square_root(W):
    """Symmetric square root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh((W + W.T) / 2)
    return vectors @ np.diag(np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def top_leverage(B, W):
    """Largest eigenvalue of W^1/2 B W^1/2, W already multiplied by the sample weight."""
    root = _square_root(W)
    M = root @ B @ root
    return float(np.linalg.eigvalsh((M + M.T) / 2)[-1])


def newton_displacement(B, W, g):
    """Change of the outputs when the record(s) are left out, B (I - W B)^{-1} g; W and g carry the sample weight.

    Where leaving out loses a direction (an eigenvalue of M = W^1/2 B W^1/2 above 1 - 1e-8) the equal form
    B g + B W^1/2 (I - M)^{-1} W^1/2 B g is used with the eigenvalues of M clipped there.
    """
    identity = np.eye(len(B))
    if top_leverage(B, W) <= CAP:
        return B @ np.linalg.inv(identity - W @ B) @ g
    root = _square_root(W)
    M = root @ B @ root
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    inverse = vectors @ np.diag(1.0 / (1.0 - np.minimum(values, CAP))) @ vectors.T
    return B @ g + B @ root @ inverse @ root @ B @ g


def _gls_norms(scores, i, M, suffix):
    """Store trace, Frobenius norm and spectral norm (largest singular value) of one GLS matrix."""
    scores["gls_trace" + suffix][i] = np.trace(M)
    scores["gls_frobenius" + suffix][i] = np.sqrt((M**2).sum())
    scores["gls_spectral" + suffix][i] = np.linalg.svd(M, compute_uv=False)[0]


def entropy_of(output, kind):
    """Entropy of the predicted distribution of one record, summed over labels for independent logits."""
    pairs = [output] if kind == "softmax" else [np.array([0.0, logit]) for logit in output]
    total = 0.0
    for logits in pairs:
        log_p = torch.log_softmax(torch.as_tensor(logits), dim=0).numpy()
        total += -(np.exp(log_p) * log_p).sum()
    return total


def margin_of(output, target, kind):
    """Best other logit minus own logit; the worst label for independent logits (logit pairs (0, f))."""
    if kind == "softmax":
        own = int(np.argmax(target))
        return max(output[c] for c in range(len(output)) if c != own) - output[own]
    worst = -np.inf
    for logit, probability in zip(output, target, strict=True):
        own = int(np.argmax([1.0 - probability, probability]))
        pair = (0.0, logit)
        worst = max(worst, pair[1 - own] - pair[own])
    return worst


COLUMNS = ["loss", "gradient_norm", "entropy", "margin", "leverage"]
COLUMNS += [f"gls_{norm}{kind}" for kind in ("", "_logit") for norm in ("trace", "frobenius", "spectral")]
COLUMNS += ["influence", "newton", "loo_gap"]


def head_scores(features, outputs, targets, loss, **options):
    """Every head score of every record, as a dict of (n,) arrays; entropy and margin are absent for squared loss."""
    return group_scores(features, outputs, targets, loss, np.arange(len(features)), **options)


def top_eigenvalues(features, outputs, targets, loss, **options):
    """Largest eigenvalue of s W^1/2 B W^1/2 of every record: above 1 - 1e-8 its Newton step is capped."""
    x, _, _, s, _, Q, _, _, W_red, H, _ = _setup(features, outputs, targets, loss, **options)
    inverse = pseudo_inverse(H)
    values = []
    for i in range(len(x)):
        lift = np.kron(x[i][:, None], np.eye(Q.shape[1]))
        values.append(top_leverage(lift.T @ inverse @ lift, s[i] * W_red[i]))
    return np.array(values)


def group_scores(features, outputs, targets, loss, groups, **options):
    """Every score of every person (in the order of np.unique(groups)) whose records are left out together.

    Baselines: loss and entropy summed, margin the largest, gradient_norm the norm of the person's summed gradient.
    The others come from the person's stacked block; leverage is its trace over r, so it may exceed one.
    """
    x, f, y, s, kind, Q, g, g_red, W_red, H, _ = _setup(features, outputs, targets, loss, **options)
    r = Q.shape[1]
    inverse = pseudo_inverse(H)
    people = np.unique(groups)
    absent = ("entropy", "margin") if kind == "squared" else ()
    scores = {name: np.full(len(people), np.nan) for name in COLUMNS if name not in absent}
    for k, person in enumerate(people):
        members = np.flatnonzero(np.asarray(groups) == person)
        size = len(members)

        lift = np.zeros((len(H), size * r))  # one (P, r) slab a record, side by side
        W_stack = np.zeros((size * r, size * r))  # block diagonal, weighted
        s_stack = np.zeros(size * r)
        g_stack = np.zeros(size * r)  # not weighted
        gradient = np.zeros((x.shape[1], f.shape[1]))
        for a, i in enumerate(members):
            block = slice(a * r, (a + 1) * r)
            lift[:, block] = np.kron(x[i][:, None], np.eye(r))
            W_stack[block, block] = s[i] * W_red[i]
            s_stack[block] = s[i]
            g_stack[block] = g_red[i]
            gradient = gradient + np.outer(x[i], g[i])
        B = lift.T @ inverse @ lift

        person_losses = losses(f[members], y[members], kind)
        scores["loss"][k] = person_losses.sum()
        scores["gradient_norm"][k] = np.linalg.norm(gradient)
        if kind != "squared":
            scores["entropy"][k] = sum(entropy_of(f[i], kind) for i in members)
            scores["margin"][k] = max(margin_of(f[i], y[i], kind) for i in members)

        _gls_norms(scores, k, W_stack @ B, "")
        _gls_norms(scores, k, (2.0 if kind == "squared" else 1.0) * np.diag(s_stack) @ B, "_logit")
        scores["leverage"][k] = np.trace(W_stack @ B) / r

        weighted = s_stack * g_stack
        moved = newton_displacement(B, W_stack, weighted)
        scores["influence"][k] = g_stack @ B @ weighted
        scores["newton"][k] = g_stack @ moved
        without = np.array([f[i] + Q @ moved[a * r : (a + 1) * r] for a, i in enumerate(members)])
        scores["loo_gap"][k] = (losses(without, y[members], kind) - person_losses).sum()
    return scores


def unconverged_newton(features, outputs, targets, loss, theta, **options):
    """Newton score of a head that is not at its optimum: the leave-one-out step minus the drift all records share.

    grad_i^T [H_{-i}^{-1} (s_i grad_i - G) + H^{-1} G] with G = sum_j s_j grad_j + lambda theta, theta (d(+1), m) with
    the bias as its last row, and H_{-i} = H - s_i x_i x_i^T (x) W_i formed and inverted for every record.
    """
    x, _, _, s, _, Q, _, g_red, W_red, H, penalty = _setup(features, outputs, targets, loss, **options)
    G = penalty * (np.asarray(theta, dtype=np.float64) @ Q).ravel()
    for j in range(len(x)):
        G = G + s[j] * np.kron(x[j], g_red[j])
    back = pseudo_inverse(H) @ G
    scores = np.full(len(x), np.nan)
    for i in range(len(x)):
        gradient = np.kron(x[i], g_red[i])
        keep = np.arange(len(x)) != i
        H_without = curvature(x[keep], W_red[keep], s[keep], penalty)
        scores[i] = gradient @ (pseudo_inverse(H_without) @ (s[i] * gradient - G) + back)
    return scores


def count_outputs(targets, loss, n_outputs=None, start=None):
    """Number of outputs of a head to be fitted: as asked, as in the start, or read from the targets."""
    if n_outputs is not None:
        return int(n_outputs)
    if start is not None:
        return np.asarray(start).shape[1]
    targets = np.asarray(targets)
    if targets.ndim == 2:
        return targets.shape[1]
    return int(targets.max()) + 1 if loss == "cross_entropy" else 1


def refit(
    features, targets, loss, l2=0.0, intercept=True, penalize_intercept=True, sample_weight=None, start=None,
    tol=1e-13, n_outputs=None,
):  # fmt: skip
    """Minimize sum_j s_j loss_j + l2/2 |theta|^2; returns theta (d(+1), m), bias last, and the outputs (n, m).

    Class indices (n,) with "cross_entropy" mean a softmax over max + 1 classes unless n_outputs says otherwise
    (n_outputs=1: one logit). Softmax is fitted in the complement of 1, so the rows of theta sum to zero. Where the
    optimum is not unique the steps are those of least norm. Raises RuntimeError when no optimum is reached.
    """
    x = design_matrix(features, intercept)
    m = count_outputs(targets, loss, n_outputs, start)
    kind = kind_of(loss, m)
    y = target_matrix(targets, loss, m)
    s = weights_or_ones(sample_weight, len(x))
    d = x.shape[1]

    if kind == "squared":
        ridge = np.diag(np.sqrt(penalty_vector(d, 1, l2, intercept, penalize_intercept) / 2.0))
        left = np.vstack([np.sqrt(s)[:, None] * x, ridge])
        right = np.vstack([np.sqrt(s)[:, None] * y, np.zeros((d, m))])
        theta = np.linalg.lstsq(left, right, rcond=None)[0]
        return theta, x @ theta

    Q = output_basis(kind, m)
    r = Q.shape[1]
    penalty = penalty_vector(d, r, l2, intercept, penalize_intercept)
    phi = np.zeros(d * r) if start is None else (np.asarray(start, dtype=np.float64) @ Q).ravel()

    def outputs_of(phi):
        return x @ phi.reshape(d, r) @ Q.T

    def objective(phi):
        f, goal = torch.as_tensor(outputs_of(phi)), torch.as_tensor(y)
        values = torch.vmap(lambda a, b: record_loss(a, b, kind))(f, goal).numpy()
        return float(s @ values + 0.5 * (penalty * phi**2).sum())

    best, best_relative, polishing = phi, np.inf, 0
    for _ in range(200):
        g, W = derivatives(outputs_of(phi), y, kind)
        g, W = g @ Q, np.array([Q.T @ W_j @ Q for W_j in W])
        gradient = (x.T @ (s[:, None] * g)).ravel() + penalty * phi
        scale = (s * np.linalg.norm(x, axis=1) * np.linalg.norm(g, axis=1)).sum()
        relative = np.linalg.norm(gradient) / scale
        if relative < best_relative:
            best, best_relative = phi, relative
        if relative <= tol or polishing > 3:
            break
        H = curvature(x, W, s, penalty)
        step = -np.linalg.lstsq(H, gradient, rcond=len(H) * EPS)[0]
        slope = gradient @ step
        here = objective(phi)
        if -slope <= 1e-11 * abs(here):  # the objective no longer resolves the step: take it whole, a few times
            polishing += 1
            phi = phi + step
            continue
        length = 1.0
        while objective(phi + length * step) > here + 1e-4 * length * slope:
            length /= 2.0
            if length < 1e-12:
                raise RuntimeError("the line search found no descent")
        phi = phi + length * step
    if best_relative > 1e-10:
        raise RuntimeError(f"not converged: gradient {best_relative:.1e} of the summed gradient norms")
    return best.reshape(d, r) @ Q.T, outputs_of(best)


def leave_group_out_refits(features, targets, loss, groups, people=None, sample_weight=None, n_outputs=None, **options):
    """Real refits without all records of each of the people (all, as in np.unique(groups), by default).

    Returned are the summed gaps loss_i(theta without the person) - loss_i(theta), unweighted.
    """
    features, targets = np.asarray(features), np.asarray(targets)
    m = count_outputs(targets, loss, n_outputs)
    kind, y, s = kind_of(loss, m), target_matrix(targets, loss, m), weights_or_ones(sample_weight, len(features))
    x = design_matrix(features, options.get("intercept", True))

    def fit(rows, start):
        own = {"sample_weight": s[rows], "start": start, "n_outputs": m}
        return refit(features[rows], targets[rows], loss, **own, **options)[0]

    theta = fit(np.arange(len(x)), None)
    gaps = []
    for person in np.unique(groups) if people is None else people:
        left_out = np.asarray(groups) == person
        without = fit(np.flatnonzero(~left_out), theta)
        sides = [losses(x[left_out] @ weights, y[left_out], kind) for weights in (without, theta)]
        gaps.append((sides[0] - sides[1]).sum())
    return np.array(gaps)


def leave_one_out_refits(features, targets, loss, records=None, **options):
    """Real refits without each of the records (all by default): loss gaps (k,)."""
    return leave_group_out_refits(features, targets, loss, np.arange(len(features)), records, **options)
