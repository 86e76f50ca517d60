"""The command line: arguments in, exit status out.

0 done; 1 checked and found wrong, or no valid plan; 2 bad input or usage, one line on standard
error. What each command does is in ``commands`` and modules beside it, imported when one runs.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import PurePath
from typing import Final, NoReturn, TypeAlias

from dovetail.cli.live import LIVE, add_live
from dovetail.instances._version import VERSION
from dovetail.instances.errors import DovetailError, VerificationError, brief, hint
from dovetail.instances.objectives import OBJECTIVES
from dovetail.toolkit.commands import INTERRUPTED

INSTANCE_HELP = "instance file (JSON or YAML, .gz too), - for standard input, or library:NAME"
DATA_HELP = "folder with profiles or pairs (.csv, .csv.gz, .parquet), or repository (.db, .sqlite)"
DATASET_SOURCES = (
    ("gavel", "Gavel's throughputs, all devices.", "THROUGHPUTS.json", "may end in .gz"),
    (
        "lucid",
        "Lucid's measurements on an RTX 3090.",
        "DIR",
        "with single_data.csv and colocate_info.csv",
    ),
    (
        "miso",
        "MISO's profiles on slices of an A100.",
        "DIR",
        "with solo_features.csv and mig_iter_time.csv",
    ),
    ("parvagpu", "ParvaGPU's equal processes on slices of an A100.", "DIR", "with MODEL.csv each"),
)
MOST_SEEDS = 2**32
"""scikit-learn takes no more."""
_WORDS = {"help": "--help", "version": "--version"}
"""Commands that stand for an option."""

_LIKE_OPTION = 0.75
"""All options begin alike, so more has to be alike than of other names."""


class _Parser(argparse.ArgumentParser):
    """Tells a usage error in one line."""

    def options(self) -> list[str]:
        """Return the long names of the options."""
        names = chain.from_iterable(action.option_strings for action in self._actions)
        return [name for name in names if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"(.*invalid choice: '(.+?)') \(choose from (.+)\)", message)
        if wrong and (meant := hint(wrong[2], re.findall(r"[\w.:-]+", wrong[3]))):
            message = wrong[1] + meant
        self.exit(2, f"{self.prog}: {brief(message)} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parsed(arguments)
    try:
        status = _run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except VerificationError as error:
        return _told(f"verification failed: {error}", 1)
    except DovetailError as error:
        return _told(str(error), 2)
    except BrokenPipeError:
        _silence_output()
        return 0
    except OSError as error:
        _silence_output()
        return _told(f"output cannot be written: {error.strerror or error}", 2)
    except KeyboardInterrupt:
        return _told("interrupted", INTERRUPTED)
    except Exception as error:
        if os.environ.get("DOVETAIL_DEBUG"):
            raise
        if own := _own_traceback(error, options):
            sys.stderr.write(own)
            return _told(brief(f"{type(error).__name__} in code of your own: {error}"), 1)
        what = f"internal error, please report it: {type(error).__name__}: {error}"
        return _told(f"{brief(what)} (DOVETAIL_DEBUG=1 shows where)", 1)
    return status


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments; those that a command does not know are its own error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    top = parser(given[0] if given else None)
    if not given:
        top.print_help()
        top.exit(0)
    if given[0] in _WORDS:
        given = [*given[1:], _WORDS[given[0]]]
    options, unknown = top.parse_known_args(given)
    if unknown:
        meant = hint(unknown[0], options.parser.options(), _LIKE_OPTION)
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    if options.parser is top:
        top.error("the following arguments are required: COMMAND")
    return options


def program() -> NoReturn:
    """Run the command line as a process."""
    status = main()
    if status == INTERRUPTED:
        # A solver's thread may still be in compiled code, which must not outlive the interpreter.
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _run(options: argparse.Namespace) -> int:
    if _names_own_class(options) and os.getcwd() not in sys.path:
        # Where such a class may be; the processes of a comparison inherit the path.
        sys.path.append(os.getcwd())
    commands = import_module(f"dovetail.{options.module}")
    command: Callable[[argparse.Namespace], int] = getattr(commands, options.command)
    return command(options)


def _own_traceback(error: Exception, options: argparse.Namespace) -> str:
    """Return the traceback of an error within a class of the user's, empty if it is ours."""
    if not _names_own_class(options):
        return ""
    import traceback

    from dovetail.solver.outside import own_traceback

    frames = traceback.format_list(own_traceback(error, vars(options).values()))
    return "".join(["Traceback (most recent call last):\n", *frames]) if frames else ""


