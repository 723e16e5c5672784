"""A slow, readable twin of every method: NumPy, float64, plain loops, softmax regression with its derivatives by hand.

It shares with the package only the draws (who takes part, which rows form which batch). Each function below is one
method, from its paper's equations: it gets the hyper-parameters `h` and a `World`, and gives an `Outcome`. Parameters
are one matrix `w` of shape (features + 1, classes), the last row being the bias.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from fedbc.simulation.schedule import Batching, sample_devices

Matrix = np.ndarray
Batch = tuple[Matrix, np.ndarray]
TWINS: dict[str, Callable[[Any, "World"], "Outcome"]] = {}


def twin(name: str) -> Callable:
    def register(function: Callable) -> Callable:
        TWINS[name] = function
        return function

    return register


# --- softmax regression -----------------------------------------------------------------------------------------------


def probabilities(w: Matrix, x: Matrix) -> Matrix:
    logits = x @ w
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def loss(w: Matrix, batch: Batch) -> float:
    x, y = batch
    return float(-np.log(probabilities(w, x)[np.arange(len(y)), y]).mean())


def gradient(w: Matrix, batch: Batch) -> Matrix:
    x, y = batch
    return x.T @ (probabilities(w, x) - np.eye(w.shape[1])[y]) / len(y)


def hessian_times(w: Matrix, batch: Batch, direction: Matrix) -> Matrix:
    x, y = batch
    p, moved = probabilities(w, x), x @ direction
    return x.T @ (p * (moved - (p * moved).sum(axis=1, keepdims=True))) / len(y)


def curvature(w: Matrix, batch: Batch, turns: int = 20) -> float:
    """The largest eigenvalue of the Hessian, by power iteration from FedBC's start vector, which is a draw, too."""
    keys = jax.random.split(jax.random.key(0), 2)
    bias, weights = (
        np.asarray(jax.random.normal(k, s), float) for k, s in zip(keys, (w[-1].shape, w[:-1].shape), strict=True)
    )
    v = np.concatenate([weights, bias[None]])
    for _ in range(turns):
        v = hessian_times(w, batch, v / np.linalg.norm(v))
    return float(np.linalg.norm(v))


# --- the federation and its draws -------------------------------------------------------------------------------------


@dataclass
class World:
    """The devices' data, and the draws of a run."""

    data: list[Batch]
    initial: Matrix
    rounds: int
    epochs: Any
    batch_size: int | None
    sample: int | None
    seed: int
    local: "Local"
    steps: Any = None
    now: int = 0
    at: tuple[int, int] = (-1, 0)
    """the device that is at work, and how many models it has trained in this round"""

    @property
    def n(self) -> list[int]:
        return [len(y) for _, y in self.data]

    def schedule(self) -> Iterator[tuple[int, list[int]]]:
        for t in range(1, self.rounds + 1):
            self.now = t
            yield t, [int(i) for i in sample_devices(self.seed, t, len(self.data), self.sample)]

    def batches(self, t: int, i: int, a_step: int = 1) -> list[Any]:
        """Device i's batches in round t, one a step; for a_step = 2, pairs of them."""
        x, y = self.data[i]
        self.at = (i, 0)
        if self.batch_size is None:
            amount = Batching(None, self.epochs, a_step, self.steps).amounts(self.seed, t, np.asarray([i]))
            flat = [(x, y)] * (int(amount[0]) * a_step)
        else:
            table = Batching(self.batch_size, self.epochs, a_step, self.steps).table(self.seed, t, i, len(y))
            flat = [(x[rows[rows >= 0]], y[rows[rows >= 0]]) for rows in table]
        return flat if a_step == 1 else list(zip(flat[::2], flat[1::2], strict=True))

    def project(self, z: Matrix) -> Matrix:
        return self.local.project(z)

    def promise(self, i: int) -> tuple[float | None, int]:
        """Device i's epsilon, and every how many steps it is looked at."""
        epsilon, every = self.local.epsilon, self.local.every
        assert every is not None or self.batch_size is not None
        epoch = math.ceil(self.n[i] / (self.batch_size or 1))
        return (epsilon[i] if isinstance(epsilon, list) else epsilon), every or epoch

    def place(self) -> tuple[int, int]:
        i, number = self.at
        self.at = (i, number + 1)
        return i, number


