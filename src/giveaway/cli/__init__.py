"""The command line. Heavy imports wait inside the commands, so that --help answers at once."""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from giveaway.cli.audit_command import audit
from giveaway.cli.demo import demo
from giveaway.cli.follow_up_commands import canaries, compare, export, gate, weights
from giveaway.cli.mitigate_command import mitigate
from giveaway.cli.options import AS_JSON, SEED
from giveaway.cli.theory import theory
from giveaway.cli.trace import trace
from giveaway.cli.validate_command import validate
from giveaway.text import say, shown_text
from giveaway.version import VERSION

TRACEBACK = "--traceback"
HELP = 0
MOST = 1_000  # letters of a message: what it repeats may be longer
EXPECTED = {"InputError": 2, "SolveError": 1, "ProcessError": 1}  # by name: importing them would cost --help its speed


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="giveaway")
@click.option(TRACEBACK, is_flag=True, help="Show where an error comes from, values of records too; at any place.")
def cli(traceback: bool) -> None:
    """Find the training records whose presence your model gives away."""


for command in (audit, demo, theory, trace, canaries, weights, mitigate, compare, gate, export, validate):
    cli.add_command(command)


@cli.command()
@click.argument("inputs")
@click.option("--kernel", default="nngp", show_default=True, help="rbf, laplace, linear, nngp, conv_nngp")
@click.option(
    "--noise", type=float, default=0.05, show_default=True, help="Variance of the targets around the function."
)
@click.option("--length", type=float, help="Length scale of rbf or laplace; default the median distance.")
@click.option("--depth", type=int, help="Hidden layers of a network kernel; default 3.")
@click.option("--activation", help="Activation of a network kernel: relu, leaky_relu, erf, gelu, tanh, identity.")
@click.option("--weight-variance", type=float, help="Weight variance of a network or linear kernel.")
@click.option("--bias-variance", type=float, help="Bias variance of a network or linear kernel.")
@click.option("--filter-size", type=int, help="Filter size of a convolutional kernel; default 3.")
@click.option("--stride", type=int, help="Stride of a convolutional kernel; default 1.")
@click.option("--padding", help="Padding of a convolutional kernel: same or valid.")
@click.option("--readout", help="Read-out of a convolutional kernel: flatten or pool.")
@click.option("--sphere", is_flag=True, help="Centre each record and put it on a sphere first.")
@click.option("--groups", help="File with the name of each record's person (.npy, or one a line): rows are people.")
@click.option("--records", help="Rows to study in detail, such as 3,17; default the ten most exposed.")
@click.option("--queries", help="FILE.npz with the key queries: measure the distances at these points.")
@click.option("--optimize", help="kl or mean: search for the queries with the largest distance.")
@click.option("--starts", type=int, default=8, show_default=True, help="With --optimize: number of starting points.")
@click.option("--steps", type=int, default=200, show_default=True, help="With --optimize: most steps of a search.")
@click.option("--low", type=float, help="With --optimize: smallest value in a query, such as 0 for pixels.")
@click.option("--high", type=float, help="With --optimize: largest value in a query, such as 1 for pixels.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the search.")
@click.option("--device", help="Where to compute, such as cuda.")
@click.option("--top", type=int, default=10, show_default=True, help="Rows to print.")
@click.option("--out", default="giveaway-lood", show_default=True, help="Folder for the result.")
@click.option("--overwrite", is_flag=True, help="Remove another result that is in --out.")
@click.option("--dry-run", is_flag=True, help="Only estimate the cost: memory, time.")
@AS_JSON
def lood(inputs: str, out: str, top: int, as_json: bool, overwrite: bool, dry_run: bool, **flags: Any) -> None:
    """Ask a Gaussian process instead of a model.

    For every record of INPUTS.npz (keys inputs and targets), measure how far the process's prediction moves when the
    record is left out.
    """
    from giveaway.cli.lood import run_lood

    given = {name: value for name, value in flags.items() if value is not None}
    run_lood(inputs, out, top, as_json, given, overwrite=overwrite, dry_run=dry_run)