def _names_own_class(options: argparse.Namespace) -> bool:
    return any("python:" in str(value) for value in vars(options).values())


def _silence_output() -> None:
    """Point standard output nowhere, so that Python's exit does not fail on it once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(message: str, status: int) -> int:
    print(f"dovetail: {message}", file=sys.stderr)
    return status


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands, or of one: to make all takes longer than most work."""
    top = _Parser(prog="dovetail", description="Decides which GPU jobs share which GPUs.")
    top.add_argument("--version", action="version", version=f"dovetail {VERSION}")
    # Not required of argparse, which would not say what is wrong with an option before it.
    top.set_defaults(parser=top)
    commands = top.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    known = (*_FROM_FILES, *LIVE)
    for name in [command] if command in known else known:
        if name in LIVE:
            add_live(name, commands, _command)
        else:
            _FROM_FILES[name](commands)
    return top


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def _command(
    commands: _Commands, name: str, text: str, calls: str = "", module: str = "planning.commands"
) -> _Parser:
    added = commands.add_parser(name, help=text, description=text)
    added.set_defaults(command=calls or name, module=module, parser=added)
    added.add_argument("--json", action="store_true", help="print the machine's form")
    return added


def _plan(commands: _Commands) -> None:
    plan = _command(commands, "plan", "Write the best plan for an instance, with its proof.")
    plan.add_argument("instance", metavar="INSTANCE", nargs="?", help=INSTANCE_HELP)
    plan.add_argument(
        "--from-live",
        action="store_true",
        help="instead of INSTANCE: what the live service would do now",
    )
    plan.add_argument(
        "-o", "--output", metavar="PLAN", type=_record, help="write the plan here; - prints it"
    )
    plan.add_argument(
        "--objective",
        metavar="O",
        type=_objective,
        default="throughput",
        help=f"what to optimise: {', '.join(OBJECTIVES)}, or python:MODULE.CLASS for a subclass "
        "of dovetail.JobValues (default: throughput)",
    )
    plan.add_argument(
        "--solver",
        metavar="S",
        default="auto",
        help="auto, matching, cpsat, highs, milp, milp:NAME (any solver of PuLP), networkx, "
        "greedy, exclusive or random; python:MODULE.CLASS for one of your own (default: auto)",
    )
    plan.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=float,
        help="stop then, with the best plan so far and its proven gap",
    )
    plan.add_argument("--gap", metavar="G", type=float, default=0.0, help="stop at this gap")
    plan.add_argument("--seed", metavar="N", type=_seed, default=0, help="same seed, same plan")
    plan.add_argument("--preempt", action="store_true", help="running jobs may move or wait")
    _slowdowns(plan)
    _predictor(plan, "fill unknown slowdowns: analytic")
    plan.add_argument(
        "--verify",
        action="store_true",
        help="check the plan once more, and its bound where the solver left a certificate",
    )
    plan.add_argument(
        "--commands",
        action="store_true",
        help="instead of the plan, print what starts its jobs by hand under MPS: the environment "
        "of each process",
    )
    plan.add_argument("--write-model", metavar="FILE.mps", help="write the integer program")
    plan.add_argument("--report", metavar="FILE.html", help="write a page for people")
    plan.add_argument(
        "--compare", action="store_true", help="print the same jobs under simple rules as well"
    )


