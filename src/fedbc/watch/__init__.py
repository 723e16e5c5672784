"""A page in the browser that shows runs while they go: `fedbc watch`."""

from fedbc.watch.server import Server, Watcher

__all__ = ["Server", "Watcher"]