@dataclass
class Outcome:
    z: Matrix
    x: dict[int, Matrix]
    multiplier: dict[int, float] = field(default_factory=dict)
    tolerance: dict[int, float] = field(default_factory=dict)


@dataclass
class Local:
    """What a run may choose of the local steps."""

    clip: float = math.inf
    weight_decay: float = 0.0
    adam: bool = False
    keep: bool = False
    factor: Callable[[int], float] = lambda t: 1.0
    """of the local rates, from the number of rounds before"""
    dual_factor: Callable[[int], float] = lambda t: 1.0
    project: Callable[[Matrix], Matrix] = lambda w: w
    epsilon: Any = None
    """one number, or one per device"""
    every: int | None = 1
    """None for once per epoch"""
    kept: dict[Any, Any] = field(default_factory=dict)
    """what the optimizers remember, by device and number of the model that it trains"""


class Steps:
    """One model's descent on one device in one round."""

    def __init__(self, world: "World", w: Matrix) -> None:
        self.local, self.place = world.local, world.place()
        rest = (np.zeros_like(w), np.zeros_like(w), 0)
        self.m, self.v, self.k = self.local.kept.get(self.place, rest) if self.local.keep else rest

    def move(self, w: Matrix, own: Matrix, extra: Any, lr: float, momentum: float) -> Matrix:
        """One step along the gradient of f_i, `own`, and what the method adds to it."""
        g = own * min(1.0, self.local.clip / np.sqrt((own**2).sum())) + self.local.weight_decay * w + extra
        self.k += 1
        if self.local.adam:
            self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g**2
            move = self.m / (1 - 0.9**self.k) / (np.sqrt(self.v / (1 - 0.999**self.k)) + 1e-8)
        else:
            move = self.m = momentum * self.m + g
        self.local.kept[self.place] = (self.m, self.v, self.k)
        return self.local.project(w - lr * move)


def walk(
    world: "World", w: Matrix, batches: list[Batch], lr: float, momentum: float, extra: Callable = lambda w: 0.0
) -> Matrix:
    """The local steps on the batches, or until the residual is small; `extra(w)` is added to the gradient."""
    return walk_together(world, batches, momentum, (w, lr, extra))[0]


def walk_together(world: "World", batches: list[Batch], momentum: float, *models: Any) -> list[Matrix]:
    """Steps of models (w, rate, extra) on the same batches, or until the residual of each is small."""
    at, steps = [w for w, _, _ in models], [Steps(world, w) for w, _, _ in models]
    i = steps[0].place[0]
    epsilon, every = world.promise(i)
    for k, batch in enumerate(batches, 1):
        at = [
            own.move(w, gradient(w, batch), extra(w), lr, momentum)
            for own, w, (_, lr, extra) in zip(steps, at, models, strict=True)
        ]
        if epsilon is None or k % every:
            continue
        full = [
            gradient(w, world.data[i]) + world.local.weight_decay * w + extra(w)
            for w, (*_, extra) in zip(at, models, strict=True)
        ]
        if max((g**2).sum() for g in full) <= epsilon:
            del batches[k:]  # those who ask for the number of steps get those that were taken
            break
    return at


class Scheduled:
    """Hyper-parameters, the rates being those of the round."""

    def __init__(self, h: Any, world: "World") -> None:
        self.h, self.world = h, world

    def __getattr__(self, name: str) -> Any:
        value, before = getattr(self.h, name), self.world.now - 1
        if name in ("lr", "personal_lr"):
            return value * self.world.local.factor(before)
        return value * self.world.local.dual_factor(before) if name == "dual_lr" else value


def mean(things: list[Matrix], weights: list[float] | None = None) -> Matrix:
    weights = [1.0] * len(things) if weights is None else weights
    total = np.zeros_like(things[0])
    for weight, thing in zip(weights, things, strict=True):
        total = total + weight * thing
    return total / sum(weights)


def server_weights(h: Any, world: World, sampled: list[int]) -> list[float]:
    power = {"examples": 1.0, "root": 0.5, "uniform": 0.0}[h.weights]
    return [float(world.n[i]) ** power for i in sampled]


# --- consensus methods ------------------------------------------------------------------------------------------------


def fedavg_like(h: Any, world: World, server_step: Callable[[Matrix, Matrix], Matrix], mu: float = 0.0) -> Outcome:
    z, x = world.initial, {}
    for t, sampled in world.schedule():
        for i in sampled:
            x[i] = walk(world, z, world.batches(t, i), h.lr, h.momentum, lambda w, z=z: mu * (w - z))
        z = world.project(server_step(z, mean([x[i] for i in sampled], server_weights(h, world, sampled))))
    return Outcome(z, x)


