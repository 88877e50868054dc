"""What the other records and a Gaussian process say of each record, beside what the model's head did with it."""
