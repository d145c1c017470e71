"""What names tell: of kernels, operators, engines, frameworks; the tables are data."""