def _check(commands: _Commands) -> None:
    check = _command(commands, "check", "Verify any plan, and recompute its value.")
    check.add_argument("instance", metavar="INSTANCE", help=INSTANCE_HELP)
    check.add_argument("plan", metavar="PLAN", help="plan file, or - for standard input")
    check.add_argument("--objective", choices=OBJECTIVES, help="default: the plan's own")
    _slowdowns(check)


def _explain(commands: _Commands) -> None:
    explain = _command(commands, "explain", "Say why jobs wait and what would let one start.")
    explain.add_argument("instance", metavar="INSTANCE", help=INSTANCE_HELP)
    explain.add_argument("plan", metavar="PLAN", help="plan file, or - for standard input")
    explain.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        help="id of the job (default: all that wait, and the pairs that nobody has measured)",
    )
    _slowdowns(explain)


def _predict(commands: _Commands) -> None:
    predict = _command(
        commands,
        "predict",
        "Fill in the slowdowns that an instance lacks.",
        module="predicting.filling",
    )
    predict.add_argument("instance", metavar="INSTANCE", help=INSTANCE_HELP)
    _slowdowns(predict)
    _predictor(predict, "which (default: analytic)")
    predict.add_argument(
        "--mixed", action="store_true", help="also one uncapped workload beside a capped one"
    )
    predict.add_argument(
        "--sets", action="store_true", help="also sets of three and more, made from their pairs"
    )
    _output(predict)


def _predictors(commands: _Commands) -> None:
    text = "Fit predictors of slowdowns on measurements, and test them."
    group = commands.add_parser("predictors", help=text, description=text)
    actions = group.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser)

    def action(name: str, text: str) -> _Parser:
        return _command(actions, name, text, name, "predicting.commands")

    fit = action("fit", "Fit a predictor on a data set and write it as a model file.")
    fit.add_argument("--model", metavar="NAME", default="auto", help="which (default: auto)")
    fit.add_argument(
        "--search", metavar="SECONDS", type=float, help="search for a better structure so long"
    )
    fit.add_argument("--licence", metavar="TEXT", help="of the data; written into the model file")
    evaluate = action("evaluate", "Test models on pairs that they have not seen.")
    report = action("report", "Write a page that tells how good the predictions are.")
    report.add_argument("--model", metavar="MODEL", help="tell of this model file, too")
    show = action("show", "Tell what a model file holds.")
    update = action("update", "Let a model learn new measurements; tell where it was wrong.")
    for command in (show, update):
        command.add_argument("model", metavar="MODEL", help="model file")
    for command in (fit, evaluate, report, update):
        command.add_argument("data", metavar="DATA", help=DATA_HELP)
    for command in (evaluate, report):
        command.add_argument("--models", metavar="A,B,...", help="test these only; default: all")
        command.add_argument(
            "--new",
            metavar="A,B,...",
            help="what is new to the models: random, workload, family, two_families, gpu_model "
            "(default: random, family, and gpu_model where there are several)",
        )
    for command in (fit, evaluate, report):
        command.add_argument(
            "--gpu-model", metavar="M", action="append", help="this one only; may be repeated"
        )
        command.add_argument(
            "--confidence",
            metavar="C",
            type=_confidence,
            default=0.9,
            help="of the upper bounds (default: 0.9)",
        )
    for command in (fit, evaluate, report, update):
        command.add_argument(
            "--seed", metavar="N", type=_seed, default=0, help="same seed, same result"
        )
    for command, what in ((fit, "MODEL"), (report, "page.html"), (update, "MODEL")):
        command.add_argument("-o", "--output", metavar=what, required=True, help="where to")


