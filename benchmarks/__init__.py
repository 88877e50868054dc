"""Measurements of the library, each a script of its own; `reproduce` holds the papers' experiments."""
