"""The numbers that the second paper prints: Dorseuil, Atif and Cappé, "Assessing Per-Sample Membership Inference
Vulnerability without Retraining". Recalls in per cent, mean and standard deviation over 16 targets."""

from __future__ import annotations

Cell = tuple[float, float]
TARGETS = 16

NAMES = {
    "loss": "loss",
    "gradient_norm": "gradient norm",
    "entropy": "self-entropy",
    "newton": "Newton step",
    "influence": "influence",
    "whole_network": "influence, whole network",
    "fused": "**fused** (ours)",
    "fused_records": "fused with the records themselves (ours)",
}

SHORT = {
    "energy_mlp": "Energy",
    "california_linear": "California, linear",
    "california_mlp": "California, MLP",
    "bloodmnist_head": "BloodMNIST",
    "cifar10_cnn": "CIFAR-10",
    "cifar100_resnet20": "CIFAR-100",
    "sst2_head": "SST-2, head",
    "sst2_transformer": "SST-2, transformer",
}

# Table 1: recall of LiRA's top 1 % in the kept 5 %
TOP: dict[str, dict[str, Cell]] = {
    "sst2_transformer": {
        "loss": (28.2, 2.4),
        "gradient_norm": (5.3, 1.1),
        "newton": (28.8, 2.6),
        "influence": (28.8, 2.6),
    },
    "sst2_head": {"loss": (10.7, 1.6), "gradient_norm": (7.2, 1.9), "newton": (8.2, 2.5), "influence": (8.9, 1.6)},
    "california_linear": {
        "loss": (12.3, 2.8),
        "gradient_norm": (12.3, 2.8),
        "newton": (13.3, 2.6),
        "influence": (13.2, 2.5),
    },
    "california_mlp": {
        "loss": (52.2, 6.7),
        "gradient_norm": (22.5, 6.9),
        "newton": (74.9, 7.4),
        "influence": (75.5, 7.0),
    },
    "cifar10_cnn": {
        "loss": (53.7, 2.5),
        "gradient_norm": (36.8, 2.5),
        "newton": (62.8, 2.1),
        "influence": (62.2, 2.2),
    },
    "cifar100_resnet20": {
        "loss": (23.5, 1.5),
        "gradient_norm": (12.3, 1.8),
        "newton": (36.8, 5.1),
        "influence": (35.2, 4.6),
    },
    "bloodmnist_head": {
        "loss": (74.3, 6.4),
        "gradient_norm": (82.3, 3.9),
        "newton": (90.4, 12.7),
        "influence": (87.1, 9.0),
    },
    "energy_mlp": {
        "loss": (12.5, 16.7),
        "gradient_norm": (14.6, 21.0),
        "newton": (33.3, 34.4),
        "influence": (39.6, 32.7),
    },
}