def _import(commands: _Commands) -> None:
    text = "Make an instance of measured slowdowns."
    group = commands.add_parser("import", help=text, description=text)
    sources = group.add_subparsers(metavar="SOURCE", required=True, parser_class=_Parser)
    gavel = _command(
        sources, "gavel", "Gavel's throughputs, and its traces.", "import_gavel", "data.commands"
    )
    gavel.add_argument("file", metavar="THROUGHPUTS.json", help="may end in .gz")
    gavel.add_argument("--device", required=True, help="k80, p100, v100, ...")
    gavel.add_argument("--trace", metavar="FILE", help="take the jobs of this trace ...")
    gavel.add_argument("--at", metavar="SECONDS", type=float, help="... that are there by then")
    gavel.add_argument(
        "--gangs-as-single",
        action="store_true",
        help="assume that a gang's workers behave like the one-GPU job",
    )
    lucid = _command(
        sources, "lucid", "Lucid's measurements on an RTX 3090.", "import_lucid", "data.commands"
    )
    lucid.add_argument("file", metavar="DIR", help="with single_data.csv and colocate_info.csv")
    pairs = _command(
        sources, "pairs", "A table of pairs and slowdowns.", "import_pairs", "data.commands"
    )
    pairs.add_argument("file", metavar="FILE.csv", help="columns as in docs/howto/import-data.md")
    pairs.add_argument("--device", help="take this device's rows only")
    _import_slurm(
        _command(
            sources, "slurm", "A cluster under Slurm, as it is.", "import_slurm", "data.commands"
        )
    )
    for source in (gavel, lucid, pairs):
        source.add_argument("--gpus", metavar="N", type=_count, required=True, help="in all")
        source.add_argument(
            "--gpus-per-node", metavar="N", type=_count, default=8, help="default: 8"
        )
        _output(source)


def _import_slurm(slurm: _Parser) -> None:
    slurm.add_argument(
        "--gpu-memory",
        metavar="TYPE=MIB",
        type=_memory_of_type,
        action="append",
        default=[],
        help="memory of a GPU type (gpu: of those without type); for each type",
    )
    slurm.add_argument("--jobs", metavar="FILE", help="squeue --json (default: run it)")
    slurm.add_argument("--nodes", metavar="FILE", help="scontrol show node (default: run it)")
    slurm.add_argument("--topology", metavar="FILE", help="topology.conf: leaf switches are racks")
    slurm.add_argument("--partition", metavar="P", help="nodes and jobs of this one only")
    slurm.add_argument("--constraint", metavar="F", help="nodes with this feature only")
    _output(slurm)


