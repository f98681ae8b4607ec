"""The command line: one file per noun, heavy imports inside the commands."""
