"""Decorators for several options at once."""

from collections.abc import Callable

Command = Callable[..., None]


def grouped(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds these parameters to a command, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
