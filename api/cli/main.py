"""The command line: arguments in, exit status out.

0: done; 1: checked and found wrong, or no valid plan; 2: bad input or usage, with one line on
standard error. The function of a command is imported when it runs.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from dovetail.cli.parser import parsed
from dovetail.instances.errors import DovetailError, VerificationError, brief
from dovetail.toolkit.commands import INTERRUPTED, Command, given_additions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    _open_closed_streams()
    command, options = parsed(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(command, options)
        sys.stdout.flush()
    except VerificationError as error:
        return _failed(f"verification failed: {error}", 1)
    except DovetailError as error:
        return _failed(str(error), 2)
    except BrokenPipeError:
        _silence_output()
        return 0
    except OSError as error:
        _silence_output()
        return _failed(f"output cannot be written: {error.strerror or error}", 2)
    except KeyboardInterrupt:
        return _failed("interrupted", INTERRUPTED)
    except Exception as error:
        if os.environ.get("DOVETAIL_DEBUG"):
            raise
        if own := _own_traceback(error, options):
            sys.stderr.write(own)
            whose = "code of your own" if _names_own_class(options) else "code of a plugin"
            return _failed(brief(f"{type(error).__name__} in {whose}: {error}"), 1)
        what = f"internal error, please report it: {type(error).__name__}: {error}"
        return _failed(f"{brief(what)} (DOVETAIL_DEBUG=1 shows where)", 1)
    return status


def _open_closed_streams() -> None:
    """Discard output to a stream that the caller has closed (``>&-``)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - until the end


def program() -> NoReturn:
    """Run the command line as a process."""
    _part_from_libraries()
    status = main()
    if status == INTERRUPTED:
        # A solver's thread may still be in compiled code, which must not outlive the interpreter.
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _part_from_libraries() -> None:
    """Keep standard output for this program: compiled solvers print debugging lines to it."""
    theirs = sys.__stdout__
    if theirs is None:
        return
    ours = open(  # noqa: SIM115 - until the end
        os.dup(1), "w", encoding=theirs.encoding, errors=theirs.errors
    )
    ours.reconfigure(write_through=theirs.write_through)
    for name in ("stdout", "__stdout__"):
        setattr(sys, name, ours)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(command: Command, options: Namespace) -> int:
    if _names_own_class(options) and os.getcwd() not in sys.path:
        # Such a class may be there; the processes of a comparison inherit the path.
        sys.path.append(os.getcwd())
    given = tuple(given_additions(command, options))
    options.added = {field: getattr(options, field) for _, field in given}
    for before in dict.fromkeys(addition.before for addition, _ in given if addition.before):
        _function(before)(options)
    status: int = _function(command.run)(options)
    return status


def _function(path: str) -> Callable[[Namespace], Any]:
    """Import the function that ``MODULE:FUNCTION`` names."""
    module, _, name = path.partition(":")
    found: Callable[[Namespace], Any] = getattr(import_module(module), name)
    return found


def _own_traceback(error: Exception, options: Namespace) -> str:
    """Return the traceback of an error in the user's or a plugin's code; empty if it is ours."""
    import traceback

    from dovetail.solver.outside import own_traceback

    frames = traceback.format_list(own_traceback(error, vars(options).values()))
    return "".join(["Traceback (most recent call last):\n", *frames]) if frames else ""


def _names_own_class(options: Namespace) -> bool:
    return any("python:" in str(value) for value in vars(options).values())


def _silence_output() -> None:
    """Discard further standard output, so that Python's exit does not fail on it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(message: str, status: int) -> int:
    print(f"dovetail: {message}", file=sys.stderr)
    return status
