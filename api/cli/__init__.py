"""The command line: parses and runs the commands that other packages declare."""
