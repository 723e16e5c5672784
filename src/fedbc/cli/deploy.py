"""`fedbc deploy`: the app folder and the keys of a federation of real devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedbc.cli import options
from fedbc.cli.run import specifications
from fedbc.errors import InputError
from fedbc.runs import OWN


@click.group("deploy", short_help="An app folder and keys for real devices, with Flower.")
def deploy_group() -> None:
    """Prepare a federation of real devices; `flwr run` starts it (docs/deploy.md)."""


@deploy_group.command("init", short_help="Write a Flower app folder.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--algorithm", default="fedbc", show_default=True, help="The method; `fedbc list` names all of them.")
@click.option("--data", "data_name", help="Your own tables: a file, or a folder with one for each device.")
@click.option("--model", "model_name", help="A model of fedbc's, or your own, my_model.py:make. [default: logistic]")
@click.option("--devices", type=int, help="How many devices there are. [default: as the data say, or 3]")
@click.option("--rounds", default=20, show_default=True, help="How many rounds to run.")
@click.option("--address", default="127.0.0.1:8000", show_default=True, help="Where devices reach the server.")
@click.option("--secure", is_flag=True, help="Secure aggregation: the server learns sums over devices only.")
@options.of_own_tables
def init_command(
    folder: Path,
    algorithm: str,
    data_name: str | None,
    model_name: str | None,
    devices: int | None,
    rounds: int,
    address: str,
    secure: bool,
    **values: Any,
) -> None:
    """Write a Flower app to FOLDER: settings, a data function to fill in, scripts that start server and devices.

    \b
    fedbc deploy init my-federation --devices 3
    fedbc deploy init my-federation --data clinics.csv --label diagnosis --device clinic

    With --data each device reads a table of its own: the data give the names of devices and classes, the rule by which
    columns become numbers, and rows of each device to try the app with (FOLDER/data).
    """
    from fedbc.flower import write_app

    own = None
    if data_name is not None or model_name is not None or any(v is not None for v in values.values()):
        if data_name is None:
            raise InputError("data is missing: --model and options of tables go with --data and a table of your own")
        if options.named_data(data_name)["name"] != OWN:
            raise InputError(
                f"data={data_name!r} is not yours: without --data, the app has made-up data to try it with"
            )
        if devices is not None:
            raise InputError("--devices and --data cannot both be given: the data say how many devices there are")
        own = specifications((algorithm,), data_name, model_name, None, values)[algorithm]
    count = 3 if devices is None else devices
    made = write_app(folder, algorithm=algorithm, devices=count, rounds=rounds, address=address, own=own, secure=secure)
    for file in made:
        click.echo(str(file))


@deploy_group.command("keys", short_help="Make an authority, certificates and device keys.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--devices", default=3, show_default=True, help="How many devices get a key.")
@click.option("--host", "hosts", multiple=True, help="Name or address of the server; may be repeated.")
@click.option("--days", default=365, show_default=True, help="How long the server's certificate is valid.")
@click.option("--renew", is_flag=True, help="Make a new server certificate, by the same authority.")
def keys_command(folder: Path, devices: int, hosts: tuple[str, ...], days: int, renew: bool) -> None:
    """Make what is missing in FOLDER: TLS authority and certificate, one OpenSSH key pair per device."""
    from fedbc.flower import make_keys

    made = make_keys(folder, devices=devices, hosts=hosts, days=days, renew=renew)
    for file in made:
        click.echo(str(file))
    if not made:
        click.echo(f"nothing is missing in {folder}")


FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
ADDRESS = click.option("--address", help="Where the SuperLink is, if the folder's scripts do not tell.")


@deploy_group.command("pack", short_help="Make a folder for each machine.")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--folder", type=FOLDER, default=".", help="The app's folder.")
def pack_command(target: Path, folder: Path) -> None:
    """Copy into TARGET what the server and each device need, and nothing else; the authority's key stays here."""
    from fedbc.flower.control import pack

    for machine, files in pack(folder, target).items():
        click.echo(f"{target / machine}: {', '.join(str(file.relative_to(target / machine)) for file in files)}")