def _memory_of_type(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not (name and equals and re.fullmatch(r"\d+(\.\d+)?", value)):
        raise argparse.ArgumentTypeError(f"must be TYPE=MIB, got {text!r}")
    return name, float(value)


def _dataset(commands: _Commands) -> None:
    text = "Keep what was measured: profiles and pairs, in a folder or a repository."
    group = commands.add_parser("dataset", help=text, description=text)
    inner = group.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _dataset_import(inner)
    add = _command(inner, "add", "Append to a repository, all or nothing.", "add", "data.dataset")
    add.add_argument("repository", metavar="REPO.db", help="made where there is none")
    add.add_argument("data", metavar="DATA", nargs="+", help=DATA_HELP)
    show = _command(inner, "show", "Say what a data set holds.", "show", "data.dataset")
    show.add_argument("data", metavar="DATA", help=DATA_HELP)
    pairs = _command(
        inner, "pairs", "List what was measured of workloads together.", "pairs", "data.pairs"
    )
    pairs.add_argument("data", metavar="DATA", help=DATA_HELP)
    pairs.add_argument("--workload", metavar="NAME", help="what this one was part of only")
    instance = _command(
        inner,
        "instance",
        "Make an instance of what was measured.",
        "dataset_instance",
        "data.commands",
    )
    instance.add_argument("data", metavar="DATA", help=DATA_HELP)
    instance.add_argument("--gpu-model", metavar="M", required=True, help="which of the data's")
    instance.add_argument("--gpus", metavar="N", type=_count, required=True, help="in all")
    instance.add_argument("--gpus-per-node", metavar="N", type=_count, default=8, help="default: 8")
    instance.add_argument(
        "--memory-mib",
        metavar="MIB",
        type=float,
        help="memory of a GPU; needed where the memory of workloads is known",
    )
    instance.add_argument(
        "--memory-confidence",
        metavar="C",
        type=_confidence,
        help="give workloads the memory that a run stays within with this probability "
        "(default: the most that was seen)",
    )
    instance.add_argument(
        "--sub-batches",
        action="store_true",
        help="let workloads that were timed at several batch sizes start at smaller ones",
    )
    _output(instance)


def _dataset_import(commands: _Commands) -> None:
    text = "Make a data set of published measurements."
    group = commands.add_parser("import", help=text, description=text)
    sources = group.add_subparsers(metavar="SOURCE", required=True, parser_class=_Parser)
    for name, told, path, holds in DATASET_SOURCES:
        source = _command(sources, name, told, "import_data", "data.dataset")
        source.set_defaults(source=name)
        source.add_argument("path", metavar=path, help=holds)
        source.add_argument(
            "-o",
            "--output",
            metavar="DIR_OR_DB",
            required=True,
            help="folder to write, or repository (.db, .sqlite) to append to",
        )
        source.add_argument("--parquet", action="store_true", help="Parquet instead of CSV")


def _generate(commands: _Commands) -> None:
    generate = _command(
        commands, "generate", "Make a synthetic instance from a seed.", module="data.commands"
    )
    generate.add_argument("--jobs", metavar="N", type=_count, required=True, help="how many")
    generate.add_argument(
        "--seed", metavar="N", type=int, default=0, help="same seed, same instance"
    )
    generate.add_argument("--gpus", metavar="N", type=_count, help="default: 40 %% of the demand")
    generate.add_argument("--workloads", metavar="N", type=_count, help="default: at most 64")
    generate.add_argument("--no-gangs", action="store_true", help="one GPU a job")
    generate.add_argument(
        "--gang-sharing",
        choices=("partial", "whole"),
        default="partial",
        help="the cluster's rule (default: partial)",
    )
    generate.add_argument(
        "--running", metavar="F", type=float, default=0.0, help="part of the jobs that run already"
    )
    _output(generate)


def _library(commands: _Commands) -> None:
    library = _command(
        commands, "library", "List the shipped instances, or write one.", module="data.commands"
    )
    library.add_argument("name", metavar="NAME", nargs="?", help="write this one; else list all")
    _output(library)


def _simulate(commands: _Commands) -> None:
    text = "Simulate a trace of jobs under a policy."
    simulate = _command(commands, "simulate", text, "simulate", "simulating.commands")
    _simulated(simulate)
    simulate.add_argument(
        "--policy",
        metavar="P",
        default="dovetail",
        help="NAME or NAME:OPTION=VALUE,...; all of them in docs/reference/policies.md; "
        "python:MODULE.CLASS or LABEL=python:MODULE.CLASS for one of your own (default: dovetail)",
    )
    simulate.add_argument("--seed", metavar="N", type=_seed, default=0, help="of all that is drawn")
    simulate.add_argument(
        "-o", "--output", metavar="FOLDER", help="keep metrics, jobs, series and stays here"
    )


def _compare(commands: _Commands) -> None:
    text = "Compare policies on a trace of jobs, simulated."
    compare = _command(commands, "compare", text, "compare", "simulating.commands")
    _simulated(compare)
    compare.add_argument(
        "--policies",
        metavar="P,P,...",
        type=_policies,
        default="fifo,ssf,castor,dovetail",
        help="each as in simulate (default: fifo,ssf,castor,dovetail)",
    )
    compare.add_argument(
        "--baseline",
        metavar="P",
        help="hold others against this one (default: fifo, or else the first)",
    )
    compare.add_argument(
        "--seeds",
        metavar="N",
        type=_count,
        help="run each so often (default: 3; 1 where nothing is drawn)",
    )
    compare.add_argument("--seed", metavar="N", type=_seed, default=0, help="the first of them")
    compare.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        help="keep every run here; what is there already is not run again",
    )
    compare.add_argument("--report", metavar="FILE.html", help="write a page for people")
    compare.add_argument(
        "--jobs",
        metavar="N",
        type=_count,
        default=os.cpu_count() or 1,
        help="runs at a time, a process each (default: one for each core)",
    )


