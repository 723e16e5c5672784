"""FedOpt: FedAvg whose server treats the devices' mean move as a gradient for an optimiser.

    S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan, "Adaptive Federated
    Optimization", ICLR 2021 (FedAdagrad, FedAdam, FedYogi); T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of
    Non-Identical Data Distribution for Federated Visual Classification", 2019 (FedAvgM).

    device:   as FedAvg:  x_i after K steps from z at rate lr, with `momentum`
    server:   g = z - Σ n_i x_i / Σ n_i  over the sampled devices (n_i or 1, by `weights`)
    FedAvgM:  u <- beta_1 u + g,  z <- z - eta u
    FedAdam:  m <- beta_1 m + (1 - beta_1) g,   v <- beta_2 v + (1 - beta_2) g²,   z <- z - eta m / (sqrt(v) + tau)
    FedYogi:  as FedAdam with  v <- v - (1 - beta_2) g² sign(v - g²)
    FedAdagrad:  as FedAdam with  v <- v + g²,  and beta_1 = 0 unless it is given, as in the paper's experiments

    symbol   argument        symbol   argument              symbol   argument
    eta      server_lr       beta_1   server_momentum       tau      adaptivity
    eta_l    lr              beta_2   second_momentum

u and m start from 0, v from tau² (the paper wants v >= tau²). As in Reddi et al., and unlike optax's own Adam and Yogi,
nothing is corrected for that start; the three are written out below as transformations of optax's kind. A server with
any other optimiser of optax's is a subclass of `FedOpt` of a few lines.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import weighted
from fedbc.algorithms.base import Params, Scalar, parameter
from fedbc.algorithms.fedavg import FedAvg

if TYPE_CHECKING:
    import optax


class Server(NamedTuple):
    """z, and the state of the server's optimiser."""

    z: Params
    optimiser: Any


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """FedAvg with an optimiser at the server: subclasses say which (any gradient transformation of optax's)."""

    server_lr: float = parameter(1.0, "rate of the server's step (eta)")
    server_momentum: float = parameter(0.9, "momentum of the server's step (beta_1)")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("server_lr", self.server_lr, above=0)
        checks.number("server_momentum", self.server_momentum, at_least=0, below=1)

    @abstractmethod
    def optimiser(self) -> optax.GradientTransformation:
        """The server's optimiser."""

    def init_server(self, params: Params) -> Server:
        """The optimiser at rest."""
        return Server(params, self.optimiser().init(params))

    def global_model(self, server: Server) -> Params:
        """z"""
        return server.z

    def broadcast(self, server: Server) -> Params:
        """z"""
        return server.z

    def update(self, server: Server, total: weighted.Mean, population: Scalar) -> Server:  # type: ignore[override]
        """The optimiser's step along g = z - mean(x_i)"""
        gradient = trees.sub(server.z, weighted.average(total))
        move, state = self.optimiser().update(gradient, server.optimiser, server.z)
        return Server(trees.add(server.z, move), state)


@dataclass(frozen=True)
class FedAvgM(FedOpt):
    """FedAvg with momentum at the server."""

    name: ClassVar[str] = "fedavgm"
    reference: ClassVar[str] = "Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019"

    def optimiser(self) -> optax.GradientTransformation:
        """Gradient descent with momentum."""
        import optax  # here and below, not at the top: importing it takes as long as all of fedbc

        return optax.sgd(self.server_lr, momentum=self.server_momentum)


@dataclass(frozen=True)
class AdaptiveFedOpt(FedOpt):
    """FedAvg with adaptive rates at the server: subclasses say what becomes of v, the moves' second moment."""

    reference: ClassVar[str] = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"

    server_lr: float = parameter(0.1, "rate of the server's step (eta)")
    adaptivity: float = parameter(0.01, "degree of adaptivity (tau): moves well below it are not scaled up fully")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("adaptivity", self.adaptivity, above=0)

    def optimiser(self) -> optax.GradientTransformation:
        """m / (sqrt(v) + tau), without correction for the start."""
        import optax

        return optax.chain(
            _adaptive(self.server_momentum, self._second_moment, self.adaptivity), optax.scale(-self.server_lr)
        )

    @abstractmethod
    def _second_moment(self, v: jax.Array, g: jax.Array) -> jax.Array:
        """The new v."""


@dataclass(frozen=True)
class FedAdagrad(AdaptiveFedOpt):
    """FedAvg with Adagrad's adaptive rates at the server, which only ever fall."""

    name: ClassVar[str] = "fedadagrad"

    server_momentum: float = parameter(0.0, "momentum of the server's step (beta_1)")

    def _second_moment(self, v: jax.Array, g: jax.Array) -> jax.Array:
        return v + g**2


@dataclass(frozen=True)
class FedAdam(AdaptiveFedOpt):
    """FedAvg with Adam's adaptive rates at the server."""

    name: ClassVar[str] = "fedadam"

    second_momentum: float = parameter(0.99, "momentum of the squared moves (beta_2)")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("second_momentum", self.second_momentum, at_least=0, below=1)

    def _second_moment(self, v: jax.Array, g: jax.Array) -> jax.Array:
        return self.second_momentum * v + (1 - self.second_momentum) * g**2


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAvg with Yogi's adaptive rates at the server, which change more slowly than Adam's."""

    name: ClassVar[str] = "fedyogi"

    def _second_moment(self, v: jax.Array, g: jax.Array) -> jax.Array:
        return v - (1 - self.second_momentum) * g**2 * jnp.sign(v - g**2)


class Moments(NamedTuple):
    """The state of an adaptive optimiser."""

    m: Params
    v: Params


def _adaptive(
    momentum: float, second_moment: Callable[[jax.Array, jax.Array], jax.Array], tau: float
) -> optax.GradientTransformation:
    """m / (sqrt(v) + tau), with the given rule for v."""

    def init(params: Params) -> Moments:
        return Moments(trees.zeros_like(params), jax.tree.map(lambda p: jnp.full_like(p, tau**2), params))

    def update(gradient: Params, state: Moments, params: Params = None) -> tuple[Params, Moments]:
        m = trees.mix(momentum, state.m, gradient)
        v = jax.tree.map(second_moment, state.v, gradient)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + tau), m, v), Moments(m, v)

    import optax

    return optax.GradientTransformation(init, update)
