"""What the GLS paper prints: Table 2, with ± as printed, and how its experiments were set up."""

from __future__ import annotations

# Spearman of gls_trace with what shadow models say; mean and ± over 16 models
TABLE_2: dict[str, dict[str, tuple[float, float]]] = {
    "lira": {
        "last layer": (0.50, 0.05),
        "2 last layers": (0.51, 0.04),
        "4 last layers": (0.51, 0.03),
        "full model": (0.51, 0.04),
    },
    "deviation_ratio": {
        "last layer": (0.40, 0.04),
        "2 last layers": (0.41, 0.03),
        "4 last layers": (0.41, 0.04),
        "full model": (0.41, 0.03),
    },
    "tpr": {
        "last layer": (0.27, 0.04),
        "2 last layers": (0.28, 0.04),
        "4 last layers": (0.28, 0.05),
        "full model": (0.29, 0.05),
    },
    "mean_gap": {
        "last layer": (0.06, 0.04),
        "2 last layers": (0.06, 0.03),
        "4 last layers": (0.07, 0.04),
        "full model": (0.06, 0.04),
    },
}
METRICS = {
    "lira": "LiRA score",
    "deviation_ratio": "σ_out/σ_in",
    "tpr": "TPR at 5 % FPR",
    "mean_gap": "\\|μ_out − μ_in\\|",
}
SET_UP = {
    "shadow models": 200,
    "target models": 16,
    "records a model is trained on": 40_000,
    "held-out accuracy": 0.92,
    "records scored a target": 128,
    "damping of the mean loss": (1e-4, 1e-2),
    "most steps": 100,
    "tolerance": 1e-3,
    "device": "A100",
    "attacks of Figure 4": 50,
    "share of Figure 4": 0.02,
}
LEVERAGES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of our Figure 5; the paper's values cannot be read from its text
