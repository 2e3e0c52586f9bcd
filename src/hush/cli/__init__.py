"""The command line: each command parses its options, calls the library and prints the result.

This module puts the commands together into one program.

Exit codes: 0 done, 1 a promise or check failed, 2 bad input, 130 stopped by Ctrl-C, 143 by SIGTERM.
"""

from typing import Annotated

import typer

from hush import __version__
from hush.cli.accounting import calibrate, posterior
from hush.cli.audit import audit
from hush.cli.canaries import canaries
from hush.cli.ledger import ledger
from hush.cli.messages import DebugOption, QuietOption, VerboseOption, command, set_verbosity
from hush.cli.options import OnceCommand
from hush.cli.plan import frontier, plan
from hush.cli.prior import prior
from hush.cli.rehearse import rehearse
from hush.cli.run import demo, init, run
from hush.cli.scan import explain, redact, scan
from hush.cli.train import train
from hush.cli.verify import attest, report, sign, verify

__all__ = ["app", "main"]


app = typer.Typer(
    pretty_exceptions_show_locals=False, no_args_is_help=True, rich_markup_mode="markdown", help=(
        "Train a model on data that holds secrets, with a proven ceiling on what anyone can reconstruct from it.\n\n"
        "Example: `hush init`, fill in the path of your data, then `hush run hush.yaml`\n\n"
        "Exit codes: 0 done, 1 a promise or check failed, 2 bad input, 130 stopped by Ctrl-C, 143 by SIGTERM. Existing "
        "files are overwritten only with `--force`. To complete commands in your shell: `hush --install-completion`"
    ),
)  # fmt: skip


def main() -> None:
    """The console script."""
    app()


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"hush {__version__}")
        raise typer.Exit


@app.callback()
def _hush(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit.", metavar=""
        ),
    ] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    set_verbosity(quiet=quiet, verbose=verbose, debug=debug)


for _panel, _commands in {  # in the order of the help: what a new user needs comes first
    "All at once": (demo, init, rehearse, run),
    "Step by step": (scan, explain, redact, prior, canaries, plan, frontier, train, audit, report),
    "Trust": (verify, sign, attest, ledger),
    "Single numbers": (posterior, calibrate),
}.items():
    for _command in _commands:
        app.command(cls=OnceCommand, rich_help_panel=_panel)(command(_command))
