"""The per-sample paper: eight settings of scores against shadow models, and what the paper prints and claims."""