@twin("fedavg")
def fedavg(h: Any, world: World) -> Outcome:
    return fedavg_like(h, world, lambda z, average: average)


@twin("fedprox")
def fedprox(h: Any, world: World) -> Outcome:
    return fedavg_like(h, world, lambda z, average: average, mu=h.mu)


@twin("fedavgm")
def fedavgm(h: Any, world: World) -> Outcome:
    u = np.zeros_like(world.initial)

    def step(z: Matrix, average: Matrix) -> Matrix:
        nonlocal u
        u = h.server_momentum * u + (z - average)
        return z - h.server_lr * u

    return fedavg_like(h, world, step)


def adaptive(h: Any, world: World, second_moment: Callable[[Matrix, Matrix], Matrix]) -> Outcome:
    m = np.zeros_like(world.initial)
    v = np.full_like(world.initial, h.adaptivity**2)

    def step(z: Matrix, average: Matrix) -> Matrix:
        nonlocal m, v
        delta, b1 = average - z, h.server_momentum
        m = b1 * m + (1 - b1) * delta
        v = second_moment(v, delta**2)
        return z + h.server_lr * m / (np.sqrt(v) + h.adaptivity)

    return fedavg_like(h, world, step)


@twin("fedyogi")
def fedyogi(h: Any, world: World) -> Outcome:
    return adaptive(h, world, lambda v, d: v - (1 - h.second_momentum) * d * np.sign(v - d))


@twin("fedadam")
def fedadam(h: Any, world: World) -> Outcome:
    return adaptive(h, world, lambda v, d: h.second_momentum * v + (1 - h.second_momentum) * d)


@twin("fedadagrad")
def fedadagrad(h: Any, world: World) -> Outcome:
    return adaptive(h, world, lambda v, d: v + d)


@twin("qfedavg")
def qfedavg(h: Any, world: World) -> Outcome:
    z, x = world.initial, {}
    for t, sampled in world.schedule():
        L = 1 / h.lr if h.lipschitz is None else h.lipschitz
        numerator, denominator = np.zeros_like(z), 0.0
        for i, weight in zip(sampled, server_weights(h, world, sampled), strict=True):
            F = loss(z, world.data[i])
            x[i] = walk(world, z, world.batches(t, i), h.lr, h.momentum)
            delta = L * (z - x[i])
            numerator = numerator + weight * F**h.q * delta
            denominator += weight * (h.q * F ** (h.q - 1) * (delta**2).sum() + L * F**h.q)
        z = world.project(z - numerator / denominator)
    return Outcome(z, x)


@twin("scaffold")
def scaffold(h: Any, world: World) -> Outcome:
    z, x, N = world.initial, {}, len(world.data)
    c, own = np.zeros_like(z), {}
    for t, sampled in world.schedule():
        for i in sampled:
            ci, batches = own.get(i, np.zeros_like(z)), world.batches(t, i)
            x[i] = walk(world, z, batches, h.lr, h.momentum, lambda w, ci=ci, c=c: c - ci)
            if h.option == "I":
                own[i] = gradient(z, world.data[i])
            else:
                # with momentum, step k of K is felt in all later ones: Σ_j m^j for j = 0..K-k
                reach = sum(h.momentum**j for k in range(1, len(batches) + 1) for j in range(len(batches) - k + 1))
                own[i] = ci - c + (z - x[i]) / (h.lr * reach)
        z = world.project(z + h.server_lr * (mean([x[i] for i in sampled], server_weights(h, world, sampled)) - z))
        members = sorted(own)
        weights = server_weights(h, world, members)
        # absent devices that never took part count with c_i = 0 and the mean weight of the others
        c = mean([own[i] for i in members], weights) * len(members) / N
    return Outcome(z, x)


@twin("fedpd")
def fedpd(h: Any, world: World) -> Outcome:
    z, x, dual, x0 = world.initial, {}, {}, {}
    for t, sampled in world.schedule():
        for i in sampled:
            lam = dual.get(i, np.zeros_like(z))
            begin = x.get(i, z)
            x[i] = walk(
                world, begin, world.batches(t, i), h.lr, h.momentum, lambda w, lam=lam, z=z: lam + (w - z) / h.eta
            )
            dual[i] = lam + (x[i] - z) / h.eta
            x0[i] = x[i] + h.eta * dual[i]
        z = world.project(mean(list(x0.values())))
    return Outcome(z, x)


