"""The command line. Heavy imports wait inside the commands, so that --help answers at once."""

import os
import sys
import traceback
from pathlib import Path

import click

from giveaway.cli.audit_command import audit, trace
from giveaway.cli.demo import demo
from giveaway.cli.follow_up_commands import canaries, compare, export, gate, weights
from giveaway.cli.lood import lood
from giveaway.cli.theory import theory
from giveaway.cli.training_commands import mitigate, validate
from giveaway.text import say, shown_text
from giveaway.version import VERSION

TRACEBACK = "--traceback"
MOST = 1_000  # letters of a message: what it repeats may be longer
EXPECTED = {"InputError": 2, "SolveError": 1, "ProcessError": 1}  # by name: importing them would cost --help its speed


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    commands=[audit, demo, lood, theory, trace, canaries, weights, mitigate, compare, gate, export, validate],
)
@click.version_option(VERSION, prog_name="giveaway")
@click.option(TRACEBACK, is_flag=True, help="Show where an error comes from, values of records too; at any place.")
def cli(traceback: bool) -> None:
    """Find the training records whose presence your model gives away."""


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
    except (Exception, KeyboardInterrupt) as error:
        if len(arguments) < len(sys.argv) - 1:
            say("".join(traceback.format_exception(error)), err=True)
        # click takes a file that ends too early for the end of what somebody types
        early = isinstance(error, click.Abort) and isinstance(error.__cause__, EOFError)
        message, code = _in_a_line(error.__cause__ if early and error.__cause__ else error)
        say(message, err=True)
        sys.exit(code)


def _in_a_line(error: BaseException) -> tuple[str, int]:
    """Return what to say of an error, and the exit code."""
    kind = type(error).__name__
    if kind == "NoArgsIsHelpError":  # unknown to click 8.1
        return error.format_message(), 2  # type: ignore[attr-defined]
    if isinstance(error, click.ClickException):
        said, code = f"{error.format_message()} (giveaway --help lists commands and options)", 2
    elif isinstance(error, KeyboardInterrupt | click.Abort):
        said, code = "interrupted; no file is half-written", 130
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
    return "giveaway: " + (said if len(said) <= MOST else f"{shown_text(said, MOST)} {said[-200:]}"), code