# Table 5: recall of the top 0.1, 1 and 5 % in as many kept, and Spearman's correlation (not in per cent)
ALIKE = ("0.1%", "1%", "5%", "spearman")
_NO_CELL = None
RECALLS: dict[str, dict[str, tuple[Cell | None, ...]]] = {
    "sst2_transformer": {
        "loss": ((0.00, 0.00), (5.44, 1.36), (30.83, 1.11), (0.474, 0.022)),
        "gradient_norm": ((0.00, 0.00), (0.57, 0.18), (4.64, 0.33), _NO_CELL),
        "entropy": ((0.02, 0.06), (6.34, 1.16), (28.52, 1.10), (0.470, 0.022)),
        "newton": ((1.02, 1.47), (7.05, 1.23), (31.30, 1.44), (0.389, 0.036)),
        "influence": ((1.22, 1.54), (6.88, 1.30), (31.28, 1.44), (0.389, 0.036)),
    },
    "sst2_head": {
        "loss": ((0.05, 0.08), (2.30, 0.64), (7.94, 0.50), (0.045, 0.005)),
        "gradient_norm": ((0.00, 0.00), (1.56, 0.70), (6.64, 0.65), _NO_CELL),
        "entropy": ((0.60, 1.26), (1.07, 0.46), (5.60, 0.34), (0.026, 0.005)),
        "newton": ((0.00, 0.00), (1.80, 0.87), (6.88, 0.57), (0.037, 0.005)),
        "influence": ((0.30, 0.94), (2.27, 0.70), (7.01, 0.43), (0.038, 0.005)),
    },
    "california_linear": {
        "loss": ((6.33, 7.74), (3.16, 1.81), (8.65, 1.05), (0.033, 0.006)),
        "gradient_norm": ((6.33, 7.74), (3.16, 1.81), (8.65, 1.05), (0.033, 0.006)),
        "newton": ((36.44, 15.34), (7.54, 2.50), (9.30, 1.23), (0.050, 0.007)),
        "influence": ((38.02, 14.64), (7.54, 2.50), (9.30, 1.24), (0.050, 0.007)),
    },
    "california_mlp": {
        "loss": ((14.90, 9.25), (22.59, 6.49), (23.58, 4.03), (0.276, 0.028)),
        "gradient_norm": ((0.00, 0.00), (4.53, 2.83), (10.81, 2.26), (0.198, 0.019)),
        "newton": ((23.95, 11.89), (45.84, 5.54), (33.22, 3.96), (0.297, 0.027)),
        "influence": ((25.49, 11.97), (46.46, 4.79), (33.46, 3.88), (0.297, 0.027)),
        "whole_network": (_NO_CELL, (24.57, 5.55), (23.72, 2.85), (0.266, 0.025)),
    },
    "cifar10_cnn": {
        "loss": ((4.02, 3.23), (17.30, 2.10), (42.98, 1.17), (0.813, 0.004)),
        "gradient_norm": ((0.01, 0.05), (8.40, 1.65), (33.52, 1.28), (0.811, 0.003)),
        "entropy": ((0.78, 1.57), (10.36, 1.33), (38.70, 1.35), (0.808, 0.004)),
        "newton": ((15.28, 6.95), (25.59, 1.77), (48.14, 1.27), (0.814, 0.003)),
        "influence": ((14.07, 7.06), (24.48, 1.99), (47.76, 1.31), (0.814, 0.003)),
        "whole_network": (_NO_CELL, (24.57, 5.55), (23.72, 2.85), (0.266, 0.025)),
    },
    "cifar100_resnet20": {
        "loss": ((2.26, 2.86), (7.40, 1.80), (20.53, 0.72), (0.658, 0.007)),
        "gradient_norm": ((0.51, 1.39), (2.68, 0.69), (13.94, 0.93), (0.659, 0.005)),
        "entropy": ((0.25, 0.99), (3.84, 1.15), (19.75, 1.11), (0.686, 0.007)),
        "newton": ((4.84, 4.60), (13.51, 2.82), (28.64, 3.15), (0.690, 0.024)),
        "influence": ((5.77, 3.82), (13.08, 2.66), (28.24, 2.80), (0.689, 0.022)),
    },
    "bloodmnist_head": {
        "loss": ((10.55, 10.08), (33.22, 3.72), (59.06, 2.19), (0.600, 0.005)),
        "gradient_norm": ((10.91, 14.54), (39.95, 4.54), (62.34, 2.07), (0.604, 0.005)),
        "entropy": ((0.00, 0.00), (14.67, 3.72), (44.45, 2.05), (0.586, 0.005)),
        "newton": ((34.70, 26.66), (52.68, 15.24), (67.00, 10.01), (0.604, 0.031)),
        "influence": ((27.24, 17.77), (47.27, 7.87), (67.09, 6.55), (0.608, 0.024)),
    },
    "energy_mlp": {
        "loss": ((0.00, 0.00), (2.01, 8.06), (20.74, 4.87), (0.528, 0.040)),
        "gradient_norm": ((0.00, 0.00), (6.25, 12.92), (26.83, 9.21), (0.507, 0.036)),
        "newton": ((0.00, 0.00), (10.90, 19.74), (28.25, 7.50), (0.541, 0.032)),
        "influence": ((6.25, 25.00), (14.72, 23.99), (30.32, 7.89), (0.540, 0.032)),
    },
}