@deploy_group.command("register", short_help="Register the devices' public keys.")
@click.option("--folder", type=FOLDER, default=".", help="The app's folder.")
@ADDRESS
def register_command(folder: Path, address: str | None) -> None:
    """Tell the SuperLink which keys to trust: those in keys/device-*.pub. Those that it knows stay as they are."""
    from fedbc.flower.doctor import control_of

    for device, done in control_of(folder, address).register().items():
        click.echo(f"device {device} {done}")


@deploy_group.command("revoke", short_help="Refuse a device's key from now on.")
@click.argument("device", type=click.IntRange(min=0))
@click.option("--folder", type=FOLDER, default=".", help="The app's folder.")
@ADDRESS
def revoke_command(device: int, folder: Path, address: str | None) -> None:
    """Have the key of DEVICE refused; runs go on without it. A new key gives it its place back."""
    from fedbc.flower.doctor import control_of

    for done in control_of(folder, address).revoke(device):
        click.echo(f"device {device}: {done}")


@deploy_group.command("status", short_help="Who is there, and how the runs stand.")
@click.option("--folder", type=FOLDER, default=".", help="The app's folder, on the server.")
@ADDRESS
def status_command(folder: Path, address: str | None) -> None:
    """Say which devices are connected and, of the latest runs, the round, who lags, and whose answers were not used."""
    from fedbc.flower.doctor import status

    for line in status(folder, address):
        click.echo(line)


@deploy_group.command("doctor", short_help="Look for what is wrong, on the server or a device.")
@click.option("--folder", type=FOLDER, default=".", help="The app's folder, or a device's.")
@ADDRESS
def doctor_command(folder: Path, address: str | None) -> None:
    """Look at versions, disk, keys, certificates, the connection, clocks and who is registered.

    The exit code is 1 if something is wrong.
    """
    from fedbc.flower.doctor import look

    found = look(folder, address)
    for finding in found:
        click.echo(f"{'well ' if finding.is_well else 'WRONG'}  {finding.what}")
    if not all(finding.is_well for finding in found):
        sys.exit(1)


@deploy_group.command("units", short_help="Write systemd's units for this machine.")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--folder", type=FOLDER, default=".", help="The app's folder, or a device's.")
@click.option("--memory", default="75%", show_default=True, help="The most memory that each service may use.")
def units_command(target: Path, folder: Path, memory: str) -> None:
    """Write to TARGET, such as /etc/systemd/system, a unit for each script that this machine runs."""
    from fedbc.flower.units import write_units

    for file in write_units(folder, target, path=os.environ.get("PATH", os.defpath), memory=memory):
        click.echo(str(file))


def _hands_on(name: str, short_help: str) -> Callable[[Callable], click.Command]:
    """A command that hands its arguments on."""
    context = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    return deploy_group.command(name, short_help=short_help, hidden=True, context_settings=context)


@_hands_on("superlink", "Flower's SuperLink, guarded; superlink.sh calls it.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def superlink_command(arguments: tuple[str, ...]) -> None:
    """Run Flower's SuperLink with a guard in front, with these arguments of `flower-superlink`."""
    from fedbc.flower.superlink import main

    main(list(arguments))


@_hands_on("superexec", "Flower's SuperExec; superexec.sh calls it.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def superexec_command(arguments: tuple[str, ...]) -> None:
    """Run Flower's SuperExec, with these arguments of `flower-superexec`."""
    from fedbc.flower.superexec import main

    main(list(arguments))


@_hands_on("node", "A device; supernode.sh calls it.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def node_command(arguments: tuple[str, ...]) -> None:
    """Run a device."""
    from fedbc.flower.node import main

    main(list(arguments))
