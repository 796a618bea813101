"""``ratioscope run``: starts a program and records every GRPO trainer in it, without a change to its code."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

from ratioscope.cli.arguments import sentence
from ratioscope.metrics.metric import Detail

ENTRY_POINTS = "ratioscope.run"
"""Entry-point group: a module -> a function to call with the module and the options, after the module's import."""

_EXAMPLES = """examples:
  ratioscope run train.py --steps 100
  ratioscope run -m trl.scripts.grpo --use_vllm True ...
  ratioscope run trl grpo --use_vllm True ...
  ratioscope run torchrun --nproc_per_node 2 train.py
  accelerate launch -m ratioscope run train.py"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command."""
    text = "start a training program and watch its GRPO trainers, without a change to its code"
    parser = commands.add_parser(
        "run",
        help=text,
        description=f"{sentence(text)} Options of ratioscope go before the program.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--report-to", action="append", metavar="TRACKER", help="default: the trainer's own report_to")
    parser.add_argument("--detail", choices=get_args(Detail), help="which scalars trackers receive")
    parser.add_argument("--relay", action="store_true", help="also keep and deliver the trainer's own log")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, as in python -m")
    parser.add_argument("program", help="a Python file, a module after -m, or a command such as trl or torchrun")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    parser.set_defaults(run_command=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Replaces this process by the program, which keeps process id, exit code and signals."""
    command = _command(arguments)
    environment = os.environ | _additions(_options(arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], command, environment)


def _command(arguments: argparse.Namespace) -> list[str]:
    """Returns the program and its arguments for ``exec``."""
    program, rest = arguments.program, arguments.arguments
    if arguments.is_module:
        return [sys.executable, "-m", program, *rest]
    if Path(program).is_file() and (program.endswith(".py") or not os.access(program, os.X_OK)):
        return [sys.executable, program, *rest]
    if shutil.which(program) is None:
        arguments.parser.error(f"got {program!r}; expected a Python file, a command on the PATH, or -m and a module")
    return [program, *rest]


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of the callback; checks the trackers now rather than during training."""
    options: dict[str, Any] = {}
    if arguments.report_to is not None:
        from ratioscope.trackers.registry import resolve

        resolve(arguments.report_to)
        options["report_to"] = arguments.report_to
    if arguments.detail is not None:
        options["detail"] = arguments.detail
    if arguments.relay:
        options["relay"] = True
    return options


def _additions(options: dict[str, Any]) -> dict[str, str]:
    """Returns the environment variables that bring the callback into the program and its subprocesses."""
    from ratioscope.cli.bootstrap import sitecustomize

    after = {entry.name: entry.value for entry in entry_points(group=ENTRY_POINTS)}
    folders = [str(Path(sitecustomize.__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder),
        sitecustomize.VARIABLE: json.dumps({"after": after, "options": options}),
    }
