"""What a long command shows on the terminal while it works: how far it is, how fast, how long still, how good so far.

There is one terminal, so a process has one display at a time. A command opens it with `shown`; everything beneath
(runs, sweeps, downloads) adds its bars by `current`, and need not be told whether anybody looks: where standard error
is not a terminal, or nobody opened a display, nothing is shown.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedbc.errors import Notice

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Display", "SweepBars", "current", "download", "notices_told", "shown", "silence"]

Row = Mapping[str, Any]
_display: Display | None = None
_silent = False


@contextlib.contextmanager
def shown(*, quiet: bool = False) -> Iterator[Display]:
    """Open the display, or take part in the one that is open; quiet shows nothing, and `say` is silent, too."""
    global _display
    if _display is not None:
        yield _display
        return
    _display = Display(quiet=quiet)
    try:
        with _display.bars:
            yield _display
    finally:
        _display = None


def current() -> Display:
    """The open display; one that shows nothing if there is none."""
    return _display or Display(quiet=True)


@contextlib.contextmanager
def notices_told() -> Iterator[None]:
    """Fedbc's warnings are told in one line each on standard error, above the bars; others as usual."""
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, Notice):
            usual(message, category, *rest, **more)
            return
        said, display = f"fedbc: warning: {message}", current()
        if display.quiet:
            print(said, file=sys.stderr)
        else:
            display.say(said)

    with warnings.catch_warnings():
        warnings.simplefilter("always", Notice)
        warnings.showwarning = show
        yield


def silence() -> None:
    """Show nothing in this process from now on: a worker shares its parent's terminal, and the parent shows all."""
    global _silent
    _silent = True


