"""The steps of a recording: where they are, what each computed, which are warm-up."""
