"""`m5ws completion`."""

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    It completes commands, options, and ids of snapshots, runs and sweeps. It contacts no server: of a store in a
    bucket, it offers the runs of this workspace.

    \b
    Examples:
      m5ws completion bash > ~/.local/share/bash-completion/completions/m5ws
      m5ws completion zsh > ~/.zfunc/_m5ws
      m5ws completion fish > ~/.config/fish/completions/m5ws.fish
    """
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None
    root = context.find_root().command
    click.echo(completer(root, {}, "m5ws", "_M5WS_COMPLETE").source())