@twin("fedadmm")
def fedadmm(h: Any, world: World) -> Outcome:
    z, N, x = world.initial, len(world.data), {}
    y = [np.zeros_like(z) for _ in range(N)]
    augmented = [world.initial for _ in range(N)]
    for t, sampled in world.schedule():
        change = np.zeros_like(z)
        for i in sampled:
            begin = x.get(i, z) if h.start == "local" else z
            batches = world.batches(t, i)
            x[i] = walk(world, begin, batches, h.lr, h.momentum, lambda w, i=i, z=z: y[i] + h.rho * (w - z))
            y[i] = y[i] + h.rho * (x[i] - z)
            new = x[i] + y[i] / h.rho
            change, augmented[i] = change + new - augmented[i], new
        eta = len(sampled) / N if h.server_lr is None else h.server_lr
        z = world.project(z + eta * change / len(sampled))
    return Outcome(z, x)


@twin("feddyn")
def feddyn(h: Any, world: World) -> Outcome:
    z, N, x, g = world.initial, len(world.data), {}, {}
    memory = np.zeros_like(z)
    for t, sampled in world.schedule():
        for i in sampled:
            gi = g.get(i, np.zeros_like(z))
            x[i] = walk(world, z, world.batches(t, i), h.lr, h.momentum, lambda w, gi=gi, z=z: h.penalty * (w - z) - gi)
            g[i] = gi - h.penalty * (x[i] - z)
        memory = memory - h.penalty / N * sum(x[i] - z for i in sampled)
        z = world.project(mean([x[i] for i in sampled]) - (memory / h.penalty if h.penalty > 0 else 0))
    return Outcome(z, x)


# --- beyond consensus -------------------------------------------------------------------------------------------------


def fedbc_like(h: Any, world: World, local: Callable[..., Matrix]) -> Outcome:
    z, x, lam, gam, L = world.initial, {}, {}, {}, {}
    missed = [[] for _ in world.data]  # how far z went in the rounds since a device took part
    for t, sampled in world.schedule():
        for i in sampled:
            if i not in x:
                fixed = h.tolerance[i] if isinstance(h.tolerance, tuple) else h.tolerance
                x[i], lam[i], gam[i] = z, h.multiplier, 0.0 if fixed == "learned" else fixed
            for far in missed[i] if h.absent == "follow" else []:
                low, high = h.lambda_min, h.lambda_max
                if h.bounds == "theory":
                    known = max(L.get(i, 0.0), 1e-6)
                    low, high = 1 + known, 1 + known + 0.99 * (1 + known) / known
                before = lam[i]
                lam[i] = min(max(before + h.dual_lr * (far - gam[i]), low), high)
                gam[i] += h.dual_lr * before if h.tolerance == "learned" else 0.0
            missed[i] = []
            start, (low, high) = z if h.start == "global" else x[i], (h.lambda_min, h.lambda_max)
            if h.bounds == "theory":
                first = world.batches(t, i)[0]
                L[i] = max(L.get(i, 0.0), curvature(start, first))
                low, high = 1 + L[i], 1 + L[i] + 0.99 * (1 + L[i]) / L[i]
                lam[i] = min(max(lam[i], low), high)
            x[i] = local(t, i, start, z, lam[i])
            distance = ((x[i] - z) ** 2).sum()
            old = lam[i]
            lam[i] = min(max(old + h.dual_lr * (distance - gam[i]), low), high)
            if h.tolerance == "learned":
                gam[i] = gam[i] + h.dual_lr * old
        counted = sorted(x) if h.server == "all" else sampled
        weights = [lam[i] for i in counted]
        before, z = z, world.project(mean([x[i] for i in counted], weights if sum(weights) > 0 else None))
        for i in set(range(len(missed))) - set(sampled):
            missed[i].append(((z - before) ** 2).sum())
    return Outcome(z, x, lam, gam)


@twin("fedbc")
def fedbc(h: Any, world: World) -> Outcome:
    def local(t: int, i: int, w: Matrix, z: Matrix, lam: float) -> Matrix:
        return walk(world, w, world.batches(t, i), h.lr, h.momentum, lambda w: 2 * lam * (w - z))

    return fedbc_like(h, world, local)


