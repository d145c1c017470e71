"""What a compiler did while the program ran: graphs, generated code, breaks, recompilations."""
