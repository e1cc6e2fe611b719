"""The `flashsmith` command: finds a verb, imports only its file, turns errors into exit codes."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
import threading
from typing import NoReturn

import typer
from typer.core import TyperGroup

from flashsmith import __version__
from flashsmith.base.errors import ArgumentError, FlashsmithError, Interrupted
from flashsmith.base.loose_types import Foreign
from flashsmith.base.plain_text import plain
from flashsmith.base.whole_file import disk_error, is_disk_full
from flashsmith.cli.pipes import drop_output, let_readers_leave

USAGE_ERROR = 2
_PATIENCE_S = 0.5  # after Ctrl-C, for what ends by itself
INTERRUPTED = 130  # as shells have it: 128 and the number of the signal


# Each with its line in the help; what it runs is the function `command` of the module of its name
# in cli/verbs, unless DOORS says otherwise.
VERBS: dict[str, str] = {
    "configs": "Show a set of configurations, or why one is out.",
    "env": "Say what is installed, and what missing parts are for.",
    "compile": "Compile a set: registers, spills, blocks per SM.",
    "tune": "Find the best configuration for each problem.",
    "tune predict": "Order configurations without a GPU.",
    "bench": "Time our choices against peers, side by side.",
    "bench ladder": "Show what each optimisation brings.",
    "bench profile": "Read a set's counters with Nsight Compute.",
    "report": "Write a page of charts from records.",
    "results": "Look at, compare and exchange measurements.",
    "run": "Run configurations on a problem: check, time, count.",
    "verify": "Check every configuration of a set.",
    "cache": "Look at the kernel cache, or clean it.",
    "inspect": "Count a kernel's instructions; compare two.",
    "build": "Build a set ahead of time: C library or bundle.",
    "build library": "Build a set as a C library.",
    "build bundle": "Build a set as a bundle that needs no compiler.",
    "build registry": "Write a set's static registry as C++ files.",
    "build warmup": "Compile ahead what a model's calls will need.",
}
DOORS: dict[str, tuple[str, str]] = {
    "tune predict": ("predict", "command"),
    "bench ladder": ("progression", "command"),
    "bench profile": ("profile", "command"),
    "build library": ("build", "library"),
    "build bundle": ("build", "bundle"),
    "build registry": ("generate", "command"),
    "build warmup": ("build", "warmup"),
}
# Names that verbs had once; they still answer.
OLD_NAMES: dict[str, str] = {
    "predict": "tune predict",
    "progression": "bench ladder",
    "profile": "bench profile",
    "generate": "build registry",
}


TyperObject = Foreign  # typer exports neither its contexts nor its commands


class _Verbs(TyperGroup):
    """Looks verbs up in VERBS; a verb's module is imported when the verb is used."""

    def list_commands(self, ctx: TyperObject) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: TyperObject, cmd_name: str) -> TyperObject:
        verb = OLD_NAMES.get(cmd_name, cmd_name)
        if verb not in VERBS:
            return None
        single = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        file, name = DOORS.get(verb, (verb, "command"))
        module = importlib.import_module(f"flashsmith.cli.verbs.{file}")
        function = getattr(module, name)
        text = inspect.cleandoc(function.__doc__ or "")
        single.command(cmd_name, help=_one_a_line(text), no_args_is_help=False)(function)
        command = typer.main.get_command(single)
        _state_default_key(command, getattr(module, "DEFAULT_KEY", ""))
        return command

    def resolve_command(self, ctx: TyperObject, args: list[str]) -> TyperObject:
        if " ".join(args[:2]) in VERBS and args[0] in VERBS and len(args) > 1:
            verb = " ".join(args[:2])
            return verb, self.get_command(ctx, verb), args[2:]
        if args[0] not in VERBS and args[0] not in OLD_NAMES and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            if near:
                raise ArgumentError(f"unknown verb {args[0]!r}; did you mean {near[0]!r}?")
            raise ArgumentError(
                f"unknown verb {args[0]!r}; the verbs are {', '.join(VERBS)}; `flashsmith --help` "
                f"explains them."
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: TyperObject) -> TyperObject:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; what was finished is kept") from error

    def format_commands(self, ctx: TyperObject, formatter: TyperObject) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


def examples_of(text: str) -> list[str]:
    """The commands that a verb's docstring ends with: `Examples: one; another  # what for`."""
    _, *found = re.split(r"^Examples?: ", text, flags=re.M)
    return [" ".join(one.split()) for some in found for one in re.split(r";\s", some)]


def _one_a_line(text: str) -> str:
    """The docstring with its prose to be wrapped and its examples on lines of their own."""
    prose = re.split(r"^Examples?: ", text, flags=re.M)[0].rstrip()
    examples = examples_of(text)
    if not examples:
        return prose
    head = "Example:" if len(examples) == 1 else "Examples:"
    return "\n".join([prose, "", "\b", head, *(f"  {example}" for example in examples)])


def _state_default_key(command: TyperObject, default: str) -> None:
    """Puts the set that a verb takes without KEY into the help of its KEY."""
    for parameter in command.params:
        if parameter.name == "key":
            parameter.help = parameter.help.replace("{default}", default)


app = typer.Typer(
    cls=_Verbs,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={
        "help_option_names": ["-h", "--help"],
        # --seq_lens is --seq-lens: the original system's scripts spell options so.
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flashsmith {__version__}")
        raise typer.Exit


@app.callback()
def flashsmith(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Flash-attention kernels: configure, build, verify, tune, explain."""


def _lines(error: FlashsmithError) -> str:
    """What an error says; texts of files in it do not steer the terminal."""
    return "\n".join(map(plain, str(error).splitlines()))


def _leave_at_once(code: int) -> NoReturn:
    """Ends the process; threads that are inside the compiler are not waited for to their end."""
    sys.stdout.flush()
    end = threading.Timer(_PATIENCE_S, os._exit, (code,))
    end.daemon = True
    end.start()
    sys.exit(code)


def main() -> NoReturn:
    """Runs the command line; an error of the user is one line on stderr and exit code 2."""
    let_readers_leave()
    try:
        try:
            app(prog_name="flashsmith")
        finally:
            sys.stdout.flush()  # here, where a full disk can still be said
    except Interrupted as error:
        typer.echo(f"\nflashsmith: {error}.", err=True)
        _leave_at_once(INTERRUPTED)
    except FlashsmithError as error:
        typer.echo(f"flashsmith: {_lines(error)}", err=True)
        sys.exit(USAGE_ERROR)
    except OSError as error:
        if error.filename is None and not is_disk_full(error):
            raise  # not about a file that the user named: a bug is shown whole
        where = f"{error.filename}: " if error.filename is not None else ""
        typer.echo(f"flashsmith: {where}{disk_error(error)}.", err=True)
        drop_output()
        sys.exit(USAGE_ERROR)
    sys.exit(0)
