"""Two recordings compared: before and after a change."""