def _simulated(command: _Parser) -> None:
    """Add what is common to ``simulate`` and ``compare``."""
    command.add_argument("trace", metavar="TRACE", help="trace file, or library:NAME")
    command.add_argument(
        "--format",
        metavar="F",
        help="of the trace, by default recognised: csv, parquet, philly-log, philly, helios, "
        "alibaba-2020, alibaba-2023, alibaba-2025, alibaba-2026, gavel, muri or swf",
    )
    command.add_argument(
        "--columns",
        metavar="FIELD=COLUMN,...",
        type=_columns,
        help="which column of a csv or parquet file has a field: arrival_s=submit_time,...",
    )
    command.add_argument(
        "--cores-per-gpu",
        metavar="N",
        type=_count,
        help="of a trace in the format swf, whose jobs ask for cores (default: 1)",
    )
    jobs = command.add_argument_group("which jobs")
    jobs.add_argument(
        "--window", metavar="FROM:TO", type=_window, help="those that arrive between, in hours"
    )
    jobs.add_argument(
        "--max-workers", metavar="N", type=_count, help="those of at most so many GPUs"
    )
    jobs.add_argument(
        "--busiest", metavar="N", type=_count, help="so many in a row that ask for most"
    )
    jobs.add_argument("--sample", metavar="N", type=_count, help="so many, drawn by each seed")
    jobs.add_argument(
        "--load", metavar="F", type=float, help="divide the time between arrivals by this"
    )
    jobs.add_argument(
        "--gsla",
        metavar="D",
        help="of jobs without: none, fixed:1.5, uniform:1:2, ... "
        "(default: uniform:1:2 if no job has one, else none)",
    )
    world = command.add_argument_group("the world")
    world.add_argument(
        "--world",
        metavar="W",
        help="true slowdowns: instance file, data set or library:NAME (default: the shipped "
        "trace's own, else a synthetic one)",
    )
    world.add_argument(
        "--nodes",
        metavar="N",
        type=_count,
        help="needed unless the world is an instance with its own",
    )
    world.add_argument(
        "--gpus-per-node", metavar="N", type=_count, help="default: 8, or the instance's own"
    )
    world.add_argument(
        "--gpu-model",
        metavar="M,...",
        type=_models,
        help="taken in turn by nodes; run times of the trace hold on the first (default: V100, a "
        "data set's only one, or the instance's own)",
    )
    world.add_argument(
        "--restart",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="to restore a job that ran before (default: 60)",
    )
    world.add_argument(
        "--mtbf", metavar="HOURS", type=float, help="mean time between failures of a node"
    )
    world.add_argument(
        "--repair", metavar="HOURS", type=float, help="of a failed node, with --mtbf (default: 1)"
    )
    policies = command.add_argument_group("what policies know")
    policies.add_argument(
        "--beliefs",
        metavar="B",
        default="exact",
        help="slowdowns as predicted: exact, noise:SIGMA, held-out:MODEL:PART or model:FILE "
        "(default: exact)",
    )
    policies.add_argument(
        "--estimate-error",
        metavar="SIGMA",
        type=float,
        default=0.0,
        help="of run times: standard deviation of their logarithm (default: 0)",
    )
    policies.add_argument(
        "--round",
        metavar="SECONDS",
        type=float,
        default=0.0,
        help="between decisions (default: 0, whenever something happens)",
    )


