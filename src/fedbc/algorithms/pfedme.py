"""pFedMe: personalised models by Moreau envelopes.

    C. T. Dinh, N. H. Tran, T. D. Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
    Algorithm 1.

The objective is Σ F_i(z), F_i(w) = min_theta f_i(theta) + lambda/2 ‖theta - w‖², whose gradient is
lambda (w - theta_i(w)), theta_i the minimiser. From w^0 = z, a local step on a batch D is

    theta <- about argmin f_i(theta; D) + lambda/2 ‖theta - w‖²,  by K steps
             theta <- theta - inner_lr (∇f_i(theta; D) + lambda (theta - w))
    w     <- w - eta lambda (w - theta)

    server:  z <- (1 - beta) z + beta mean(w_i) over the sampled devices

    symbol   argument        symbol   argument        symbol   argument
    lambda   penalty         K        inner_steps     eta      lr
    beta     server_mix                               (rate of the K steps)  inner_lr

The local model x_i is theta, the paper's personalised model; `weights` of the server's mean are uniform in the paper.
The paper leaves open where theta starts: here at z in each round, then where the last step left it, as in its authors'
code. For the K steps to converge, inner_lr must be below 2/(lambda + L), L the Lipschitz constant of ∇f_i.
Only the sampled devices train here, so that a device's theta is as old as its last round. In its authors' code all
devices refresh theirs in every round, and the sample counts at the server only: N/S times the work, and local models
that are never out of date (on draw 2 of the synthetic data +0.7 points of local accuracy).
As lambda grows (and inner_lr falls as 1/lambda), lambda (w - theta) tends to ∇f_i(w), and the method to FedAvg at rate
eta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import solver, weighted
from fedbc.algorithms.base import Algorithm, Context, Finished, Loss, Params, Scalar, parameter
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.solver import Rate


class Carry(NamedTuple):
    """Local training, and the round's fixed quantities."""

    w: Params
    theta: Params
    loss: Scalar
    z: Params
    weight: Scalar
    steps: Scalar


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """Personalised models near the global one by Moreau envelopes, which the global model averages."""

    name: ClassVar[str] = "pfedme"
    reference: ClassVar[str] = "Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020"

    lr: float = parameter(0.01, "rate of the local steps on w (eta)", rate=Rate.LOCAL)
    penalty: float = parameter(15.0, "strength of the pull of theta towards w (lambda)")
    inner_steps: int = parameter(5, "steps on theta for each step on w (K)")
    inner_lr: float = parameter(0.03, "rate of the steps on theta")
    server_mix: float = parameter(1.0, "share of the mean in the new global model (beta)")
    weights: str = parameter("uniform", weighted.WEIGHTS)

    def __post_init__(self) -> None:
        checks.number("lr", self.lr, above=0)
        checks.number("penalty", self.penalty, above=0)
        checks.integer("inner_steps", self.inner_steps, at_least=1)
        checks.number("inner_lr", self.inner_lr, above=0)
        checks.number("server_mix", self.server_mix, above=0)
        weighted.check(self.weights)

    def check_summand(self, summand: weighted.Mean, examples: int) -> None:
        """Its weight is that of its examples."""
        weighted.check_weight(self.weights, summand.weight, examples)

    def ranges(self, limits: Limits) -> Any:
        """w (x_i - z) and w"""
        return weighted.ranges(self.weights, limits)

    def init_server(self, params: Params) -> Params:
        """The server keeps z alone."""
        return params

    def init_device(self, params: Params, context: Context) -> Params:
        """A device keeps its theta, to be used; training does not start from it."""
        return params

    def local_model(self, device: Params) -> Params:
        """theta_i"""
        return device

    def begin(self, message: Params, device: Params, context: Context) -> Carry:
        """w = theta = z"""
        loss = jnp.zeros((), jax.tree.leaves(message)[0].dtype)
        return Carry(message, message, loss, message, weighted.weight(self.weights, context), context.steps)

    def step(self, loss: Loss, carry: Carry, batch: object) -> Carry:
        """K steps on theta, then w <- w - eta lambda (w - theta)"""
        w = carry.w
        near_w = solver.Objective(self.penalty, w)
        value, theta = solver.adapted(loss, carry.theta, batch, self.inner_lr, self.inner_steps, near_w)
        w = jax.tree.map(lambda w, t: w - self.lr * self.penalty * (w - t), w, theta)
        return carry._replace(w=w, theta=theta, loss=carry.loss + value)

    def finish(self, carry: Carry) -> Finished:
        """The summand (n_i w_i, n_i)."""
        info = {
            "drift": trees.sqdist(carry.theta, carry.z),
            "loss": carry.loss / carry.steps,
            "weight": carry.weight,
        }
        return Finished(carry.theta, weighted.summand(carry.w, carry.weight), info)

    def update(self, server: Params, total: weighted.Mean, population: Scalar) -> Params:
        """z <- (1 - beta) z + beta mean(w_i)"""
        return trees.mix(self.server_mix, weighted.average(total), server)
