"""The command line, run in the process of a test."""

from dovetail.cli.main import main


def status_of(*arguments):
    """Run a command and return its exit status."""
    try:
        return main(list(map(str, arguments)))
    except SystemExit as stopped:
        return stopped.code
