"""`trace()`: live capture."""
