"""The audit: plan it, run it, keep it in a folder."""
