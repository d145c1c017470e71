"""Which group and part each piece of work belongs to: the ladder of evidence and its rungs."""
