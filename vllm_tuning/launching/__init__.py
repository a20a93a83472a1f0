"""Which launches to make, how to make them, and whether the answer held."""
