"""What the recording says directly: host rows, calls, arguments, modules, places in the source."""
