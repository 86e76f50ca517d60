"""The command line, run in the process of a test."""

from dovetail.cli.main import main


def status_of(*arguments):
    """Run a command and return its exit status; a plan without a time limit has all the time."""
    words = list(map(str, arguments))
    if words[:1] == ["plan"] and not {"--time-limit", "--from-live"} & set(words):
        words += ["--time-limit", "inf"]
    try:
        return main(words)
    except SystemExit as stopped:
        return stopped.code