@twin("besidefedbc")
def besidefedbc(h: Any, world: World) -> Outcome:
    personal: dict[int, Matrix] = {}

    def local(t: int, i: int, w: Matrix, z: Matrix, lam: float) -> Matrix:
        v = personal.get(i, z)
        shared, personal[i] = walk_together(
            world,
            world.batches(t, i),
            h.momentum,
            (w, h.lr, lambda w: 2 * lam * (w - z)),
            (v, h.personal_lr, lambda v: h.penalty * (v - z)),
        )
        return shared

    shared = fedbc_like(h, world, local)
    return Outcome(shared.z, personal, shared.multiplier, shared.tolerance)


@twin("perfedbc")
def perfedbc(h: Any, world: World) -> Outcome:
    def local(t: int, i: int, w: Matrix, z: Matrix, lam: float) -> Matrix:
        batches = world.batches(t, i, a_step=2)
        steps = Steps(world, w)
        for first, second in batches:
            u = w
            for _ in range(h.inner_steps):
                u = u - h.inner_lr * (gradient(u, first) + 2 * lam * (u - z))
            w = steps.move(w, gradient(u, second), 0.0, h.lr, h.momentum)
        return w

    return fedbc_like(h, world, local)


@twin("perfedavg")
def perfedavg(h: Any, world: World) -> Outcome:
    z, x = world.initial, {}
    for t, sampled in world.schedule():
        for i in sampled:
            w, batches = z, world.batches(t, i, a_step=2)
            steps = Steps(world, w)
            for first, second in batches:
                d = gradient(w - h.inner_lr * gradient(w, first), second)
                if h.order == "exact":
                    d = d - h.inner_lr * hessian_times(w, first, d)
                elif h.order == "hessian_free":
                    ahead, behind = gradient(w + h.probe * d, first), gradient(w - h.probe * d, first)
                    d = d - h.inner_lr * (ahead - behind) / (2 * h.probe)
                w = steps.move(w, d, 0.0, h.lr, h.momentum)
            x[i] = w
        z = world.project(mean([x[i] for i in sampled], server_weights(h, world, sampled)))
    return Outcome(z, x)


@twin("pfedme")
def pfedme(h: Any, world: World) -> Outcome:
    z, theta = world.initial, {}
    for t, sampled in world.schedule():
        ends = []
        for i in sampled:
            w, th = z, z
            for batch in world.batches(t, i):
                for _ in range(h.inner_steps):
                    th = th - h.inner_lr * (gradient(th, batch) + h.penalty * (th - w))
                w = w - h.lr * h.penalty * (w - th)
            theta[i] = th
            ends.append(w)
        z = (1 - h.server_mix) * z + h.server_mix * mean(ends, server_weights(h, world, sampled))
    return Outcome(z, theta)


@twin("l2gd")
def l2gd(h: Any, world: World) -> Outcome:
    z, x = world.initial, {}
    for t, sampled in world.schedule():
        for i in sampled:
            batches, xi = world.batches(t, i), x.get(i, z)
            time = h.lr * math.fsum((1 - h.momentum**k) / (1 - h.momentum) for k in range(1, len(batches) + 1))
            w = (xi + time * h.penalty * z) / (1 + time * h.penalty)  # solves w = xi - time penalty (w - z)
            x[i] = walk(world, w, batches, h.lr, h.momentum)
        z = world.project(mean(list(x.values())))
    return Outcome(z, x)


@twin("ditto")
def ditto(h: Any, world: World) -> Outcome:
    z, personal = world.initial, {}
    for t, sampled in world.schedule():
        ends = []
        for i in sampled:
            w, personal[i] = walk_together(
                world,
                world.batches(t, i),
                h.momentum,
                (z, h.lr, lambda w: 0.0),
                (personal.get(i, z), h.personal_lr, lambda v, z=z: h.penalty * (v - z)),
            )
            ends.append(w)
        z = world.project(mean(ends, server_weights(h, world, sampled)))
    return Outcome(z, personal)


@twin("localonly")
def localonly(h: Any, world: World) -> Outcome:
    z, x = world.initial, {}
    for t, sampled in world.schedule():
        for i in sampled:
            x[i] = walk(world, x.get(i, world.initial), world.batches(t, i), h.lr, h.momentum)
        z = world.project(mean(list(x.values())))
    return Outcome(z, x)
