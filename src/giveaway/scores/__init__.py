"""The scores: one function a column, named as the column; every one is higher for a more exposed record."""
