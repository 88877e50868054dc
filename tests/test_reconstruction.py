"""Features and classes from the last layer: exact at the optimum, against a loop, and hidden by what else is left."""

import numpy as np
import torch
from benchmarks.reconstruction import PENALTY, found_by, refitted


def test_the_optimum_gives_every_record_away_and_missing_records_hide_it():
    torch.manual_seed(0)
    n, d = 40, 6
    features = torch.cat([torch.randn(n, d, dtype=torch.float64), torch.ones(n, 1, dtype=torch.float64)], 1)
    y = torch.randint(0, 10, (n,))
    theta = refitted(features, y, torch.zeros(10, d + 1, dtype=torch.float64))
    slope = (features @ theta.T).softmax(1) - torch.nn.functional.one_hot(y, 10)
    assert float((slope.T @ features + PENALTY * theta).norm()) < 1e-5
    cosines, right, left = found_by(features, y, theta, 1.0, seed=0)
    assert left < 1e-5
    assert cosines.min() > 0.9999
    assert right.all()
    cosines, _, _ = found_by(features, y, theta, 0.9, seed=3)
    missing = torch.randperm(n, generator=torch.Generator().manual_seed(3))[:4].tolist()
    centre = features[:, :d].mean(0)
    for record in range(n):  # what an attacker computes who lacks the record and the missing ones
        known = [row for row in range(n) if row != record and row not in missing]
        rest = -(PENALTY * theta + slope[known].T @ features[known])
        direction = np.linalg.svd(rest.numpy())[2][0]
        guess, truth = torch.from_numpy(direction[:d] / direction[d]) - centre, features[record, :d] - centre
        assert abs(float(guess @ truth / guess.norm() / truth.norm()) - cosines[record]) < 1e-6
