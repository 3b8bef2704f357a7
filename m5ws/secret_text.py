"""Parts of a text that can contain secrets: private keys, URLs, and text between colour codes.

Each expression is greedy or bounded, so that the work is proportional to the length of the text.
"""

import re
from collections.abc import Iterator

URL_PASSWORD = re.compile(
    rb"\b([A-Za-z][A-Za-z0-9+.-]{0,20})://([^\s/:@\"'<>`]{0,256}):([^\s/@\"'<>`]{1,512})@[A-Za-z0-9\[]"
)
URL_TOKEN = re.compile(rb"\bhttps?://([A-Za-z0-9_-]{20,512})@[A-Za-z0-9]")
_URL_QUERY = re.compile(
    rb"[?&](?:access_token|private_token|auth_token|token|api_?key|sig|X-Amz-Signature)=([A-Za-z0-9%+/_.=-]{8,})",
    re.IGNORECASE,
)
_URL_BYTES = 2048
_URL_END = re.compile(rb"[\s\"'<>]")
_KEY_BEGIN = re.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d")
_KEY_END = re.compile(rb"-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|Private-MAC: \w{1,200}")
_KEY_LINES = re.compile(rb"(?:(?:\s|\\[rn])*[A-Za-z0-9+/=]{16,})*")
_KEY_BYTES = 20_000
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,32}[A-Za-z]")
"""A control sequence of a terminal, which can be in the middle of a printed token."""


def without_colours(data: bytes) -> tuple[bytes, list[int], list[int]]:
    """Return data without colour codes, and for each piece its begin there and its begin in `data`."""
    parts, begins, origins, at, length = list[bytes](), [0], [0], 0, 0
    for match in _COLOUR.finditer(data):
        parts.append(data[at : match.start()])
        length, at = length + len(parts[-1]), match.end()
        begins.append(length)
        origins.append(at)
    return b"".join((*parts, data[at:])), begins, origins


def key_spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield whole private keys; the rules match only their first lines. A truncated key ends with its last line."""
    at = searched = 0
    while (begin := _KEY_BEGIN.search(data, at)) is not None:
        limit = begin.end() + _KEY_BYTES
        end = _KEY_END.search(data, max(begin.end(), searched), limit)
        searched = limit if end is None else end.end()
        at = end.end() if end is not None else _end_of_lines(data, begin.end())
        yield begin.start(), at


def _end_of_lines(data: bytes, start: int) -> int:
    lines = _KEY_LINES.match(data, start)
    return lines.end() if lines is not None else start


def url_queries(data: bytes) -> Iterator[tuple[bytes, re.Match[bytes]]]:
    """Yield the tokens in queries of URLs, each after its URL up to the query."""
    for match in _URL_QUERY.finditer(data):
        before = data[max(0, match.start() - _URL_BYTES) : match.start()].rpartition(b"://")
        if before[1] and before[2] and not _URL_END.search(before[2]):
            yield before[2], match
