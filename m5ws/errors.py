"""The errors m5ws raises on purpose.

An error names the object it is about and carries what to do next (`hint`). Its `exit_code` is part of
the command line's contract (docs/reference/exit-codes.md) and never depends on the message.
"""


class M5Error(Exception):
    """Something m5ws can explain; printed without a traceback."""

    exit_code: int = 2
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class UsageError(M5Error):
    """What was asked for does not make sense as asked."""


class NotFound(M5Error):
    """A named snapshot, run, file or object is not there."""

    exit_code = 3
    hint = "`m5ws ls` lists what there is."


class AmbiguousId(M5Error):
    """A prefix stands for more than one snapshot or run."""

    hint = "Give more of its characters."


class ObjectExists(M5Error):
    """A create found its key taken. Callers that publish content-named bytes take this for success.

    `size_bytes` is the length of what is there, if that was asked for.
    """

    def __init__(self, message: str, size_bytes: int | None = None) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes


class CorruptObject(M5Error):
    """Bytes read back are not the bytes that were written."""

    exit_code = 3
    hint = "Run `m5ws fsck`: it names everything that is damaged and what it harms."


class Misplaced(CorruptObject):
    """A record under the key of another one, or one that another record contradicts."""


class UnknownSchema(M5Error):
    """A record of a kind or version that this m5ws does not know."""

    exit_code = 3
    hint = "Another version of m5ws wrote it, most likely a newer one: upgrade m5ws."


UNREADABLE = (NotFound, CorruptObject, UnknownSchema)
"""What reading a record raises that is absent, damaged, or of another version."""


class ConfigError(M5Error):
    """`m5ws.toml` says something m5ws cannot follow."""


class MissingExtra(M5Error):
    """A library of an optional extra is needed and not installed."""

    exit_code = 3

    def __init__(self, feature: str, extra: str, *, or_else: str | None = None) -> None:
        super().__init__(
            f"{feature} needs the extra '{extra}', which is not installed",
            hint=f"Install it: pip install 'm5ws[{extra}]'{f', or {or_else}' if or_else else ''}",
        )


class Fenced(M5Error):
    """A rank of an attempt that has been superseded tried to publish."""

    exit_code = 1
    hint = "A newer attempt of this run has begun; this process should end."
