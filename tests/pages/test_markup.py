"""Text in pages: no value becomes markup, whatever is in it."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from m5ws.control_characters import escaped
from m5ws.pages.markup import Markup, tag

_HOSTILE = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="<>&\"'/=`- !\n\x00\u202eascriptonload", max_size=40),
    st.sampled_from(["</td><script>alert(1)</script>", '" onload="alert(1)', "<!--", "]]>", "&lt;", "&#60;b&#62;"]),
)


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


@given(_HOSTILE, _HOSTILE)
def test_a_text_and_an_attribute_are_read_back_as_they_are_and_as_nothing_else(text: str, value: str) -> None:
    markup = tag("p", text, tag("b", [text, None]), title=value).text
    reader = read(markup)
    assert reader.tags == [("p", {"title": escaped(value)}), ("b", {})]
    assert reader.text == escaped(text) * 2 and reader.comments == 0
    assert "\x00" not in markup and "\u202e" not in markup


def test_markup_stays_and_attributes_of_none_are_left_out() -> None:
    made = tag("a", Markup("<br/>"), class_="x", data_y=None, stroke_width=2)
    assert made.text == '<a class="x" stroke-width="2"><br/></a>'
    assert tag("meta", charset="utf-8").text == '<meta charset="utf-8"/>'
