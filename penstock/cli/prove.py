"""`penstock prove`: the contract on a service of the user's own."""

import click

from penstock.cli.options import json_option, nats_login, print_json
from penstock.testing.proof import Outcome, Proof, prove
from penstock.testing.services import service_of

_COLORS = {"holds": "green", "differs": "red", "not tried": "yellow"}


@click.command("prove")
@click.argument("url", envvar="PENSTOCK_PROVE_URL")
@click.option("--yes", is_flag=True, help="Do not ask if the test costs money.")
@json_option("The report as JSON; progress on stderr.")
@click.option("--endpoint", help="The address of DynamoDB, if not AWS.")
@nats_login
def command(*, url: str, yes: bool, as_json: bool, **given: str | None) -> None:
    """Test your own service as penstock's tests test theirs, in ten minutes at most.

    The command tests changes and their order, resuming, lost history, snapshots, and a reader that
    is killed, in a scratch database, table, container or stream, which it always removes. The
    report has versions, and none of your data: send it back. Exit code 0: all holds; 1: something
    differs.

    \b
    penstock prove postgresql://user:password@host/database
    penstock prove nats://user:password@host

    You may set the URL in PENSTOCK_PROVE_URL, so that no list of processes shows it.
    """
    service = service_of(url, **given)
    click.echo(f"makes {service.makes}; removes all of it, and writes to nothing else", err=as_json)
    if service.price and not yes:
        click.confirm(f"{service.price} Go on?", abort=True, err=True)
    proof = prove(service, lambda outcome: _show(outcome, as_json=as_json))
    if as_json:
        print_json(proof.to_json())
    else:
        _summary(proof)
    if not proof.holds:
        raise SystemExit(1)


def _show(outcome: Outcome, *, as_json: bool) -> None:
    click.secho(f"{outcome.result:10}", nl=False, fg=_COLORS[outcome.result], err=as_json)
    time = f"{outcome.seconds:6.1f} s" if outcome.result != "not tried" else " " * 8
    click.echo(f"{time}  {outcome.claim}", err=as_json)
    if outcome.detail:
        click.echo(f"{' ' * 20}{outcome.detail}", err=as_json)


def _summary(proof: Proof) -> None:
    results = [each.result for each in proof.claims]
    counts = ", ".join(f"{results.count(each)} {each}" for each in dict.fromkeys(results))
    drivers = ", ".join(f"{name} {version}" for name, version in proof.drivers.items())
    click.echo(f"{counts} in {proof.seconds:.0f} s")
    click.echo(f"on {proof.service} {proof.version}".rstrip())
    click.echo(f"by penstock {proof.penstock}, {drivers}, Python {proof.python}, {proof.system}")
