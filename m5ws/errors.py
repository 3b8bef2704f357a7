"""Errors that m5ws raises on purpose.

An error names the object concerned. `hint` contains the next step for the user. `exit_code` is part of the command
line's contract (docs/reference/exit-codes.md) and does not depend on the message.
"""


class M5Error(Exception):
    """Error that m5ws can explain; printed without a traceback."""

    exit_code: int = 2
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class UsageError(M5Error):
    """The request is invalid: a wrong option, combination or value."""


class NotFound(M5Error):
    """A snapshot, run, file or object does not exist."""

    exit_code = 3
    hint = "`m5ws ls` lists snapshots and runs."


class AmbiguousId(M5Error):
    """A prefix matches more than one snapshot or run."""

    hint = "Give more characters of the id."


class ObjectExists(M5Error):
    """The key of a create exists already. Callers that publish content-addressed bytes treat this as success.

    `size_bytes` is the size of the existing object, if it was read.
    """

    def __init__(self, message: str, size_bytes: int | None = None) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes


class CorruptObject(M5Error):
    """Checksum mismatch: an object does not have the bytes that its name requires."""

    exit_code = 3
    hint = "Run `m5ws fsck` to list all damaged objects and the runs and snapshots that need them."


class Misplaced(CorruptObject):
    """A record is stored under the key of another record, or contradicts another record."""


class UnknownSchema(M5Error):
    """The kind or version of a record is unknown to this m5ws."""

    exit_code = 3
    hint = "Another version of m5ws wrote this record. Read it with that version. `m5ws doctor` prints versions."


UNREADABLE = (NotFound, CorruptObject, UnknownSchema)
"""Errors raised for a record that is missing, damaged, or of an unknown version."""


class ConfigError(M5Error):
    """`m5ws.toml` is invalid."""


class MissingExtra(M5Error):
    """A library of an optional extra is not installed."""

    exit_code = 3

    def __init__(self, feature: str, extra: str, *, or_else: str | None = None) -> None:
        super().__init__(
            f"{feature} needs the extra '{extra}', which is not installed",
            hint=f"Run pip install 'm5ws[{extra}]'{f', or {or_else}' if or_else else ''}",
        )


class Fenced(M5Error):
    """A process tried to publish into a run that a newer attempt or a removal has closed to it."""

    exit_code = 1
    hint = "A newer attempt of this run has started. End this process."
