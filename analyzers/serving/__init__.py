"""What a serving engine did in a window of readings, and what holds its requests up."""
