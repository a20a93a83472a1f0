"""The commands, a file for each task; what they share is in ``options``."""