@cli.command()
@click.argument("folder")
def report(folder: str) -> None:
    """Rebuild the report and the summary of an audit FOLDER."""
    from giveaway.auditing.store import AuditFolder
    from giveaway.reporting.folder import rebuild

    for page in rebuild(click.get_current_context().with_resource(AuditFolder(folder).locked())):
        say(f"Wrote {page}")


@cli.command()
@click.argument("folders", nargs=-1, required=True)
@click.option("--out", default="giveaway-index.html", show_default=True, help="File for the page.")
def index(folders: tuple[str, ...], out: str) -> None:
    """Put the summaries of many audit FOLDERS on one page."""
    from giveaway.reporting.pages import index_page
    from giveaway.storage.files import write_text

    write_text(out, index_page(folders))
    say(f"Wrote {out}")


@cli.command()
@click.argument("folder")
def purge(folder: str) -> None:
    """Remove every file that giveaway wrote into FOLDER."""
    from giveaway.attacks.shadow_store import ShadowFolder
    from giveaway.auditing.store import listed_signals
    from giveaway.auditing.store import purge as remove

    elsewhere = listed_signals(folder)
    removed, kept = remove(folder)
    say(f"Removed {removed} files")
    for file in kept:
        say(f"Kept: {file}, which was damaged or changed since it was written")
    for place in filter(Path.exists, elsewhere):
        how = f"; giveaway purge {place} removes them" if ShadowFolder(place).marked else ""
        say(f"Kept: the signals it was validated with, in {place}{how}")


for group in (cli, theory):
    for command in group.commands.values():  # click cuts a help text off where no short one is given
        command.short_help = " ".join((command.help or "").partition("\n\n")[0].split())


def main() -> None:
    """Run, with every failure as one line on stderr: exit 2 for bad input, 1 for work that could not be done, 130 for
    Ctrl-C. What the user's code, or Python, says of an error may hold values: that takes --traceback."""
    arguments = [word for word in sys.argv[1:] if word != TRACEBACK]
    try:
        cli.main(arguments, prog_name="giveaway", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (Exception, KeyboardInterrupt) as error:
        if len(arguments) < len(sys.argv) - 1:
            say("".join(traceback.format_exception(error)), err=True)
        # click takes a file that ends too early for the end of what somebody types
        early = isinstance(error, click.Abort) and isinstance(error.__cause__, EOFError)
        message, code = _in_a_line(error.__cause__ if early and error.__cause__ else error)
        say(f"giveaway: {message}" if code != HELP else message, err=True)
        sys.exit(code or 2)


def _in_a_line(error: BaseException) -> tuple[str, int]:
    """Return what to say of an error, and the exit code."""
    kind = type(error).__name__
    if kind == "NoArgsIsHelpError":  # unknown to click 8.1
        return error.format_message(), HELP  # type: ignore[attr-defined]
    if isinstance(error, click.ClickException):
        said, code = f"{error.format_message()} (giveaway --help lists commands and options)", 2
    elif isinstance(error, KeyboardInterrupt | click.Abort):
        said, code = "interrupted; nothing was half-written", 130
    elif kind in EXPECTED:
        said, code = str(error), EXPECTED[kind]
    elif isinstance(error, OSError) and isinstance(error.errno, int):
        from giveaway.checks import raised_at, users_frames

        place = raised_at(error) if users_frames(error) else error.filename
        named = f" ({place})" if place else ""
        said, code = f"the work could not be finished: {os.strerror(error.errno)}{named}; the rest with {TRACEBACK}", 1
    elif isinstance(error, MemoryError):
        said, code = f"the work could not be finished: not enough memory; the rest with {TRACEBACK}", 1
    else:
        from giveaway.checks import raised_at

        said, code = f"{raised_at(error)}; what it says may hold values of records: see it with {TRACEBACK}", 1
    said = " ".join(said.split())
    return said if len(said) <= MOST else f"{shown_text(said, MOST)} {said[-200:]}", code