def _policies(text: str) -> tuple[str, ...]:
    """Split policies at commas, but not between the options of one."""
    found: list[str] = []
    for part in text.split(","):
        name, equals, rest = part.partition("=")
        if found and equals and ":" not in name and not rest.startswith("python:"):
            found[-1] += f",{part}"
        elif part.strip():
            found.append(part.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"must name at least one policy, got {text!r}")
    return tuple(dict.fromkeys(found))


def _columns(text: str) -> tuple[tuple[str, str], ...]:
    parts = [part.partition("=") for part in text.split(",")]
    if not all(field and equals and column for field, equals, column in parts):
        raise argparse.ArgumentTypeError(f"must be FIELD=COLUMN,..., got {text!r}")
    fields = [field for field, _, _ in parts]
    if len(set(fields)) < len(fields):
        raise argparse.ArgumentTypeError(f"must name each field once, got {text!r}")
    return tuple((field, column) for field, _, column in parts)


def _models(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"must name GPU models, comma separated, got {text!r}")
    return names


def _window(text: str) -> tuple[float, float]:
    try:
        start, end = map(float, text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be FROM:TO in hours, got {text!r}") from None
    return start, end


def _slowdowns(command: _Parser) -> None:
    command.add_argument(
        "--slowdowns",
        metavar="FILE.csv",
        help="add these measured pairs to the instance; columns as in docs/howto/import-data.md",
    )


def _predictor(command: _Parser, text: str) -> None:
    either = command.add_mutually_exclusive_group()
    either.add_argument("--predictor", metavar="P", help=text)
    either.add_argument("--model", metavar="FILE", help="predict with this fitted model")
    command.add_argument(
        "--confidence",
        metavar="C",
        type=float,
        help="of the upper bounds, between 0 and 1 (default: the model's own)",
    )
    command.add_argument(
        "--as",
        metavar="GPU=FITTED",
        dest="stand_ins",
        action="append",
        type=_stand_in,
        default=[],
        help="take GPUs of one model for those of another, which the model was fitted for",
    )


def _stand_in(text: str) -> tuple[str, str]:
    gpu_model, equals, fitted = text.partition("=")
    if not (gpu_model and equals and fitted):
        raise argparse.ArgumentTypeError(f"must be GPU=FITTED, got {text!r}")
    return gpu_model, fitted


def _output(command: _Parser) -> None:
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=_record,
        default="-",
        help="where to (default: standard output)",
    )


def _record(name: str) -> str:
    """Refuse a file name that promises another form than JSON or YAML."""
    ending = PurePath(name.removesuffix(".gz")).suffix
    if ending in (".csv", ".html", ".parquet", ".tsv", ".xlsx"):
        raise argparse.ArgumentTypeError(f"is written as JSON or YAML, got {name!r}")
    return name


def _confidence(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be > 0 and < 1, got {text!r}")
    return value


def _objective(text: str) -> str:
    if text not in OBJECTIVES and not text.startswith("python:"):
        raise argparse.ArgumentTypeError(
            f"invalid choice: {text!r} (choose from {', '.join(OBJECTIVES)}, python:MODULE.CLASS)"
        )
    return text


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) >= MOST_SEEDS:
        rule = f"must be a whole number >= 0 and < {MOST_SEEDS}, got {text!r}"
        raise argparse.ArgumentTypeError(rule)
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return int(text)


def _completion(commands: _Commands) -> None:
    text = "Print what completes commands in a shell."
    completion = _command(commands, "completion", text, module="cli.completion")
    completion.add_argument(
        "shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish"
    )


_FROM_FILES: Final[Mapping[str, Callable[[_Commands], None]]] = {
    "plan": _plan,
    "check": _check,
    "explain": _explain,
    "predict": _predict,
    "predictors": _predictors,
    "import": _import,
    "dataset": _dataset,
    "generate": _generate,
    "library": _library,
    "simulate": _simulate,
    "compare": _compare,
    "completion": _completion,
}
"""What adds the parsers of commands that need no service."""

if __name__ == "__main__":
    program()
