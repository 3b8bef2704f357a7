"""The result of a campaign on a store: counts, and violations."""

from collections import Counter

import msgspec

VIOLATIONS = {
    "wrong bytes": "a verified read returned other bytes than were written",
    "lost": "an object that was reported written is absent, or different",
    "said absent": "an existing object was reported absent",
    "said damaged": "an object that is whole, on a way that flips no bits, was reported damaged",
    "made up": "something was returned that nobody wrote",
    "two winners": "two writers were both told that a key is theirs",
    "no winner": "every writer was told that a key is another's",
    "half published": "a reference names an object that is absent or damaged",
    "unclear error": "an error that is not an M5Error, or an error without a message",
}
# No byte of these answers is signed or has a digest, so without TLS a flipped bit goes unseen.
UNSIGNED = ("list", "names", "stat", "reference")


class Result(msgspec.Struct, kw_only=True):
    """Counts of a campaign. `misled` counts unsigned answers that were wrong, if `misleading` allows them."""

    operations: int
    seed: int
    misleading: bool = False
    succeeded: int = 0
    failed: dict[str, int] = {}
    by_operation: dict[str, int] = {}
    misled: int = 0
    violations: list[str] = []
    seconds: float = 0.0
    slowest_s: float = 0.0

    def violated(self, name: str, operation: str, what: str) -> None:
        """Note a violation."""
        assert name in VIOLATIONS
        if self.misleading and operation in UNSIGNED and name != "unclear error":
            self.misled += 1
        else:
            self.violations.append(f"{name}: {operation}: {what}")

    def ended(self, operation: str, failure: str, seconds: float) -> None:
        """Note the end of an operation, with an error of this name or without one."""
        self.by_operation[operation] = self.by_operation.get(operation, 0) + 1
        self.slowest_s = max(self.slowest_s, seconds)
        if failure:
            self.failed[failure] = self.failed.get(failure, 0) + 1
        else:
            self.succeeded += 1

    def kinds(self) -> Counter[str]:
        """Return the number of violations of each kind."""
        return Counter(violation.partition(":")[0] for violation in self.violations)

    def line(self) -> str:
        """Return the counts as one line for people."""
        failed = ", ".join(f"{count} {name}" for name, count in sorted(self.failed.items())) or "none"
        return (
            f"seed {self.seed}: {self.operations} operations in {self.seconds:.1f} s, slowest {self.slowest_s:.1f} s; "
            f"{self.succeeded} succeeded; failed: {failed}; misled: {self.misled}; violations: {len(self.violations)}"
        )
