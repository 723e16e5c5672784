"""How the cost of a round grows: with the devices sampled, the devices in existence, local epochs, the model's size.

    python -m benchmarks.growth                  a quarter of an hour on two cores
    python -m benchmarks.growth --tiny           small points, to see that it works

Each point is a process of its own, so that its peak memory is its own. Figures go to the results file, plots to
docs/benchmarks/.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import results

ROOT = Path(__file__).parent.parent
PLOTS = ROOT / "docs" / "benchmarks"
FEATURES, CLASSES = 60, 10
WARM_UP = 32  # rounds, so that memory has been touched, too
MORE = 1000  # rounds that follow


@dataclass(frozen=True)
class Point:
    """One setting: FedBC, batch 20, on random data with equally many examples on every device."""

    devices: int = 1000
    sample: int = 10
    epochs: int = 5
    hidden: int | None = None
    """hidden units of an MLP; None is the logistic model"""
    examples: int = 40
    """training examples per device"""
    features: int = FEATURES
    rounds: int = 96
    """rounds that are timed; the first ones compile and are not"""


def series(tiny: bool) -> dict[str, tuple[str, list[Point]]]:
    """The points of each question, with the name of the field that varies."""
    if tiny:
        return {"sampled": ("sample", [Point(devices=50, sample=s, rounds=2) for s in (5, 10)])}
    # Small data: a million devices with 8 examples of 10 features are 0.3 GB.
    small = {"examples": 8, "features": 10}
    # With 100 features and 10 classes a hidden unit has 111 parameters.
    hidden = [9, 90, 900, 9_000, 90_000]
    return {
        "sampled": ("sample", [Point(devices=2000, sample=s, examples=200) for s in (10, 100, 1000)]),
        "existing": ("devices", [Point(devices=n, **small) for n in (30, 1_000, 100_000, 1_000_000)]),
        "epochs": ("epochs", [Point(epochs=e) for e in (1, 2, 5, 10, 20, 50)]),
        "parameters": ("parameters", [Point(devices=30, hidden=h, features=100, epochs=1, rounds=5) for h in hidden]),
    }


def run_point(point: Point) -> dict[str, Any]:
    """Time rounds at one point, in this process."""
    import numpy as np

    import fedbc
    from fedbc.data.federation import Split, from_splits
    from fedbc.simulation.rounds import Simulation
    from fedbc.simulation.settings import Settings

    imported = _peak_memory()
    draw = np.random.default_rng(0)

    def split(each: int) -> Split:
        rows = point.devices * each
        x = draw.standard_normal((rows, point.features), np.float32)
        y = draw.integers(0, CLASSES, rows, np.int32)
        return Split(x, y, np.arange(point.devices + 1, dtype=np.int64) * each)

    federation = from_splits(split(point.examples), split(max(1, point.examples // 4)), classes=CLASSES)
    if point.hidden is None:
        model = fedbc.models.logistic(point.features, CLASSES)
    else:
        model = fedbc.models.mlp(point.features, point.hidden, CLASSES)
    with_data = _peak_memory()
    began = time.perf_counter()
    run = Simulation(
        fedbc.FedBC(lr=0.01, momentum=0.5),
        model,
        federation,
        Settings(epochs=point.epochs, sample=point.sample, evaluate=("global",), evaluate_every=10**9),
    )
    set_up = time.perf_counter() - began
    # As within a run: more rounds follow, always.
    seconds = [run.advance(ahead=MORE)["seconds"] for _ in range(WARM_UP + point.rounds)][WARM_UP:]
    return {
        **asdict(point),
        "parameters": run.spec["model"]["parameters"],
        "seconds": seconds,
        "set_up_seconds": set_up,
        "steps": int(run.planner.batching.steps(federation.train.sizes[: point.sample], point.epochs).sum()),
        "peak_memory": {"imported": imported, "with_data": with_data, "after_rounds": _peak_memory()},
        "data_bytes": sum(a.nbytes for s in (federation.train, federation.test) for a in (s.x, s.y, s.offsets)),
        "devices_touched": run.store.count,
    }


def _peak_memory() -> int:
    """Bytes; Linux counts in kilobytes, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def state_bytes() -> dict[str, dict[str, int]]:
    """The memory that one device's state takes, for each method and each of the paper's models."""
    import jax

    import fedbc
    from fedbc.algorithms import ALGORITHMS
    from fedbc.algorithms.base import Context
    from fedbc.simulation.store import DeviceStore

    def size(algorithm: Any, model: Any) -> int:
        def state() -> Any:
            context = Context(*(jax.numpy.ones((), int) for _ in range(3)))
            return algorithm.init_device(model.init(jax.random.key(0)), context)

        return DeviceStore(jax.eval_shape(state), 1).bytes_per_device

    models = {name: getattr(fedbc.models, name)() for name in ("logistic", "mlp", "cnn", "lstm")}
    return {name: {m: size(cls(), model) for m, model in models.items()} for name, cls in ALGORITHMS.items()}


