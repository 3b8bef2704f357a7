"""`m5ws verify`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.attest.claims import Finding
    from m5ws.attest.interface import Signed
    from m5ws.attest.verify import Checked
    from m5ws.records.attestation import Statement

DOES_NOT_HOLD = 1


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of a statement. `store` is None where it was not held against one."""

    holds: bool
    run: str
    outcome: str
    reason: str
    signatures: "tuple[Signed, ...]"
    store: "Checked | None"
    findings: "tuple[Finding, ...]"
    not_checked: tuple[str, ...]


@click.command("verify")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--allowed-signers",
    "allowed",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Whose signatures count, as in ssh-keygen(1); one of them must have signed.",
)
@click.option(
    "--store/--no-store", "with_store", default=True, show_default=True, help="Hold it against the workspace's store."
)
@click.option("--read-data", is_flag=True, help="Read all bytes of the snapshot and the checkpoints, too.")
@output.json_option
@click.pass_context
def command(
    context: click.Context, file: Path, allowed: Path | None, with_store: bool, read_data: bool, as_json: bool
) -> None:
    """Check a verdict that `m5ws attest` wrote.

    Its signature is checked, by ssh-keygen; that it does not contradict itself; and against the store, that each
    file that it names has the digest it is named by, that the ledgers are those it was made of, with unbroken
    chains, and that run, verdicts, checkpoints and environments say what it says. Everything that does not hold is
    named, and so is what was not checked. `--no-store` checks the file alone, and needs no workspace.

    Exit status: 0 it holds, 1 it does not, 2 it is no such file, 3 something it needs is missing.

    \b
    Examples:
      m5ws verify 7c1d.verdict.json --allowed-signers team.allowed
      m5ws verify 7c1d.verdict.json --read-data
    """
    from m5ws import workspace
    from m5ws.attest import claims
    from m5ws.records import attestation

    envelope, body = attestation.opened(file.read_bytes(), str(file))
    signed = claims.signatures(envelope, body, workspace.signatures(), allowed)
    findings = claims.unsigned(signed, required=allowed is not None)
    statement = attestation.statement(body, str(file))
    findings += claims.contradictions(statement)
    checked = _against_store(context, statement, read_data=read_data) if with_store else None
    findings += checked.findings if checked is not None else ()
    told = statement.predicate
    report = Report(
        holds=not findings,
        run=told.run,
        outcome=told.outcome,
        reason=told.reason,
        signatures=tuple(signed),
        store=checked,
        findings=tuple(findings),
        not_checked=tuple(_not_checked(signed, checked, asked=allowed is not None)),
    )
    output.print_json(report) if as_json else output.echo(_text(report))
    context.exit(0 if report.holds else DOES_NOT_HOLD)


def _against_store(context: click.Context, statement: "Statement", *, read_data: bool) -> "Checked":
    from m5ws.attest import verify

    # What is checked is the store, not the copies of it that this machine has.
    repo = names.workspace(context).repository(near=False)
    with progress.Bar() as bar:
        return verify.check(repo, statement, read_data=read_data, progress=bar)


def _not_checked(signed: "list[Signed]", checked: "Checked | None", *, asked: bool) -> list[str]:
    lines = []
    if not signed:
        lines.append("who says so: it is not signed")
    elif not asked:
        lines.append("whose key signed it: `--allowed-signers FILE` names the keys that count")
    if checked is None:
        lines.append("what it says of the store (`--no-store`)")
    elif checked.present:
        lines.append(f"the bytes of {checked.present:,} objects, which are there: `--read-data` reads them")
    return lines


def _text(report: Report) -> str:
    lines = [f"{'HOLDS' if report.holds else 'DOES NOT HOLD'}: run {report.run}, {report.outcome}"]
    lines.append(f"  it says: {report.reason}")
    if report.findings:
        lines += ["", *(f"{one.what}: {one.detail}" for one in report.findings)]
    for one in report.signatures:
        lines += ["", f"signature: {_signature(one)}"]
    if report.store is not None:
        store = report.store
        checked = f"{store.files:,} files by digest, {store.chains:,} ledgers with {store.events:,} events"
        lines += ["", f"store: {checked}, {store.read:,} objects read"]
        lines += [f"  since then: {note}" for note in store.notes]
    if report.not_checked:
        lines += ["", "not checked:", *(f"  {what}" for what in report.not_checked)]
    return "\n".join(lines)


def _signature(one: "Signed") -> str:
    by = f"by {one.signer}, key {one.keyid}" if one.signer else f"by key {one.keyid}" if one.keyid else "by no SSH key"
    return f"{'good' if one.good else 'not good'}, {by}"
