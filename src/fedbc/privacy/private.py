"""Any weighted mean of local models, made private: a wrapper of FedBC, FedAvg and the methods built on them.

Local training, multipliers, tolerances and local models are the wrapped method's own; only what leaves the device is
changed (`fedbc.privacy.mechanism` has the mathematics):

    device:  u_i = (x_i - z) min(1, C/‖x_i - z‖),   sends (w_i u_i + noise, w_i + noise)
    server:  z <- the wrapped method's update with Σ w_i x_i = z W + Σ (w_i u_i + noise),  Σ w_i = W,
             W = Σ (w_i + noise) clipped to [a n, b n], n being the number of devices in the sum

For FedBC w_i = lambda_i, which needs bounds, 0 < lambda_min and lambda_max < inf. The lower one keeps the server's
division safe: the noise would otherwise decide its sign. FedBC's fall-back for Σ lambda_i = 0, for which x_i travels
unweighted too, is then never needed, and is not sent.

The noise of a simulation comes from `noise_seed`, so that a run can be repeated. Nothing is private about that: a real
device draws its own (`fedbc.privacy.system_normal`). The diagnostics of a simulation are without noise, too.

    algorithm          the method to wrap
    clip               C, the bound on the norm of a device's update
    noise_multiplier   m, the noise of each device in units of the sensitivity; 0 only clips
    largest_weight     b, for FedAvg-type methods unless weights="uniform"
    noise_seed         seed of the simulated noise
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import multiplied, weighted
from fedbc.algorithms.base import Algorithm, Context, Finished, Params, Scalar, parameter
from fedbc.algorithms.fedavg import FedAvg
from fedbc.algorithms.fedbc import FedBC
from fedbc.algorithms.ranges import Limits, Number, Vector
from fedbc.algorithms.wrapping import Wrapping
from fedbc.errors import InputError
from fedbc.privacy.mechanism import Mechanism, Share


class Device(NamedTuple):
    """What a device keeps: the wrapped method's state, and the key of its noise."""

    inner: Any
    key: jax.Array


class Carry(NamedTuple):
    """The wrapped method's local training, z, and the key of the noise."""

    inner: Any
    z: Params
    key: jax.Array


@dataclass(frozen=True)
class Private(Wrapping):
    """A method whose devices clip what they send, and add noise to it."""

    name: ClassVar[str] = "private"

    clip: float
    noise_multiplier: float
    largest_weight: float | None = parameter(None, "bound on a device's weight, unless weights='uniform' (b)")
    noise_seed: int = parameter(0, "seed of the simulated noise")

    def __post_init__(self) -> None:
        checks.integer("noise_seed", self.noise_seed, at_least=0)
        mechanism_for(self.algorithm, self.clip, self.noise_multiplier, self.largest_weight)

    @property
    def mechanism(self) -> Mechanism:
        """Clipping and noise of one round."""
        return mechanism_for(self.algorithm, self.clip, self.noise_multiplier, self.largest_weight)

    def check_summand(self, summand: Share, examples: int) -> None:
        """The device counts once; its noise may have carried all else anywhere."""
        del examples
        if float(summand.devices) != 1:
            raise InputError(f"it counts as {float(summand.devices):g} devices")

    def check_statistics(self) -> None:
        """They would travel as they are."""
        raise InputError(
            'statistics="averaged" does not go with a private method: they would be sent as they are; keep them local, '
            "or take layers without, such as GroupNorm"
        )

    def ranges(self, limits: Limits) -> Any:
        """The share's own bounds, and the noise that a device adds to it within a secure sum."""
        m = self.mechanism
        move: Any = Vector(m.clip * m.largest_weight, noise=m.move_noise)
        weight: Any = Number(m.least_weight, m.largest_weight, noise=m.weight_noise)
        return Share(move, weight, Number(1, 1))

    def without_noise(self) -> Private:
        """The same method that only clips: within a secure sum the noise is added to whole numbers."""
        return dataclasses.replace(self, noise_multiplier=0.0)

    def init_device(self, params: Params, context: Context) -> Device:
        """The wrapped method's state, and a key of the device's own."""
        key = jax.random.fold_in(jax.random.key(self.noise_seed), context.index)
        return Device(self.algorithm.init_device(params, context), jax.random.key_data(key))

    def begin(self, message: Params, device: Device, context: Context) -> Carry:
        """As the wrapped method does."""
        return Carry(self.algorithm.begin(message, device.inner, context), message, device.key)

    def finish(self, carry: Carry) -> Finished:
        """The wrapped method's end, its summand clipped and with noise."""
        done = self.algorithm.finish(carry.inner)
        mechanism = self.mechanism
        share, clipped = mechanism.clipped(carry.z, *model_and_weight(done.summand))
        key, use = jax.random.split(jax.random.wrap_key_data(carry.key))
        noised = mechanism.noised(share, lambda count: jax.random.normal(use, (count,), float))
        return Finished(Device(done.device, jax.random.key_data(key)), noised, {**done.info, "clipped": clipped})

    def update(self, server: Any, total: Share, population: Scalar) -> Any:
        """The wrapped method's update, from the sum of what the devices sent."""
        weight = self.mechanism.total_weight(total)
        models = trees.axpy(weight, self.algorithm.global_model(server), total.move)
        return self.algorithm.update(server, _total(self.algorithm, models, weight, total.devices), population)


