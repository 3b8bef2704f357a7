"""`m5ws attest` and `m5ws verify`, with real keys; and the commands by which one does without m5ws."""

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from m5ws.attest import ssh_signatures
from m5ws.records import attestation
from tests.conftest import loud_skip

_PAGE = Path(__file__).parents[2] / "docs" / "what-a-verdict-proves.md"
_SIGNER = "ada@example.org"


def _key(folder: Path, name: str) -> Path:
    if shutil.which("ssh-keygen") is None:
        loud_skip("SSH signatures: there is no ssh-keygen (Debian: apt-get install openssh-client)")
    key = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", key], check=True)
    return key


def _allowed(key: Path, who: str = _SIGNER) -> Path:
    public = Path(f"{key}.pub").read_text(encoding="utf-8")
    file = key.parent / f"{key.name}.allowed"
    file.write_text(f'# who signs\n{who} namespaces="m5ws" {public}', encoding="utf-8")
    return file


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return _key(tmp_path, "ada")


@pytest.fixture
def file(m5: Any, made: Any, tmp_path: Path) -> Path:
    """The statement on the run, not signed."""
    target = tmp_path / "run.json"
    assert m5("attest", made.run, "-o", target).status == 0
    return target


@pytest.fixture
def signed(m5: Any, made: Any, key: Path, tmp_path: Path) -> Path:
    target = tmp_path / "signed.json"
    assert m5("attest", made.run, "--key", key, "-o", target).status == 0
    return target


def _edit(file: Path, old: bytes, new: bytes) -> None:
    """Change the statement inside an envelope, and nothing else."""
    envelope = json.loads(file.read_text())
    body = base64.b64decode(envelope["payload"])
    assert old in body
    envelope["payload"] = base64.b64encode(body.replace(old, new)).decode()
    file.write_text(json.dumps(envelope))


# --- the envelope ----------------------------------------------------------------------------------


def test_the_signed_encoding_is_the_dsse_encoding() -> None:
    """The vector of DSSE 1.0.2, protocol.md."""
    encoded = attestation.pae("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert attestation.pae("é", b"") == b"DSSEv1 2 \xc3\xa9 0 "


def test_both_base64_alphabets_are_read_and_other_text_is_refused() -> None:
    for text in ("+/8=", "-_8="):
        assert attestation.from_base64(text) == b"\xfb\xff"
    for wrong in ("+/8", "+/ 8=", "+/8=\n", "é"):
        with pytest.raises(ValueError, match=r"base64|ASCII"):
            attestation.from_base64(wrong)


def test_a_statement_names_its_run_verdicts_checkpoints_ledgers_and_segments(m5: Any, made: Any) -> None:
    done = m5("attest", made.run)
    envelope = done.document
    assert (envelope["payloadType"], envelope["signatures"]) == ("application/vnd.in-toto+json", [])
    said = json.loads(base64.b64decode(envelope["payload"]))
    assert (said["_type"], said["predicateType"]) == ("https://in-toto.io/Statement/v1", "m5ws:verdict/v1")
    told = said["predicate"]
    assert (told["run"], told["snapshot"], told["outcome"]) == (made.run, made.snapshot, "reproduced")
    assert told["verdicts"][0]["found"]["compared"] == {"steps": 3}
    assert told["checkpoints"][0]["name"] == f"{made.run}@0000000003-0001"
    assert {(line["run"], line["node"]) for line in told["ledgers"]} == {(run, 0) for run in (made.run, made.replay)}
    assert told["segments"] == [{"first": 0, "last": 3, "checkpoint": None, "digest": None}]
    assert f"runs/{made.run}/run" in {one["name"] for one in said["subject"]}
    assert all({"sha256", "blake3"} == one["digest"].keys() for one in said["subject"])
    assert "not signed" in done.err


# --- verify ----------------------------------------------------------------------------------------


def test_an_unsigned_statement_holds_and_is_reported_as_not_signed(m5: Any, file: Path, made: Any) -> None:
    done = m5("verify", file)
    assert done.status == 0
    assert done.out.startswith(f"HOLDS: run {made.run}, reproduced\n")
    assert "not signed" in done.out
    assert m5("verify", file, "--read-data").status == 0


def test_a_signed_statement_holds_if_its_key_is_allowed(m5: Any, signed: Path, key: Path) -> None:
    report = m5("verify", signed, "--json").document
    assert report["holds"] and "--allowed-signers" in report["not_checked"][0]
    fingerprint = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], capture_output=True, text=True).stdout.split()[1]
    assert report["signatures"] == [{"good": True, "keyid": fingerprint, "signer": None}]
    done = m5("verify", signed, "--allowed-signers", _allowed(key))
    assert done.status == 0
    assert f"signature: good, by {_SIGNER}, key {fingerprint}" in done.out
    alone = m5(
        "verify", signed, "--allowed-signers", _allowed(key, "*@example.org,b@x"), "--no-store", "--json"
    ).document
    assert alone["holds"] and alone["store"] is None and alone["signatures"][0]["signer"] == "*@example.org"


