"""The URL of an S3 store contains all options, and no secrets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.config.settings import StoreOptions, StoreSettings
from m5ws.errors import UsageError
from m5ws.store import open_store, url_of
from m5ws.store.s3.location import parse

_WORD = st.one_of(st.none(), st.text("abc/:-_.&?=# %ü", min_size=1))


@given(
    options=st.builds(
        StoreOptions,
        region=_WORD,
        endpoint_url=st.sampled_from([None, "https://s3.example.org", "http://127.0.0.1:9000"]),
        sse=st.sampled_from([None, "AES256", "aws:kms"]),
        sse_kms_key=_WORD,
        storage_class=_WORD,
        integrity=st.sampled_from(["signed", "crc64nvme"]),
        stall_s=st.floats(min_value=0.1, max_value=1000),
    )
)
def test_a_url_contains_all_options_of_the_store(options: StoreOptions) -> None:
    location = parse("s3://team/llm/", options)
    assert parse(location.url) == location and location.options == options


def test_settings_become_part_of_the_url() -> None:
    settings = StoreSettings(url="s3://team/llm", region="eu-west-1", endpoint_url="https://s3.example.org")
    url = url_of(settings.url, settings)
    assert url == "s3://team/llm?region=eu-west-1&endpoint_url=https://s3.example.org"
    assert open_store(url).url == url
    assert url_of("/a/directory", settings) == "/a/directory"


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "s3://Team/llm",
        "s3://key:secret@team/llm",
        "s3://team/../llm",
        "s3://team/a//b",
        "s3://team/a b",
        "s3://team/llm#part",
        "s3://team/llm?regoin=eu-west-1",
        "s3://team/llm?sse=rot13",
        "s3://team/llm?endpoint_url=s3.example.org",
        "s3://team/llm?endpoint_url=https://key:secret@s3.example.org",
        "gs://team/llm",
    ],
)
def test_an_invalid_store_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        open_store(url)


def test_a_url_that_contradicts_the_settings_is_refused() -> None:
    with pytest.raises(UsageError, match="region"):
        parse("s3://team/llm?region=eu-west-1", StoreOptions(region="us-west-2"))
