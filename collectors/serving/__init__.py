"""A running serving engine: its metrics over HTTP, and the captures that it makes of itself."""
