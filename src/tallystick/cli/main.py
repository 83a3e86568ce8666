"""`tally`: the list of commands, and the one place where errors become exit codes.

A command is a module of this folder that holds a click command named `command`. The list below carries each
one's line of help, so that `tally --help` imports none of them.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import click

from tallystick.cli import output
from tallystick.errors import TallystickError

# In the order of a first day: set up, name who may do what, publish and read, prove, operate.
COMMANDS = {
    "demo": "run the whole story on the embedded default",
    "init": "make a new instance: authority, node, ledger and trust file",
    "up": "run the node and the authority, or one of them",
    "node": "add nodes that share an instance's ledger and Kafka",
    "notary": "judge and anchor what clients write to Kafka themselves",
    "tenant": "add tenants, by the operator",
    "principal": "enrol, list and revoke principals",
    "topic": "make topics, change schemas, set policies, show, rotate and close them",
    "right": "grant, take away and list rights",
    "permit": "list permits and give them back",
    "attribute": "declare attributes, grant and revoke them",
    "policy": "check and explain policies and interests",
    "group": "show groups and reset their offsets",
    "publish": "seal rows and publish them",
    "subscribe": "fetch, verify and open what was published",
    "fleet": "simulate vehicles and city sensors, replay recordings",
    "pipeline": "run jobs over topics in Spark: tables, findings, reports",
    "inspect": "say what a file is and what it shows a stranger",
    "prove": "write the proof of one record to a file",
    "verify": "check a proof offline",
    "ledger": "newest checkpoint, fsck, histories, receipts, export",
    "chain": "run validators of a CometBFT chain, watch and mend them",
    "audit": "search who did what, with names where they may be known",
    "witness": "cosign the checkpoints of a ledger",
    "authority": "show, back up and restore the authority",
    "erase": "destroy the keys of what must be forgotten",
    "dev": "start and stop engines on this machine, for trials and tests",
    "doctor": "check this machine: versions, engines, clock and disk",
    "completion": "print the shell completion script",
}


_SILENT = logging.NullHandler()


class LazyGroup(click.Group):
    """A group that imports a command when it is called, and not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tallystick.cli.{cmd_name}").command
        command.short_help = COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 2 wrong use, 3 refused by a peer or a rule, 4 try again later.",
)
@click.version_option(package_name="tallystick", message="tally %(version)s", help="Print the version and exit.")
def cli() -> None:
    """Zero-trust event streaming: seal, publish, verify, open, prove."""


def run(arguments: list[str] | None = None, command: click.Command = cli) -> int:
    """Run one command line and return its exit code."""
    logging.getLogger("tallystick").addHandler(_SILENT)  # what a command has to say it says itself
    try:
        returned: Any = command.main(args=arguments, prog_name="tally", standalone_mode=False)
    except TallystickError as error:
        output.failure(str(error), error.hint)
        return output.exit_code(error)
    except click.exceptions.NoArgsIsHelpError as error:
        output.note(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        output.failure(_lower(error.format_message()), _usage_hint(error))
        return error.exit_code
    except click.Abort:
        output.note("interrupted")
        return output.EXIT_INTERRUPTED
    return returned if isinstance(returned, int) else 0


def _lower(message: str) -> str:
    """Click writes sentences, some over several lines; ours begin small and end without a full stop."""
    line = " ".join(message.split())
    return (line[:1].lower() + line[1:]).rstrip(".")


def _usage_hint(error: click.ClickException) -> str | None:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{context.command_path} --help" if context else None


def main() -> None:
    """The console script."""
    sys.exit(run())