def measured(point: Point) -> dict[str, Any]:
    """A point in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.growth", "--point", json.dumps(asdict(point))]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


AXES = {
    "sampled": "devices sampled a round",
    "existing": "devices in existence (10 sampled)",
    "epochs": "local epochs E",
    "parameters": "parameters of the model",
}


def draw_plot(name: str, field: str, points: list[dict[str, Any]], folder: Path) -> Path:
    """The median time of a round against what varies, with the quartiles; memory beside it for devices in existence."""
    import numpy as np
    from matplotlib.figure import Figure

    from fedbc.drawing import COLOURS, save_figure

    panels = 2 if name == "existing" else 1
    figure = Figure(figsize=(4.6 * panels, 3.4), layout="constrained")
    time_axes, *rest = figure.subplots(1, panels, squeeze=False)[0]
    x = [p[field] for p in points]
    low, middle, high = np.percentile([1e3 * np.asarray(p["seconds"]) for p in points], [25, 50, 75], axis=1)
    time_axes.errorbar(x, middle, [middle - low, high - middle], marker="o", capsize=3, color=COLOURS[0], label="fedbc")
    if name == "existing":
        time_axes.set_ylim(bottom=0)  # it should be flat: a logarithmic axis would magnify noise
    else:
        # From the last point, where fixed costs weigh least.
        line = [middle[-1] * v / x[-1] for v in x]
        time_axes.plot(x, line, "--", color=COLOURS[6], linewidth=1, label="proportional")
        time_axes.set_yscale("log")
    time_axes.set_ylabel("milliseconds a round (median, quartiles)")
    for axes in rest:
        axes.plot(x, [p["peak_memory"]["after_rounds"] / 1e9 for p in points], "o-", color=COLOURS[1], label="process")
        axes.plot(x, [p["data_bytes"] / 1e9 for p in points], "s--", color=COLOURS[2], label="the data alone")
        axes.set_ylabel("peak memory, GB")
        axes.set_ylim(bottom=0)
    for axes in figure.axes:
        axes.set_xscale("log")
        axes.set_xlabel(AXES[name])
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.legend(frameon=False, fontsize=9)
    folder.mkdir(parents=True, exist_ok=True)
    return save_figure(figure, folder / f"{name}.png")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=results.DEFAULT, help="results file, its section is replaced")
    parser.add_argument("--plots", type=Path, default=PLOTS, help="folder for the plots")
    parser.add_argument("--tiny", action="store_true", help="a few small points")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.point:
        print(json.dumps(run_point(Point(**json.loads(options.point)))))
        return
    growth: dict[str, Any] = {}
    for name, (field, points) in series(options.tiny).items():
        growth[name] = []
        for point in points:
            print(f"{name}: {point}", file=sys.stderr, flush=True)
            growth[name].append(measured(point))
        draw_plot(name, field, growth[name], options.plots)
    results.update(options.out, "growth", value={"series": growth, "state_bytes": state_bytes()})


if __name__ == "__main__":
    main()
