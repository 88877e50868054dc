"""Features of the records that never saw the labels, and what a ridge regression predicts for records left out."""