def test_a_statement_without_a_signature_by_an_allowed_key_does_not_hold(
    m5: Any, signed: Path, file: Path, tmp_path: Path
) -> None:
    other = _allowed(_key(tmp_path, "eve"))
    for one, said in ((signed, "none of 1"), (file, "not signed")):
        done = m5("verify", one, "--allowed-signers", other)
        assert done.status == 1 and done.out.startswith("DOES NOT HOLD") and said in done.out


def test_a_signature_for_another_namespace_is_not_good(m5: Any, signed: Path, key: Path) -> None:
    envelope = json.loads(signed.read_text())
    encoded = attestation.pae(envelope["payloadType"], base64.b64decode(envelope["payload"]))
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "git"]
    made_for_git = subprocess.run(command, input=encoded, capture_output=True, check=True).stdout
    good = envelope["signatures"]
    envelope["signatures"] = [{"sig": base64.b64encode(made_for_git).decode(), "keyid": good[0]["keyid"]}]
    signed.write_text(json.dumps(envelope))
    assert m5("verify", signed).status == 1
    # One good signature is enough, and the keyid is a hint that proves nothing.
    envelope["signatures"] += [{"sig": "no base64"}, {"sig": good[0]["sig"], "keyid": "SHA256:another"}]
    signed.write_text(json.dumps(envelope))
    done = m5("verify", signed, "--allowed-signers", _allowed(key))
    assert done.status == 0 and done.out.count("signature: ") == 3 and "by no SSH key" in done.out


def test_a_statement_that_was_edited_has_no_good_signature(m5: Any, signed: Path, key: Path) -> None:
    _edit(signed, b'"steps":3', b'"steps":4')
    for words in ((), ("--allowed-signers", _allowed(key)), ("--no-store",)):
        assert m5("verify", signed, *words).status == 1


def test_an_edited_unsigned_statement_differs_from_the_store(m5: Any, file: Path, made: Any) -> None:
    _edit(file, b'"steps":3', b'"steps":4')
    done = m5("verify", file)
    assert done.status == 1
    assert f"runs/{made.replay}/verdict: " in done.out


def test_verify_with_a_store_without_the_run_exits_with_3(
    m5: Any, made: Any, file: Path, place: Path, tmp_path: Path
) -> None:
    shutil.rmtree(place / ".m5ws" / "store" / "runs")
    done = m5("verify", file)
    assert done.status == 3 and made.run in done.err
    assert m5("verify", file, "--no-store").status == 0
    done = m5("-C", tmp_path, "verify", file)
    assert done.status == 3 and "m5ws.toml" in done.err
    assert m5("-C", tmp_path, "verify", file, "--no-store").status == 0


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", 2),
        ("{}", 2),
        ('{"payload": "", "payloadType": "text/plain", "signatures": []}', 2),
        ('{"payload": "é", "payloadType": "application/vnd.in-toto+json", "signatures": []}', 2),
        ('{"payload": "e30=", "payloadType": "application/vnd.in-toto+json", "signatures": []}', 3),
        ("[" * 10000, 2),
    ],
)
def test_a_file_without_a_statement_is_an_error_with_a_hint(
    m5: Any, home: Any, tmp_path: Path, text: str, status: int
) -> None:
    (tmp_path / "it").write_text(text)
    done = m5("verify", tmp_path / "it")
    assert (done.status, done.out) == (status, "") and "error: " in done.err and "hint: " in done.err


# --- attest ----------------------------------------------------------------------------------------


