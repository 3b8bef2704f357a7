"""A reader of pages for tests."""

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Reads a page: its elements with their attributes, and its text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.comments = 0
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.comments += 1


def read(markup: str) -> Reader:
    """Return a reader that has read a page."""
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader
