"""`fedbc watch`: runs in the browser, while they go."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from pathlib import Path

import click
from rich.console import Console

from fedbc import drawing
from fedbc.errors import InputError


@click.command("watch", short_help="Show a running or finished run in the browser.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to serve at; the default is this machine."
)
@click.option("--port", type=int, help="Port; 0 is any that is free. [default: 8765, or the next that is free]")
@click.option("--no-open", is_flag=True, help="Do not open the browser; only say the address.")
def watch_command(run: Path, host: str, port: int | None, no_open: bool) -> None:
    """Show the run in folder RUN, or all runs in it, in the browser; the page goes on by itself as the run does.

    \b
    fedbc run fedbc fedavg --rounds 2000 --out runs/long &
    fedbc watch runs/long

    Ctrl-C ends it; the run is not touched.
    """
    drawing.need()
    from fedbc.watch import Server, Watcher  # Altair takes a second to import

    if port is not None and not 0 <= port <= 65535:
        raise InputError(f"port={port} is not accepted: give a whole number from 0 to 65535")
    watcher = Watcher(run)
    with Server(watcher, host, port) as server:
        # The charts' JavaScript takes two seconds to put together: meanwhile the browser starts.
        threading.Thread(target=watcher.html, daemon=True).start()
        console = Console(soft_wrap=True)
        console.print(f"Watching {run} at {server.url} (Ctrl-C ends it)", highlight=False, markup=False)
        if host in ("0.0.0.0", "::"):
            console.print("Whoever reaches this machine can see it.", highlight=False, markup=False)
        if not no_open and _has_screen():
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            console.print("ended", highlight=False, markup=False)
            sys.stdout.flush()
            os._exit(0)  # at once: a thread in the midst of drawing a page would hold up the interpreter's end


def _has_screen() -> bool:
    """Where there is none, Python would open a browser in the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
