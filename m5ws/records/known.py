"""Records of arithmetic on machines: results that machines of one kind share, and rates of transfers. No I/O here."""

from m5ws.records.base import Count, Digest, KeyedRecord, Record


class Computed(Record, frozen=True, kw_only=True):
    """Digests at one place, a processor or a GPU: all distinct digests of `repetitions` equal computations."""

    place: str
    exact: tuple[Digest, ...]
    rounded: tuple[Digest, ...]
    repetitions: Count


class Arithmetic(Record, frozen=True, kw_only=True):
    """Result of `training/tools/known_digest.py` on one machine.

    `kind` has the facts that decide the bits of rounded results. `wrong_sums` has the number of wrong values in sums
    over `ranks` processes, by the rank that got them. `rates` are in bytes a second.
    """

    host: str
    kind: dict[str, str | None]
    ranks: Count
    computed: tuple[Computed, ...]
    wrong_sums: dict[str, Count] = {}
    rates: dict[str, Count] = {}


class Known(KeyedRecord, tag="known/1", frozen=True, kw_only=True):
    """Digests of rounded results of a machine, by the class of place (`cpu`, `gpu`), and its rates.

    `kind` is a digest of `facts`: machines with equal facts shall have equal digests.
    """

    kind: str
    host: str
    facts: dict[str, str | None]
    digests: dict[str, Digest]
    rates: dict[str, Count] = {}
    created_s: float
