"""Whether this machine and this Python can run and trace a model: facts asked in subprocesses,
checks that judge them."""
