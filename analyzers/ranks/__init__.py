"""Several ranks of one run: clocks aligned, calls matched, who waits for whom."""
