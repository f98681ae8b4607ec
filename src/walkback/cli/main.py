"""The `walkback` command: turns every ending into one of the documented exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from walkback.cli import (
    audit,
    bundle,
    demo,
    diagnose,
    doctor,
    knockout,
    ls,
    measure,
    metric,
    rejudge,
    report,
    train,
    verify,
)
from walkback.cli.output import INTERNAL, INTERRUPTED, PIPE, emit_error, emit_json
from walkback.core.errors import BadInput, FileTrouble, WalkbackError
from walkback.core.outside import fault_of_others

EXAMPLE = "Example: walkback demo --out demo"
app = typer.Typer(
    name="walkback",
    help="Audit claims about how networks learn, and walk back the ones the evidence does not carry.",
    epilog=EXAMPLE,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=demo.EXAMPLE)(demo.demo)
app.command(epilog=train.EXAMPLE)(train.train)
app.command(epilog=diagnose.EXAMPLE)(diagnose.diagnose)
app.command(epilog=audit.EXAMPLE)(audit.audit)
app.command(epilog=measure.EXAMPLE)(measure.measure)
app.command(epilog=knockout.EXAMPLE)(knockout.knockout)
app.command(epilog=report.EXAMPLE)(report.report)
app.command(epilog=verify.EXAMPLE)(verify.verify)
for _name in ("replay", "sweep", "ablate", "multiverse"):
    app.command(_name, epilog=rejudge.EXAMPLES[_name])(getattr(rejudge, _name))
app.command(epilog=ls.EXAMPLE)(ls.ls)
app.command(epilog=doctor.EXAMPLE)(doctor.doctor)
app.add_typer(metric.app, name="metric")
app.add_typer(bundle.app, name="bundle")


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --version: as one JSON object.")] = False,
) -> None:
    if version:
        import walkback

        if json:
            emit_json({"version": walkback.__version__})
        else:
            typer.echo(f"walkback {walkback.__version__}")
        raise typer.Exit
    if json:
        raise BadInput("Before a command, --json goes with --version only.", "Put it behind the command.")


def run(arguments: list[str]) -> int:
    """Run one command; its exit code. Bad input never shows a traceback."""
    as_json = "--json" in arguments
    try:
        code = int(app(arguments, standalone_mode=False) or 0)
        if code == INTERRUPTED:  # typer turns Ctrl-C into this code without a word
            raise KeyboardInterrupt
        return code
    except typer.Exit as done:
        return int(done.exit_code)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - nobody reads any more
        return PIPE
    except (WalkbackError, OSError) as problem:
        error = FileTrouble.told(problem) if isinstance(problem, OSError) else problem
        emit_error(error.kind, error.message, error.hint, as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        emit_error("interrupted", "Interrupted.", "Run the same command again to go on.", as_json)
        return INTERRUPTED
    except typer.TyperException as error:
        message = getattr(error, "format_message", lambda: str(error))()
        emit_error("usage", message.rstrip(".") + ".", "See --help.", as_json)
        return 2
    except (Exception, SystemExit) as error:  # whoever called sys.exit(0) has not passed anything
        import traceback

        traceback.print_exc()
        theirs = fault_of_others(error)
        if theirs is not None:
            emit_error(theirs.kind, theirs.message, theirs.hint, as_json)
            return theirs.exit_code
        hint = "This is a bug in walkback; please report it with the lines above."
        emit_error("internal", f"{type(error).__name__}: {error}", hint, as_json)
        return INTERNAL


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a Windows console or a pipe may not be UTF-8
            stream.reconfigure(encoding="utf-8", errors="replace")
    sys.exit(run(sys.argv[1:]))
