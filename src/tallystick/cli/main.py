"""`tally`: the list of commands, and the one place where errors become exit codes.

A command is a module of this folder that holds a click command named `command`. The list below carries each
one's line of help, so that `tally --help` imports none of them.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from typing import Any

import click

from tallystick.cli import output
from tallystick.errors import TallystickError, blame

# In the order of a first day: set up, name who may do what, publish and read, prove, operate.
COMMANDS = {
    "demo": "run the whole story on the embedded default",
    "init": "make a new instance: authority, node, ledger and trust file",
    "instance": "change the rules of an instance: settings, contracts, hosts, witnesses",
    "up": "run the node and the authority, or one of them",
    "status": "say how node, authority, ledger and the rest are, a line each",
    "node": "add nodes that share an instance's ledger: gateways to Kafka, relays of an overlay",
    "overlay": "found overlays of relays, sign and submit their plans, run and watch them",
    "mesh": "take part in a mesh that hides who publishes and who subscribes",
    "fabric": "run a fabric of switches, see its topology, its rules and where frames go",
    "notary": "judge and anchor what clients write to Kafka themselves",
    "tenant": "add tenants, by the operator",
    "principal": "enrol, list and revoke principals",
    "use": "choose the identity that commands act as",
    "topic": "make topics, change schemas, set policies, show, rotate and close them",
    "right": "grant, take away and list rights",
    "permit": "list permits and give them back",
    "attribute": "declare attributes, grant and revoke them",
    "policy": "check and explain policies and interests",
    "group": "list and show groups, reset their offsets",
    "publish": "seal rows and publish them",
    "spool": "show, send and drop what waits on this machine's disk",
    "subscribe": "fetch, verify and open what was published",
    "object": "seal, serve and read what is too large for a record",
    "ota": "update vehicles over the air, in campaigns that stop themselves",
    "fleet": "simulate vehicles and city sensors, replay recordings",
    "detect": "find intruders on a vehicle's CAN bus, and say which signal lied",
    "pipeline": "run jobs over topics in Spark: tables, findings, reports",
    "inspect": "say what a file is and what it shows a stranger",
    "prove": "write the proof of one record to a file",
    "verify": "check a proof, a receipt or a checkpoint offline",
    "ledger": "newest checkpoint, fsck, histories, receipts, export",
    "console": "see topics, records, findings and the ledger as pages, verified on this machine",
    "chain": "run validators of a CometBFT chain, watch and mend them",
    "audit": "search who did what, with names where they may be known",
    "witness": "cosign the checkpoints of a ledger",
    "authority": "show, back up and restore the authority",
    "keygen": "make an age identity for backups",
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
    epilog="Exit codes: 2 wrong use, 3 refused by a peer or a rule, 4 try again later, 130 interrupted, "
    "141 nobody reads the output any more.",
)
@click.version_option(package_name="tallystick", message="tally %(version)s", help="Print the version and exit.")
def cli() -> None:
    """Zero-trust event streaming: seal, publish, verify, open, prove."""


def run(arguments: list[str] | None = None, command: click.Command = cli) -> int:
    """Run one command line and return its exit code."""
    logging.getLogger("tallystick").addHandler(_SILENT)  # what a command has to say it says itself
    stdout = sys.stdout
    try:
        returned: Any = command.main(args=arguments, prog_name="tally", standalone_mode=False)
    except TallystickError as error:
        return _failed(error)
    except OSError as error:  # a path that cannot be written, a full disk: whatever the command was about to do
        output.let_go()
        return _failed(blame(error))
    except SystemExit:
        if sys.stdout is stdout:
            raise
        output.let_go()  # click met a closed pipe (… | head), and put a stream in place that says nothing of it
        return output.EXIT_UNREAD
    except click.exceptions.NoArgsIsHelpError as error:
        for line in error.format_message().splitlines():
            output.note(line)
        return error.exit_code
    except click.ClickException as error:
        misspelt = _misspelt(error)
        output.failure(_lower(error.message if misspelt else error.format_message()), misspelt or _usage_hint(error))
        return error.exit_code
    except click.Abort:
        output.note("interrupted")
        return output.EXIT_INTERRUPTED
    return returned if isinstance(returned, int) else 0


def _failed(error: TallystickError) -> int:
    output.failure(str(error), error.hint)
    return output.exit_code(error)


def _lower(message: str) -> str:
    """Click writes sentences, some over several lines; ours begin small and end without a full stop."""
    line = " ".join(message.split())
    return (line[:1].lower() + line[1:]).rstrip(".")


def _misspelt(error: click.ClickException) -> str | None:
    """What was meant by a command that does not exist, if anything is near. Click knows the command only by its text,
    and says nothing of ours, which it has not loaded."""
    from difflib import get_close_matches

    context = error.ctx if isinstance(error, click.UsageError) else None
    typed = re.match("No such command '(.*)'", error.message)
    if context is None or typed is None or not isinstance(context.command, click.Group):
        return None
    near = get_close_matches(typed[1], context.command.list_commands(context))
    meant = " or ".join(f"{context.command_path} {name}" for name in near)
    return f"did you mean {meant}? {context.command_path} --help lists what there is" if near else None


def _usage_hint(error: click.ClickException) -> str | None:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{context.command_path} --help" if context else None


def main() -> None:
    """The console script."""
    sys.exit(run())
