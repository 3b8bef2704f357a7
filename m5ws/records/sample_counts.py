"""Record of the numbers of samples in files of a dataset that stays in its remote. No I/O here."""

from m5ws.records.base import Count, Digest, KeyedRecord

SAMPLES = "samples/"
"""Prefix of the keys, `samples/<dataset>/<reading>-<part>`."""


class SampleCounts(KeyedRecord, tag="sample-counts/1", frozen=True, kw_only=True):
    """Numbers of samples in consecutive files of a dataset, in the order of their paths.

    `dataset` is the digest of its manifest, or of the manifest and the path of a part. `reading` is a digest of the
    format, and of the options by which the files are divided into samples and into parts.
    """

    dataset: Digest
    reading: str
    part: Count
    counts: tuple[Count, ...]
