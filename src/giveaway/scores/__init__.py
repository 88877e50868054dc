"""The scores: one function a column; every one is higher for a more exposed record."""
