"""Gaussian processes of wide networks and what a left-out record changes in them."""
