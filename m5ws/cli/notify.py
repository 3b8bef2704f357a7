"""`m5ws notify`."""

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output
from m5ws.errors import UsageError

_LIMIT_S = 60.0


@click.command("notify")
@click.option("--test", "is_test", is_flag=True, help="Send a test message too, which never waits.")
@output.json_option
@click.pass_context
def command(context: click.Context, is_test: bool, as_json: bool) -> None:
    """Send the messages that wait on this machine.

    Messages about runs go to the targets of `[notify]` in m5ws.toml. A message that a target did not take waits. The
    next attempt of a run on this machine sends it, or this command, for example each hour by cron.

    Exit status: 0 no message waits, 1 a target did not take a message.

    \b
    Example:
      m5ws notify --test
    """
    import time

    from m5ws.supervision.messages import Message

    workspace = names.workspace(context)
    settings, notifier = workspace.settings.notify, workspace.notifier()
    tests, errors = 0, tuple[str, ...]()
    if not settings.urls + settings.command:
        raise UsageError("no target for messages", hint="Set urls or command in [notify] of m5ws.toml.")
    if is_test:
        title = f"test message of the workspace {workspace.name}"
        tests, errors = notifier.test(
            Message(event="test", time_s=time.time(), title=title, text="Messages about runs arrive here.")
        )
    delivery = notifier.deliver(_LIMIT_S)
    if as_json:
        output.print_json({"sent": delivery.sent + tests, "waiting": delivery.waiting})
    else:
        output.echo(f"sent {delivery.sent + tests}, waiting {delivery.waiting}")
    for error in errors:
        output.warn(f"error: {error}")
    context.exit(1 if delivery.waiting or errors else 0)
