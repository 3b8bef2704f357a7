"""The sentence of each kind of record that has one, and records as plain data with their sentences."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from m5ws.records.certificate import Certificate
from m5ws.records.failure import EndReason, Failure
from m5ws.records.reasons import Gap, JointReason, ResultsHint
from m5ws.records.verdict import ComparedItem, Divergence, Verdict
from m5ws.wording import comparisons, failures, verdicts

SENTENCES: Mapping[type, Callable[[Any], str]] = {
    Certificate: verdicts.describe_certificate,
    ComparedItem: comparisons.describe_item,
    Divergence: comparisons.locate,
    EndReason: failures.describe_end,
    Failure: failures.describe_failure,
    Gap: comparisons.describe_gap,
    JointReason: verdicts.describe_joint,
    ResultsHint: comparisons.describe_hint,
    Verdict: verdicts.describe_verdict,
}
"""Functions by record. In plain data, a record of these types has the result as `sentence`."""


def describe(record: object) -> str:
    """Return the sentence of a record of a type in SENTENCES."""
    return SENTENCES[type(record)](record)


def add_sentences(value: object, plain: object) -> None:
    """Add sentences to `plain`, the plain data of `value` by `msgspec.to_builtins`."""
    if isinstance(value, Mapping) and isinstance(plain, dict):
        for key, item in zip(value.values(), plain.values(), strict=True):
            add_sentences(key, item)
    elif isinstance(value, list | tuple) and isinstance(plain, list | tuple):
        for each, item in zip(value, plain, strict=True):
            add_sentences(each, item)
    elif isinstance(value, msgspec.Struct) and isinstance(plain, dict):
        for name, key in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            add_sentences(getattr(value, name), plain.get(key))
        if type(value) in SENTENCES:
            plain["sentence"] = describe(value)
