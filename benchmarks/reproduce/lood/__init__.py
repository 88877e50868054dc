"""The LOOD paper: leave-one-out distinguishability beside attacks on retrained networks, and what the paper claims."""