def test_attest_reports_the_written_file_and_overwrites_no_file(m5: Any, made: Any, key: Path, tmp_path: Path) -> None:
    target = tmp_path / "it.json"
    told = m5("attest", made.run, "--key", key, "-o", target, "--json").document
    assert (told["file"], told["outcome"], told["verdicts"]) == (str(target), "reproduced", 1)
    assert told["keyid"].startswith("SHA256:")
    before = target.read_bytes()
    done = m5("attest", made.run, "-o", target)
    assert done.status == 2 and target.read_bytes() == before


def test_a_replay_without_a_verdict_cannot_be_attested(m5: Any, made: Any, home: Any, tmp_path: Path) -> None:
    home.store.delete(f"runs/{made.replay}/verdict")
    done = m5("attest", made.run)
    assert done.status == 3 and f"m5ws reproduce {made.run}" in done.err


def test_attest_with_an_invalid_key_writes_no_file(m5: Any, made: Any, key: Path, tmp_path: Path) -> None:
    target = tmp_path / "it.json"
    for wrong in (tmp_path / "absent", _allowed(key)):
        done = m5("attest", made.run, "--key", wrong, "-o", target)
        assert done.status == 2 and "ssh-keygen" in done.err and str(wrong) in done.err and not target.exists()


def test_bytes_without_a_signature_have_no_key_fingerprint() -> None:
    head = b"-----BEGIN SSH SIGNATURE-----\n"
    for wrong in (b"", head, head + b"!\n", head + base64.b64encode(b"SSHSIG\0\0\0\1\xff\xff\xff\xffkey")):
        assert ssh_signatures.keyid(wrong) == ""


# --- without m5ws ----------------------------------------------------------------------------------


def _commands(*, b3sum: bool) -> str:
    """Return the commands of the page, as a script that ends at the first that fails."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    return "\n".join(["set -e", *(block for block in blocks if b3sum or "b3sum" not in block)])


def _by_hand(folder: Path, file: Path, store: Path, allowed: Path, *, b3sum: bool = False) -> "tuple[int, str]":
    folder.mkdir(exist_ok=True)
    told = {"FILE": str(file), "STORE": str(store), "ALLOWED": str(allowed), "SIGNER": _SIGNER}
    done = subprocess.run(
        ["bash", "-c", _commands(b3sum=b3sum)], cwd=folder, env=os.environ | told, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_the_commands_of_the_page_check_a_statement_without_m5ws(
    place: Path, made: Any, signed: Path, key: Path, tmp_path: Path
) -> None:
    store, allowed = place / ".m5ws" / "store", _allowed(key)
    status, said = _by_hand(tmp_path / "hand", signed, store, allowed)
    assert status == 0 and f'Good "m5ws" signature for {_SIGNER}' in said and '"outcome": "reproduced"' in said

    for where, told in (
        (f"runs/{made.replay}/verdict", f"runs/{made.replay}/verdict: FAILED"),
        (f"runs/{made.run}/ledger/0001/0/00000000", "not the ledger that was compared"),
    ):
        data = (store / where).read_bytes()
        (store / where).chmod(0o644)
        (store / where).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        status, said = _by_hand(tmp_path / "hand", signed, store, allowed)
        assert status != 0 and told in said
        (store / where).write_bytes(data)

    eve = _allowed(_key(tmp_path, "eve"))
    assert _by_hand(tmp_path / "hand", signed, store, eve)[0] != 0
    _edit(signed, b'"steps":3', b'"steps":4')
    status, said = _by_hand(tmp_path / "hand", signed, store, allowed)
    assert status != 0 and "incorrect signature" in said.lower()


@pytest.mark.services
def test_the_command_of_the_page_reads_every_object_by_b3sum(
    place: Path, made: Any, signed: Path, key: Path, tmp_path: Path
) -> None:
    if shutil.which("b3sum") is None:
        loud_skip("the page's command for b3sum: it is not installed (Debian: apt-get install b3sum)")
    store, allowed = place / ".m5ws" / "store", _allowed(key)
    assert _by_hand(tmp_path / "hand", signed, store, allowed, b3sum=True)[0] == 0
    one = next(path for path in (store / "objects").rglob("*") if path.is_file())
    one.chmod(0o644)
    one.write_bytes(one.read_bytes() + b" ")
    assert _by_hand(tmp_path / "hand", signed, store, allowed, b3sum=True)[0] != 0
