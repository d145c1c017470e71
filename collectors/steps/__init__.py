"""Steps while the program runs: announced, generated, and timed on the device."""