# Table 4, in seconds on V100s: a model, 200 references, 16 targets, attacks, scores of a target, whole network of one;
# and the total in hours
PHASES = ("a model", "references", "targets", "attacks", "surrogates", "whole_network")
SECONDS: dict[str, tuple[float | None, ...]] = {
    "energy_mlp": (30, 1.7 * 3600, 8 * 60, 30, 3, None),
    "california_linear": (60, 3.3 * 3600, 0.3 * 3600, 7 * 60, 10, None),
    "california_mlp": (60, 3.3 * 3600, 0.3 * 3600, 7 * 60, 10, 20 * 60),
    "bloodmnist_head": (15 * 60, 60.0 * 3600, 4.0 * 3600, 5 * 60, 15, None),
    "cifar10_cnn": (4 * 60, 13.0 * 3600, 1.0 * 3600, 20 * 60, 30, 2.2 * 3600),
    "cifar100_resnet20": (13 * 60, 44.4 * 3600, 3.5 * 3600, 45 * 60, 60, None),
    "sst2_transformer": (6 * 60, 20 * 3600, 1.6 * 3600, 17 * 60, 45, None),
    "sst2_head": (19 * 60, 64.6 * 3600, 5.0 * 3600, 18 * 60, 180, None),
}
HOURS = {
    "energy_mlp": 1.7,
    "california_linear": 3.6,
    "california_mlp": 8.9,
    "bloodmnist_head": 64.0,
    "cifar10_cnn": 49.2,
    "cifar100_resnet20": 48.5,
    "sst2_transformer": 20.6,
    "sst2_head": 70.0,
}
FASTER = (1_000, 10_000)  # times: scores of a target against training 200 references (Section 5.2)
TEXT_FASTER = {"bloodmnist_head": 50_000}  # the same where the text of Appendix C.2 has it
ALL_HOURS = 266  # Table 4's total
# the ten sentences with the highest scores, cut off as printed
TABLE_6 = {
    "newton": (
        "to appearing in this junk that 's tv sitcom material at best",
        "the filmmakers wisely decided to let crocodile hunter steve irwin d...",
        "the kind that pretends to be passionate and truthful but is really ...",
        "a supernatural mystery that does n't know whether it wants to be a ...",
        "less the cheap thriller you 'd expect than it is a fairly revealing...",
        "played-out",
        "of a callow rich boy who is forced to choose between his beautiful ...",
        "that collect a bunch of people who are enthusiastic about something...",
        ": the widowmaker is derivative , overlong , and bombastic – yet su...",
        "ride around a pretty tattered old carousel .",
    ),
    "influence": (
        "is never quite able to overcome the cultural moat surrounding its l...",
        "spider-man",
        "nicks refuses to let slackers be seen as just another teen movie , ...",
        "recycle images and characters that were already tired 10 years ago",
        "report that the children of varying ages in my audience never cough...",
        "breach gaps in their relationships with their fathers",
        "it 's painful to watch witherspoon 's talents wasting away inside u...",
        "its drastic iconography",
        "of a callow rich boy who is forced to choose between his beautiful ...",
        'never does " lilo & stitch " reach the emotion or timelessness of...',
    ),
}
ODDITIES = {
    "california_linear": "the paper's rows of loss and gradient norm are the same here, as of a gradient of the output",
    "cifar10_cnn": "the whole-network row of the paper's Table 5 repeats that of California Housing",
    "sst2_transformer": "sentences are cut at 32 words",
    "bloodmnist_head": "the paper's Table 4 has 200 models of 15 minutes in 60 hours, where 50 would be",
}
