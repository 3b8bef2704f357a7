"""What curl asks a bucket: signed as the library signs, and believed only where the answer is whole."""

import os
import shutil
import signal
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from m5ws import inquiry
from m5ws.inquiry import BELOW, EACH, FILE, OBJECT, WHOLE, Inquiry
from scripted_s3 import ScriptedS3
from tests.conftest import loud_skip

pytestmark = pytest.mark.services

_ASKED = [(BELOW, "gc/", 0), (FILE, "format", 0), (OBJECT, "objects/00/aa", 3), (OBJECT, "objects/11/bb", 0)]


@pytest.fixture(autouse=True)
def _curl(s3_environment: None) -> None:
    if shutil.which("curl") is None:
        loud_skip("what curl asks of S3: curl is not installed (Debian: apt-get install curl)")


@pytest.fixture
def server() -> Iterator[ScriptedS3]:
    with ScriptedS3() as running:
        running.objects = {"format": b"{}", "objects/00/aa": b"abc", "objects/11/bb": b"", "snapshots/x/1": b"s"}
        yield running


def _answer(server: ScriptedS3, how: str, asked: "list[inquiry.Question]" = _ASKED) -> list[bytes]:
    one = Inquiry.read(Inquiry(how, f"{server.endpoint}/bucket", "store/", "eu-west-1", "", asked).text())
    one.begin()
    return one.end()


