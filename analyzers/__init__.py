"""From a trace to an `Analysis`: each file one question, listed here in order."""
