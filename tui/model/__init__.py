"""From an `Analysis` to what is drawn: pure functions that know no screen."""
