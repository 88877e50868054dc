"""Linear heads: their losses, and the curvature that turns a head into leverage blocks, one a record."""
