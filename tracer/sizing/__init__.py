"""Memory arithmetic and speed limits of a transformer, from its config: no trace, no GPU needed."""
