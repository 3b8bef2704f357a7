"""SSH signatures by OpenSSH's own `ssh-keygen -Y` (8.2 or newer). m5ws has no cryptography of its own.

An allowed-signers file lists the owners of keys, in the format of ssh-keygen(1). All signatures are for the namespace
`m5ws`: a signature for git or for a login is not valid here.
"""

import base64
import binascii
import hashlib
import subprocess
import tempfile
from pathlib import Path

import msgspec

from m5ws.errors import M5Error
from m5ws.records.attestation import NAMESPACE

_SIGN_S = 300.0
"""Time for a person to type a passphrase or to touch a key."""
_CHECK_S = 60.0
_BEGIN, _END = b"-----BEGIN SSH SIGNATURE-----", b"-----END SSH SIGNATURE-----"
_MAGIC = b"SSHSIG\0\0\0\1"


class NoSshKeygen(M5Error):
    """`ssh-keygen` is missing or does not end."""

    exit_code = 3
    hint = "Install OpenSSH 8.2 or newer (Debian: openssh-client)."


class NotSigned(M5Error):
    """`ssh-keygen` did not sign. The message is its own."""

    hint = "Name a private SSH key with `--key`. `ssh-keygen -t ed25519 -f FILE` makes one."


class SignatureCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the check of a signature. `signer` is the name of the key's owner, if the allowed signers list it.

    `keyid` is the fingerprint of the key inside the signature, "" if there is none.
    """

    good: bool
    keyid: str = ""
    signer: str | None = None


def sign(key: Path, data: bytes) -> bytes:
    """Return an armoured signature of `data`. ssh-keygen asks for a passphrase. Raises NotSigned, NoSshKeygen."""
    done = _ssh_keygen(("-Y", "sign", "-f", str(key), "-n", NAMESPACE), data, _SIGN_S)
    if done.returncode != 0 or not keyid(done.stdout):
        lines = done.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
        detail = lines[-1] if lines else f"status {done.returncode}"
        raise NotSigned(f"ssh-keygen did not sign with {key}: {detail}")
    return done.stdout


def keyid(signature: bytes) -> str:
    """Return the key's fingerprint, as `ssh-keygen -l` shows it (PROTOCOL.sshsig: the key follows the version)."""
    armour = signature.partition(_BEGIN)[2].partition(_END)[0]
    try:
        blob = base64.b64decode(b"".join(armour.split()), validate=True)
    except binascii.Error:
        return ""
    size = int.from_bytes(blob[len(_MAGIC) : len(_MAGIC) + 4], "big")
    public = blob[len(_MAGIC) + 4 : len(_MAGIC) + 4 + size]
    if not blob.startswith(_MAGIC) or not public or len(public) != size:
        return ""
    return f"SHA256:{base64.b64encode(hashlib.sha256(public).digest()).decode().rstrip('=')}"


def check(signature: bytes, data: bytes, allowed: Path | None) -> SignatureCheck:
    """Check a signature of `data`. Raises NoSshKeygen."""
    fingerprint = keyid(signature)
    with tempfile.TemporaryDirectory(prefix="m5ws-signature-") as folder:
        file = Path(folder) / "signature"
        file.write_bytes(signature)
        if allowed is None:
            done = _ssh_keygen(("-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(file)), data, _CHECK_S)
            return SignatureCheck(good=done.returncode == 0, keyid=fingerprint)
        files = ("-f", str(allowed), "-s", str(file))
        owners = _ssh_keygen(("-Y", "find-principals", *files), b"", _CHECK_S)
        names = owners.stdout.decode("utf-8", "surrogateescape").splitlines() if owners.returncode == 0 else []
        for name in names:
            done = _ssh_keygen(("-Y", "verify", *files, "-n", NAMESPACE, "-I", name), data, _CHECK_S)
            if done.returncode == 0:
                return SignatureCheck(good=True, keyid=fingerprint, signer=name)
    return SignatureCheck(good=False, keyid=fingerprint)


def _ssh_keygen(arguments: tuple[str, ...], data: bytes, timeout_s: float) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments], input=data, capture_output=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError as error:
        raise NoSshKeygen("SSH signatures need `ssh-keygen`, which is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise NoSshKeygen(f"`ssh-keygen {' '.join(arguments[:2])}` did not end within {timeout_s:.0f} s") from error
