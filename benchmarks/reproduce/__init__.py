"""The papers' experiments beside ours: one command a setting, tables and figures from the committed results."""