@contextlib.contextmanager
def download(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar for a download, called with the bytes that are there and the total; it goes when the download ends."""
    with shown() as display:
        task = display.add(name, None, unit="bytes")

        def show(done: int, total: int | None) -> None:
            display.update(task, done, total=total)

        try:
            yield show
        finally:
            display.bars.remove_task(task)


class Display:
    """The bars of a command."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.bars = _bars(enabled=not quiet and not _silent and sys.stderr is not None and sys.stderr.isatty())
        self._counted: dict[str, TaskID] = {}

    def run(self, name: str, rounds: int) -> Callable[[Row], None]:
        """A bar for a run of so many rounds; the result is to be called with each row of history."""
        task = self.add(name, rounds, unit="round", note="compiling")

        def on_round(row: Row) -> None:
            self.update(task, row["round"], note=score(row) or ("" if row["round"] == 1 else None))

        return on_round

    def sweep(self, name: str, total: int, done: int = 0) -> SweepBars:
        """Bars for many runs: one for all of them, and one for each worker's run of the moment."""
        return SweepBars(self, name, total, done)

    def count(self, name: str, done: int, total: int) -> None:
        """A bar that counts; the name's first call adds it."""
        if name not in self._counted:
            self._counted[name] = self.add(name, total, done, unit="")
        self.update(self._counted[name], done)

    def say(self, text: str) -> None:
        """A line on standard error, above the bars."""
        if not self.quiet:
            self.bars.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def add(self, name: str, total: float | None, done: int = 0, *, unit: str, note: str = "") -> TaskID:
        """A new bar."""
        return self.bars.add_task(name, total=total, completed=done, unit=unit, note=note, pace=Pace())

    def update(self, task: TaskID, done: float, *, note: str | None = None, **fields: Any) -> None:
        """Move a bar."""
        pace = next(t for t in self.bars.tasks if t.id == task).fields["pace"]
        pace.at(done)
        if note is not None:
            fields["note"] = note
        self.bars.update(task, completed=done, **fields)


class SweepBars:
    """The bars of a sweep: the runs that are done, and how far the running ones are."""

    def __init__(self, display: Display, name: str, total: int, done: int) -> None:
        self._display, self._total, self._done, self._failed = display, total, done, 0
        self._all = display.add(name, total, done, unit="run")
        display.update(self._all, done, whole=done)
        self._workers: dict[int, tuple[TaskID, float]] = {}
        self._last = ""

    def begin(self, worker: int, name: str, rounds: int) -> None:
        """A worker takes up a run."""
        self._leave(worker)
        self._workers[worker] = (self._display.add(f"  {name}", rounds, unit="round", note="compiling"), rounds)

    def round(self, worker: int, row: Row) -> None:
        """A worker's run has come to a round."""
        task, _ = self._workers[worker]
        self._display.update(task, row["round"], note=score(row))
        self._move()

    def end(self, worker: int | None, line: Row) -> None:
        """A run has ended with this line of results."""
        if worker is not None:
            self._leave(worker)
        self._done += 1
        self._failed += "error" in line
        found = score(line.get("summary", {}))
        self._last = f"last {found}" if found else self._last
        self._move()

    def close(self) -> None:
        """The workers are gone; the bar for all runs stays."""
        for worker in list(self._workers):
            self._leave(worker)

    def _leave(self, worker: int) -> None:
        if worker in self._workers:
            self._display.bars.remove_task(self._workers.pop(worker)[0])

    def _move(self) -> None:
        # The running runs count in parts, so that the time left is known before the first long one ends.
        parts = {t.id: t.completed for t in self._display.bars.tasks}
        begun = sum(parts[task] / rounds for task, rounds in self._workers.values())
        failed = f"{self._failed} failed" if self._failed else ""
        note = ", ".join(filter(None, (self._last, failed)))
        self._display.update(self._all, self._done + begun, note=note, whole=self._done)


class Pace:
    """How fast something goes, from its first report to its last."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)

    def at(self, done: float) -> None:
        """So much is done now."""
        self._last = (time.monotonic(), done)
        self._first = self._first or self._last

    @property
    def rate(self) -> float | None:
        """Per second; None as long as that cannot be known."""
        if self._first is None or self._last[0] <= self._first[0] or self._last[1] <= self._first[1]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])

    def left(self, total: float) -> float | None:
        """Seconds to go as of now; None as long as that cannot be known."""
        if self.rate is None:
            return None
        return max(0.0, (total - self._last[1]) / self.rate - (time.monotonic() - self._last[0]))


def score(row: Row) -> str:
    """The accuracy that a row of history or a summary has, or its loss, or nothing."""
    for column, factor, unit in (("global_accuracy", 100, " %"), ("local_accuracy", 100, " %"), ("global_loss", 1, "")):
        value = row.get(column)
        if isinstance(value, int | float) and math.isfinite(value):
            return f"{column.replace('_', ' ')} {factor * value:.{1 if unit else 3}f}{unit}"
    return ""


def speed(rate: float | None, unit: str) -> str:
    """A rate as people say it: rounds per second, or seconds per round."""
    if rate is None:
        return ""
    if unit == "bytes":
        return f"{rate / 1e6:.1f} MB/s"
    per = unit or "step"
    return f"{rate:.{0 if rate >= 10 else 1}f} {per}s/s" if rate >= 1 else f"{duration(1 / rate)}/{per}"


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}" if minutes >= 60 else f"{minutes}:{seconds:02d}"


def _bars(*, enabled: bool) -> Progress:
    # Rich takes a tenth of a second to import, and most who import fedbc show nothing.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Amount(ProgressColumn):
        """How much of how much."""

        def render(self, task: Task) -> Text:
            if task.fields["unit"] == "bytes":
                return DownloadColumn().render(task)
            total, done = int(task.total or 0), int(task.fields.get("whole", task.completed))
            return Text(f"{done:>{len(str(total))}}/{total}", style="progress.download")

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(speed(task.fields["pace"].rate, task.fields["unit"]), style="progress.data.speed")

    class Left(ProgressColumn):
        """The time left, or when all is done the time that it took."""

        def render(self, task: Task) -> Text:
            if task.finished:
                return Text(duration(task.finished_time or 0.0), style="progress.elapsed")
            left = task.fields["pace"].left(task.total) if task.total is not None else None
            return Text("" if left is None else f"{duration(left)} left", style="progress.remaining")

    return Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=20),
        Amount(),
        Speed(),
        Left(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        disable=not enabled,
    )
