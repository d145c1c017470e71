"""Records that libraries leave beside a trace: NCCL's log, flight recorder, warnings."""
