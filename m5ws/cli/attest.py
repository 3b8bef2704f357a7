"""`m5ws attest`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress
from m5ws.errors import UsageError
from m5ws.wording.lists import count

if TYPE_CHECKING:
    from m5ws.records.attestation import Predicate


@click.command("attest")
@click.argument("run", type=names.Id(("run",)))
@click.option(
    "--key", type=click.Path(path_type=Path), metavar="FILE", help="Sign with this SSH private key (by ssh-keygen)."
)
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE instead of stdout."
)
@output.json_command
def command(context: click.Context, run: str, key: Path | None, target: Path | None, as_json: bool) -> None:
    """Write the verdict on a run to a file that others can check.

    The file is an in-toto statement in a DSSE envelope, as JSON. It names by digest the run, its snapshot,
    checkpoints, segments, environments and ledgers. It contains the newest verdict on the whole run and on each
    segment; for a RUN that is a replay, only its own verdict. It also lists the verdicts that it does not use. `m5ws
    verify` checks the file; so do ssh-keygen and sha256sum.

    \b
    Examples:
      m5ws attest 7c1d -o 7c1d.verdict.json
      m5ws attest 7c1d --key ~/.ssh/id_ed25519 -o 7c1d.verdict.json
    """
    from m5ws.attest import attest, ssh_signatures
    from m5ws.records import attestation

    if target is not None and target.exists():
        raise UsageError(f"{target} already exists", hint="Choose another --output, or move the file away.")
    with progress.Bar() as bar:
        bar("reading the evidence of the run", 0, 0)
        _, repo, run_id = names.open_run(context, run)
        statement = attest.build(repo, run_id)
    body = attestation.payload(statement)
    signed: tuple[attestation.Signature, ...] = ()
    if key is not None:
        armoured = ssh_signatures.sign(key, attestation.pae(attestation.PAYLOAD_TYPE, body))
        signed = (attestation.Signature(sig=attestation.to_base64(armoured), keyid=ssh_signatures.keyid(armoured)),)
    data = attestation.envelope(body, signed)
    lines = _text(statement.predicate, signed[0].keyid if signed else None)
    if target is None:
        output.echo(data.decode(), nl=False)
        output.print_note(lines)
        return
    with target.open("xb") as file:
        file.write(data)
    predicate = statement.predicate
    document = {
        "file": target,
        "run": predicate.run,
        "outcome": predicate.outcome,
        "reason": predicate.reason,
        "verdicts": len(predicate.verdicts),
        "other_verdicts": predicate.other_verdicts,
        "keyid": signed[0].keyid if signed else None,
    }
    output.print_json(document) if as_json else output.echo(f"{target}\n{lines}")


def _text(predicate: "Predicate", keyid: str | None) -> str:
    by = count(len(predicate.verdicts), "verdict")
    lines = [f"{predicate.outcome.upper()}: run {predicate.run}, by {by}", f"  {predicate.reason}"]
    lines += [
        f"  not used: replay {unused.replay}, {unused.outcome}: {unused.why}" for unused in predicate.other_verdicts
    ]
    lines.append(f"  signed by key {keyid}" if keyid else "  not signed: nothing shows who wrote the statement")
    return "\n".join(lines)
