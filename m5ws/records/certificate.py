"""Certificate: the joint result of restores of a training. No I/O here."""

from typing import Literal

import msgspec

from m5ws.records.verdict import Outcome, Verdict

CertificateOutcome = Literal["certified", "inexact", "diverged", "nondeterministic", "not comparable"]
"""`inexact`: a resume or restore differs, and uninterrupted training repeats itself, so the resume is the cause.
`diverged`: a resume or restore differs, and the cause is not proven."""

_OUTCOMES: dict[Outcome, CertificateOutcome] = {
    "reproduced": "certified",
    "sampled": "certified",
    "diverged": "diverged",
    "nondeterministic": "nondeterministic",
    "not comparable": "not comparable",
}


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """Joint result of the restores of `run`. `what` has framework, optimizer and versions.

    `restored` and `interrupted` have the steps of each restore, as in `certify.Restore`.
    """

    run: str
    outcome: CertificateOutcome
    what: dict[str, str]
    steps: int
    restored: tuple[int | None, ...]
    interrupted: tuple[int, ...] = ()
    verdicts: tuple[Verdict, ...]

    @property
    def exit_code(self) -> int:
        return {"certified": 0, "not comparable": 2}.get(self.outcome, 1)

    @property
    def tested(self) -> tuple[Verdict, ...]:
        """The verdicts that decide. One after which nothing was resumed decides only if there is no other."""
        both = zip(self.verdicts, self.restored, strict=True)
        return tuple(verdict for verdict, step in both if step != 0) or self.verdicts


def find_outcome(verdict: Verdict) -> CertificateOutcome:
    """Return the outcome of one restore or resume, from its verdict."""
    return "inexact" if verdict.is_inexact else _OUTCOMES[verdict.outcome]
