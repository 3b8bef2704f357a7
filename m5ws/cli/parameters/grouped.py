"""Options that several verbs have, or that belong together, given to a command as one decorator."""

from collections.abc import Callable

Command = Callable[..., None]


def grouped(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command these parameters, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
