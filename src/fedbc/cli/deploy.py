"""`fedbc deploy`: the app folder and the keys of a federation of real devices."""

from __future__ import annotations

from pathlib import Path

import click


@click.group("deploy", short_help="An app folder and keys for real devices, with Flower.")
def deploy_group() -> None:
    """Prepare a federation of real devices; `flwr run` starts it (docs/deploy.md)."""


@deploy_group.command("init", short_help="Write a Flower app folder.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--algorithm", default="fedbc", show_default=True, help="The method; `fedbc list` names all of them.")
@click.option("--devices", default=3, show_default=True, help="How many devices there are.")
@click.option("--rounds", default=20, show_default=True, help="How many rounds to run.")
@click.option("--address", default="127.0.0.1:8000", show_default=True, help="Where devices reach the server.")
def init_command(folder: Path, algorithm: str, devices: int, rounds: int, address: str) -> None:
    """Write a Flower app to FOLDER: settings, a data function to fill in, scripts that start server and devices."""
    from fedbc.flower.scaffold import write_app

    for file in write_app(folder, algorithm=algorithm, devices=devices, rounds=rounds, address=address):
        click.echo(str(file))


@deploy_group.command("keys", short_help="Make an authority, certificates and device keys.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--devices", default=3, show_default=True, help="How many devices get a key.")
@click.option("--host", "hosts", multiple=True, help="Name or address of the server; may be repeated.")
@click.option("--days", default=365, show_default=True, help="How long certificates are valid.")
@click.option("--renew", is_flag=True, help="Make a new server certificate, by the same authority.")
def keys_command(folder: Path, devices: int, hosts: tuple[str, ...], days: int, renew: bool) -> None:
    """Make what is missing in FOLDER: TLS authority and certificate, one OpenSSH key pair a device."""
    from fedbc.flower.keys import make_keys

    for file in make_keys(folder, devices=devices, hosts=hosts, days=days, renew=renew):
        click.echo(str(file))
