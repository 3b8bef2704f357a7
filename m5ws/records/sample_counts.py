"""Record of the numbers of samples in files of a dataset that stays in its remote. No I/O here."""

from m5ws.records.base import Count, KeyedRecord

SAMPLES = "samples/"
"""Prefix of the keys, `samples/<dataset>/<reading>-<part>`."""


class SampleCounts(KeyedRecord, tag="sample-counts/1", frozen=True, kw_only=True):
    """Numbers of samples in consecutive files of a dataset, in the order of their paths. The key names the files."""

    counts: tuple[Count, ...]