def mechanism_for(
    algorithm: Algorithm, clip: float, noise_multiplier: float, largest_weight: float | None = None
) -> Mechanism:
    """The mechanism with a method's own bounds of the weights; a method that has none is an InputError."""
    if isinstance(algorithm, FedBC):
        if largest_weight is not None:
            raise InputError("largest_weight does not apply to FedBC: its weights are bounded by lambda_max")
        if algorithm.server == "all":
            raise InputError("private FedBC needs server='sampled': with 'all' devices send changes only")
        if algorithm.absent == "follow":
            raise InputError("private FedBC needs absent='still': its devices are sent the global model alone")
        if algorithm.lambda_min <= 0:
            raise InputError(f"private FedBC needs lambda_min > 0 (it is {algorithm.lambda_min:g}), for example 0.01")
        if algorithm.lambda_max == float("inf"):
            raise InputError("private FedBC needs a finite lambda_max: the noise is proportional to it")
        return Mechanism(clip, noise_multiplier, algorithm.lambda_min, algorithm.lambda_max)
    if not isinstance(algorithm, FedAvg):
        raise InputError(
            f"algorithm={algorithm!r} cannot be made private: its summand is no weighted mean of local models; "
            "FedBC, FedAvg and the methods built on them can"
        )
    if algorithm.weights == "uniform":
        if largest_weight is not None:
            raise InputError("largest_weight does not apply to weights='uniform': every weight is 1")
        return Mechanism(clip, noise_multiplier)
    if largest_weight is None:
        raise InputError(
            f"weights={algorithm.weights!r} needs largest_weight, the weight above which all devices count alike; "
            "or take weights='uniform'"
        )
    return Mechanism(clip, noise_multiplier, 1.0, checks.number("largest_weight", largest_weight, at_least=1))


def model_and_weight(summand: Any) -> tuple[Params, Scalar]:
    """x_i and its weight, from the summand of FedBC or of a FedAvg-type method."""
    if isinstance(summand, multiplied.Total):
        return summand.plain, summand.weight
    return weighted.average(summand), summand.weight


def _total(algorithm: Algorithm, models: Params, weight: Scalar, devices: Scalar) -> Any:
    """The sum in the wrapped method's own form."""
    if isinstance(algorithm, FedBC):
        # The plain sum is for Σ lambda_i = 0 only, which lambda_min > 0 excludes.
        return multiplied.Total(models, weight, trees.zeros_like(models), jnp.asarray(devices))
    return weighted.Mean(models, weight)
