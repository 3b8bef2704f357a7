"""SSH signatures, through OpenSSH's own `ssh-keygen -Y` (8.2 or newer): m5ws has no cryptography of its own.

Whose key it is, an allowed-signers file says, in the format of ssh-keygen(1). All signatures are for the namespace
`m5ws`: one that was made for git, or for a login, is good for nothing here.
"""

import base64
import binascii
import hashlib
import subprocess
import tempfile
from pathlib import Path

from m5ws.attest.interface import Signed
from m5ws.errors import M5Error
from m5ws.records.attestation import NAMESPACE

_SIGN_S = 300.0
"""A person may be typing a passphrase, or looking for a key to touch."""
_CHECK_S = 60.0
_BEGIN, _END = b"-----BEGIN SSH SIGNATURE-----", b"-----END SSH SIGNATURE-----"
_MAGIC = b"SSHSIG\0\0\0\1"


class NoSshKeygen(M5Error):
    """`ssh-keygen` is not there, or does not answer."""

    exit_code = 3
    hint = "Install OpenSSH 8.2 or newer (Debian: openssh-client)."


class NotSigned(M5Error):
    """`ssh-keygen` did not sign; the message is its own."""

    hint = "`--key` names a private key of SSH; `ssh-keygen -t ed25519 -f FILE` makes one."


class SshSignatures:
    """`Signatures`."""

    def sign(self, key: Path, data: bytes) -> bytes:
        """Return an armoured signature of `data`. Raises NotSigned, NoSshKeygen. A passphrase is asked for at once."""
        done = _ssh_keygen(("-Y", "sign", "-f", str(key), "-n", NAMESPACE), data, _SIGN_S)
        if done.returncode != 0 or not self.keyid(done.stdout):
            said = done.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
            raise NotSigned(f"ssh-keygen did not sign with {key}: {said[-1] if said else f'status {done.returncode}'}")
        return done.stdout

    def keyid(self, signature: bytes) -> str:
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

    def check(self, signature: bytes, data: bytes, allowed: Path | None) -> Signed:
        """Return what a signature of `data` is worth. Raises NoSshKeygen."""
        keyid = self.keyid(signature)
        with tempfile.TemporaryDirectory(prefix="m5ws-signature-") as folder:
            file = Path(folder) / "signature"
            file.write_bytes(signature)
            if allowed is None:
                done = _ssh_keygen(("-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(file)), data, _CHECK_S)
                return Signed(good=done.returncode == 0, keyid=keyid)
            said = ("-f", str(allowed), "-s", str(file))
            found = _ssh_keygen(("-Y", "find-principals", *said), b"", _CHECK_S)
            for name in found.stdout.decode("utf-8", "surrogateescape").splitlines() if found.returncode == 0 else ():
                done = _ssh_keygen(("-Y", "verify", *said, "-n", NAMESPACE, "-I", name), data, _CHECK_S)
                if done.returncode == 0:
                    return Signed(good=True, keyid=keyid, signer=name)
        return Signed(good=False, keyid=keyid)


def _ssh_keygen(arguments: tuple[str, ...], data: bytes, timeout_s: float) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments], input=data, capture_output=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError as error:
        raise NoSshKeygen("there is no `ssh-keygen` to work with SSH signatures") from error
    except subprocess.TimeoutExpired as error:
        raise NoSshKeygen(f"`ssh-keygen {' '.join(arguments[:2])}` did not end within {timeout_s:.0f} s") from error
