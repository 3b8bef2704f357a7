"""`m5ws attest`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.records.attestation import Predicate


@click.command("attest")
@click.argument("run", type=names.Id(("run",)))
@click.option(
    "--key", type=click.Path(path_type=Path), metavar="FILE", help="Sign with this SSH private key (by ssh-keygen)."
)
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path), metavar="FILE", help="Write here, not to stdout."
)
@output.json_option
@click.pass_context
def command(context: click.Context, run: str, key: Path | None, target: Path | None, as_json: bool) -> None:
    """Write the verdict on a run down for others to check.

    What is written is an in-toto statement in a DSSE envelope. It names, by digest, the run, its snapshot,
    checkpoints, segments, environments and ledgers, and the newest verdict on the whole of it and on each
    segment; of a RUN that is a replay, its own verdict alone. Verdicts that it does not stand on are listed. It
    is JSON, and `m5ws verify`, or ssh-keygen and sha256sum, check it.

    \b
    Examples:
      m5ws attest 7c1d -o 7c1d.verdict.json
      m5ws attest 7c1d --key ~/.ssh/id_ed25519 -o 7c1d.verdict.json
    """
    from m5ws import workspace
    from m5ws.attest import attest
    from m5ws.records import attestation
    from m5ws.repository import ids

    if target is not None and target.exists():
        raise UsageError(f"{target} is there already", hint="Give another name, or move it away.")
    repo = names.settled(names.workspace(context))
    statement = attest.build(repo, ids.resolve(repo, run, ("run",))[1])
    body = attestation.payload(statement)
    signed: tuple[attestation.Signature, ...] = ()
    if key is not None:
        port = workspace.signatures()
        armoured = port.sign(key, attestation.pae(attestation.PAYLOAD_TYPE, body))
        signed = (attestation.Signature(sig=attestation.to_base64(armoured), keyid=port.keyid(armoured)),)
    data = attestation.envelope(body, signed)
    lines = _text(statement.predicate, signed[0].keyid if signed else None)
    if target is None:
        output.echo(data.decode(), nl=False)
        output.note(lines)
        return
    with target.open("xb") as file:
        file.write(data)
    told = statement.predicate
    document = {
        "file": target,
        "run": told.run,
        "outcome": told.outcome,
        "reason": told.reason,
        "verdicts": len(told.verdicts),
        "other_verdicts": told.other_verdicts,
        "keyid": signed[0].keyid if signed else None,
    }
    output.print_json(document) if as_json else output.echo(f"{target}\n{lines}")


def _text(told: "Predicate", keyid: str | None) -> str:
    count = f"{len(told.verdicts)} verdict{'s' if len(told.verdicts) > 1 else ''}"
    lines = [f"{told.outcome.upper()}: run {told.run}, by {count}", f"  {told.reason}"]
    lines += [f"  not among them: replay {one.replay}, {one.outcome}: {one.why}" for one in told.other_verdicts]
    lines.append(f"  signed by key {keyid}" if keyid else "  not signed: it shows what is said, and not who says it")
    return "\n".join(lines)
