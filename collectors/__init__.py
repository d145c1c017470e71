"""Sources: each file reads or records one kind of input and makes a `Trace`."""
