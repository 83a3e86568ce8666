"""`tally completion`: the script that teaches a shell our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from tallystick.cli import output
from tallystick.errors import Misuse


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    Examples:
      eval "$(tally completion bash)"          in ~/.bashrc
      eval "$(tally completion zsh)"           in ~/.zshrc
      tally completion fish > ~/.config/fish/completions/tally.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise Misuse(f'shell "{shell}" is not known')
    root = ctx.find_root().command
    output.result(kind(root, {}, "tally", "_TALLY_COMPLETE").source())
