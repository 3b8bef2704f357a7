"""`m5ws verify`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.attest.claims import StatementProblem
    from m5ws.attest.ssh_signatures import SignatureCheck
    from m5ws.attest.verify import Verification
    from m5ws.records.attestation import Statement

DOES_NOT_HOLD = 1


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification. `store` is None if no store was used."""

    holds: bool
    run: str
    outcome: str
    reason: str
    signatures: "tuple[SignatureCheck, ...]"
    store: "Verification | None"
    findings: "tuple[StatementProblem, ...]"
    not_checked: tuple[str, ...]


@click.command("verify")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--allowed-signers",
    "allowed",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Accepted signers, as in ssh-keygen(1). An accepted signer must have signed.",
)
@click.option(
    "--store/--no-store",
    "with_store",
    default=True,
    show_default=True,
    help="Compare the statement with the workspace's store.",
)
@click.option("--read-data", is_flag=True, help="Read all bytes of the snapshot and the checkpoints too.")
@output.json_command
def command(
    context: click.Context, file: Path, allowed: Path | None, with_store: bool, read_data: bool, as_json: bool
) -> None:
    """Check a verdict written by `m5ws attest`.

    These are checked: the signature (by ssh-keygen), the statement's consistency, and the statement against the store.
    Each file that it names must have its digest. Ledgers must be complete and unbroken. Run, verdicts, checkpoints and
    environments in the store must match the statement. All failures are listed, and so are the parts that were not
    checked. --no-store checks the file alone and requires no workspace.

    Exit status: 0 valid, 1 not valid, 2 not a statement, 3 something is missing.

    \b
    Examples:
      m5ws verify 7c1d.verdict.json --allowed-signers team.allowed
      m5ws verify 7c1d.verdict.json --read-data
    """
    from m5ws.attest import claims
    from m5ws.records import attestation

    envelope, body = attestation.opened(file.read_bytes(), str(file))
    signed = claims.signatures(envelope, body, allowed)
    findings = claims.unsigned(signed, required=allowed is not None)
    statement = attestation.statement(body, str(file))
    findings += claims.contradictions(statement)
    checked = _against_store(context, statement, read_data=read_data) if with_store else None
    findings += checked.findings if checked is not None else ()
    predicate = statement.predicate
    report = Report(
        holds=not findings,
        run=predicate.run,
        outcome=predicate.outcome,
        reason=predicate.reason,
        signatures=tuple(signed),
        store=checked,
        findings=tuple(findings),
        not_checked=tuple(_not_checked(signed, checked, asked=allowed is not None)),
    )
    output.print_json(report) if as_json else output.echo(_text(report))
    context.exit(0 if report.holds else DOES_NOT_HOLD)


def _against_store(context: click.Context, statement: "Statement", *, read_data: bool) -> "Verification":
    from m5ws.attest import verify

    # Check the store itself, not this machine's cache of it.
    repo = names.workspace(context).repository(near=False)
    with progress.Bar() as bar:
        return verify.check(repo, statement, read_data=read_data, progress=bar)


def _not_checked(signed: "list[SignatureCheck]", checked: "Verification | None", *, asked: bool) -> list[str]:
    lines = []
    if not signed:
        lines.append("the author: the statement is not signed")
    elif not asked:
        lines.append("the signer: `--allowed-signers FILE` lists the accepted keys")
    if checked is None:
        lines.append("the store (`--no-store`)")
    elif checked.present:
        lines.append(f"the bytes of {checked.present:,} existing objects: `--read-data` reads them")
    return lines


def _text(report: Report) -> str:
    lines = [f"{'HOLDS' if report.holds else 'DOES NOT HOLD'}: run {report.run}, {report.outcome}"]
    lines.append(f"  reason: {report.reason}")
    if report.findings:
        lines += ["", *(f"{finding.what}: {finding.detail}" for finding in report.findings)]
    for signature in report.signatures:
        lines += ["", f"signature: {_signature(signature)}"]
    if report.store is not None:
        store = report.store
        checked = f"{store.files:,} files by digest, {store.chains:,} ledgers with {store.events:,} events"
        lines += ["", f"store: {checked}, {store.read:,} objects read"]
        lines += [f"  since then: {note}" for note in store.notes]
    if report.not_checked:
        lines += ["", "not checked:", *(f"  {part}" for part in report.not_checked)]
    return "\n".join(lines)


def _signature(signed: "SignatureCheck") -> str:
    key = f"key {signed.keyid}" if signed.keyid else "no SSH key"
    by = f"by {signed.signer}, {key}" if signed.signer else f"by {key}"
    return f"{'good' if signed.good else 'not good'}, {by}"
