"""The command line: what is declared in other packages, parsed and run."""
