"""Reading traces in Kineto's JSON, as PyTorch and others write it."""