@pytest.mark.parametrize("token", [None, 'a+token/with=all"kinds\\ of it'])
@pytest.mark.parametrize("how", [WHOLE, EACH])
def test_it_is_signed_as_the_library_signs(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch, how: str, token: str | None
) -> None:
    secret = 'a"secret\\with/all+kinds='
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    _answer(server, how)
    asked = {
        "": ("GET", "/bucket", {"list-type": "2", "max-keys": "1000", "prefix": "store/gc/"[: 6 + 3 * (how == EACH)]})
    }
    asked |= {key: ("HEAD", f"/bucket/store/{key}", {}) for _, key, _ in _ASKED[1:]}
    assert {key for _, key, _ in server.requests} == ({*asked} if how == EACH else {""})
    for method, key, headers in server.requests:
        verb, path, query = asked[key]
        assert method == verb and headers.get("x-amz-security-token") == token
        text = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        kept = ("host", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token")
        request = AWSRequest(
            verb, f"{server.endpoint}{path}?{text}", {name: headers[name] for name in kept if name in headers}
        )
        request.context["timestamp"] = headers["x-amz-date"]
        signing = S3SigV4Auth(Credentials("tester", secret, token), "s3", "eu-west-1")
        signature = signing.signature(signing.string_to_sign(request, signing.canonical_request(request)), request)
        assert headers["authorization"].endswith(f"Signature={signature}")


@pytest.mark.parametrize("how", [WHOLE, EACH])
def test_what_is_there_is_told(server: ScriptedS3, how: str) -> None:
    server.objects["gc/1.plan"] = b"p"
    plan, form, there, empty = _answer(server, how)
    assert (there, empty) == (b"3", b"0")
    assert plan.startswith(b"store/gc/1.plan 1 ") and form.startswith(b"2 ")
    server.objects |= {"format": b"[]", "objects/00/aa": b"xyz", "gc/1.plan": b"q", "objects/11/bb": b"12"}
    changed = _answer(server, how)
    assert (changed[2], changed[3]) == (b"3", b"2")
    assert changed[0] != plan and changed[1] != form
    for key, content in (("objects/00/aa", b"ab"), ("objects/00/aa", None), ("format", None)):
        server.objects = {name: data for name, data in server.objects.items() if name != key}
        server.objects |= {key: content} if content is not None else {}
        # It may have been there in between.
        with pytest.raises(inquiry.Unanswered):
            _answer(server, how)


@pytest.mark.parametrize(("how", "method"), [(WHOLE, "GET"), (EACH, "GET"), (EACH, "HEAD")])
@pytest.mark.parametrize("fault", ["InternalError", "AccessDenied", "SlowDown", "reset", "half"])
def test_an_answer_that_is_not_clear_is_none(server: ScriptedS3, how: str, method: str, fault: str) -> None:
    server.always = lambda asked, key: fault if asked == method and key in ("", "format") else None
    if (method, fault) == ("HEAD", "half"):
        # It has no body that could be cut.
        assert len(_answer(server, how)) == 3
        return
    with pytest.raises(inquiry.Unanswered):
        _answer(server, how)


def test_more_than_a_page_and_more_than_can_be_asked_one_by_one_are_not_asked(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.objects |= {f"objects/22/{number:04d}": b"" for number in range(998)}
    with pytest.raises(inquiry.Unanswered):
        _answer(server, WHOLE)
    assert _answer(server, EACH)[1:] == [b"3", b"0"]
    with pytest.raises(inquiry.Unanswered):
        _answer(server, EACH, [(OBJECT, f"objects/22/{number:04d}", 0) for number in range(257)])
    server.requests.clear()
    monkeypatch.setenv("AWS_SESSION_TOKEN", "x" * 70_000)
    with pytest.raises(inquiry.Unanswered):
        _answer(server, EACH)
    assert not server.requests


@pytest.mark.parametrize(
    "line", ["200 3  http://x", '200  "e" http://x', '404 0 "e" http://x', '403 3 "e" http://x', "000   http://x", ""]
)
def test_an_object_that_is_not_clearly_told_of_is_none(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        dict(inquiry._told(f'200 3 "e" http://y\n{line}\n'.encode()))


_HEAD = "<ListBucketResult><Name>b</Name>"
_ONE = "<Contents><Key>store/a&amp;b</Key><Size>1</Size><ETag>&quot;e&quot;</ETag><Owner><ID>x</ID></Owner></Contents>"


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html><IsTruncated>false</IsTruncated></html>",
        f"{_HEAD}<IsTruncated>true</IsTruncated>{_ONE}</ListBucketResult>",
        f"{_HEAD}{_ONE}</ListBucketResult>",
        f"{_HEAD}<IsTruncated>false</IsTruncated><KeyCount>2</KeyCount>{_ONE}</ListBucketResult>",
        f"{_HEAD}<IsTruncated>false</IsTruncated>{_ONE}",
        f'<?xml version="1.0" encoding="x-user"?>{_HEAD}<IsTruncated>false</IsTruncated></ListBucketResult>',
        f"{_HEAD}<IsTruncated>false</IsTruncated><Contents><Key>a</Key><Size>1</Size></Contents></ListBucketResult>",
        f"{_HEAD}<IsTruncated>false</IsTruncated><Contents><Key>a</Key><Size>x</Size><ETag>e</ETag></Contents></ListBucketResult>",
    ],
)
def test_a_page_that_is_not_whole_is_none(page: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        dict(inquiry._listed(f"{page}\n--m5ws--\n".encode(), 1))


def test_a_page_is_read_as_it_is_written() -> None:
    page = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n{_HEAD}\n <IsTruncated>false</IsTruncated>{_ONE}\n</ListBucketResult>'
    )
    text = f"{page}\n--m5ws--\n".encode()
    assert dict(inquiry._listed(text, 1)) == {"store/a&b": b'1 "e"'}
    for said, lists in ((text, 2), (text + text, 1), (text + b"more", 1)):
        with pytest.raises(ValueError, match=r"."):
            dict(inquiry._listed(said, lists))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_SECRET_ACCESS_KEY", "two\nlines"),
        ("AWS_SECRET_ACCESS_KEY", ""),
        ("AWS_PROFILE", "a"),
        ("HTTPS_PROXY", "http://proxy"),
        ("PATH", "/nowhere"),
    ],
)
def test_what_is_not_for_curl_asks_nobody(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(inquiry.Unanswered):
        _answer(server, WHOLE)
    assert not server.requests


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://x/{a,b}", 'http://x/"\nurl="http://y', "http://[::1]/b"])
def test_a_url_that_curl_would_read_otherwise_is_refused(url: str) -> None:
    with pytest.raises(inquiry.Unanswered):
        Inquiry(WHOLE, url, "store/", "eu-west-1", "", _ASKED).begin()


def test_a_pipe_that_is_too_small_ends_it(monkeypatch: pytest.MonkeyPatch, server: ScriptedS3) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(inquiry, "_PIPE_BYTES", 10**9)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "x" * 100_000)
    with pytest.raises(BlockingIOError):
        _answer(server, WHOLE)
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("text", ["", "whole\nhttp://x", "whole\nhttp://x\n\n\n\nobject objects/00/aa"])
def test_a_text_that_is_no_inquiry_is_unanswered(text: str) -> None:
    with pytest.raises(inquiry.Unanswered):
        Inquiry.read(text)


@pytest.mark.parametrize("how", [WHOLE, EACH])
def test_a_server_that_says_nothing_is_not_waited_for_longer_than_once(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(inquiry, "_LIMIT_S", 1)
    server.always = lambda _method, _key: "stall"
    one = Inquiry(how, f"{server.endpoint}/bucket", "store/", "eu-west-1", "", _ASKED * 50)
    one.begin()
    children = [working._child for working in one._working]
    with pytest.raises(inquiry.Unanswered):
        one.end()
    # Nothing is left of it.
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_what_is_interrupted_leaves_nobody_behind(server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    server.always = lambda _method, _key: "stall"
    one = Inquiry(EACH, f"{server.endpoint}/bucket", "store/", "eu-west-1", "", _ASKED)
    one.begin()
    children = [working._child for working in one._working]

    def interrupted(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            one.end()
    finally:
        signal.signal(signal.SIGALRM, before)
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
