"""One round of a device whose local steps PyTorch takes: the loop is the user's, the method is the package's own.

`begin`, `finish` and the device's state are those of the algorithm (`fedbc.FedBC`, also `fedbc.FedAvg`, `fedbc.FedProx`
and others with plain steps), computed on a flat dict of the module's parameters by the same code as in the simulator.
Only the step

    w <- w - beta (∇f_i(w) + 2 lambda_i (w - z))

is PyTorch's: the user's loop forms ∇f_i on its batches, `fedbc.torch.Pull` adds the rest.

x_i and z are the module's trained parameters. Those with `requires_grad=False` are part of the module. Its buffers
(running statistics of a BatchNorm, counters) stay on the device, untouched by the rounds. Neither count in ‖x_i - z‖²
and in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fedbc import checks
from fedbc.algorithms.base import Algorithm, Context, Finished, StepsTaken
from fedbc.errors import InputError
from fedbc.torch.proximal import Pull, parameters_of
from fedbc.torch.weights import Arrays, load_arrays, parameters


class LocalRound:
    """A device's part in one round.

    Making it puts the starting weights into the module (z, or x_i for `start="local"`). Then `attach` your optimiser,
    or take `sgd()`, run your loop, and `finish`.

    algorithm: a FedBC, FedAvg, FedProx or another method with plain steps; of its hyper-parameters `lr` and `momentum`
        count for `sgd()` alone.
    module: the model to train, on any device, in any floating type.
    z: the global model, arrays by the names of the module's trained parameters.
    state: what `finish` gave in the device's last round; None in its first.
    index: the device's number in the federation, from 0.
    examples: how many training examples it holds.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        module: nn.Module,
        z: Mapping[str, Any],
        state: Any = None,
        *,
        index: int = 0,
        examples: int = 1,
    ) -> None:
        if not isinstance(algorithm, Algorithm) or not algorithm.has_plain_steps:
            raise InputError(
                f"algorithm={algorithm!r} has other local steps than PyTorch's: "
                "give one of fedbc.FedBC, fedbc.FedAvg, fedbc.FedProx"
            )
        checks.integer("index", index, at_least=0)
        checks.integer("examples", examples, at_least=1)
        self.algorithm, self.module = algorithm, module
        load_arrays(module, {name: np.asarray(value) for name, value in z.items()})
        self._z = {name: p.detach().clone() for name, p in module.named_parameters()}
        message = _tree(parameters(module))  # as the module holds it, in its number type
        sent = jax.eval_shape(lambda: algorithm.broadcast(algorithm.init_server(message)))
        if type(sent) is not type(message):
            raise InputError(
                f"algorithm={algorithm!r} sends more than the global model, which is all that is taken here"
            )
        context = Context(*(jnp.asarray(n) for n in (index, examples, 1)))
        state = algorithm.init_device(message, context) if state is None else state
        self._carry = algorithm.begin(message, state, context)
        self._problem = algorithm.local_problem(self._carry)
        load_arrays(module, jax.tree.map(np.asarray, self._problem.start))
        self._pulls: list[Pull] = []
        self._handles: list[Any] = []
        self._losses: list[float] = []
        self._steps = 0

    @property
    def multiplier(self) -> float:
        """lambda_i in this round; for FedProx mu/2, for FedAvg 0."""
        return float(self._problem.multiplier)

    def attach(self, optimizer: Optimizer) -> Optimizer:
        """Add the pull to an optimiser of the module's parameters for this round; its momentum starts from rest."""
        centre_of: dict[Tensor, Tensor] = {
            parameter: self._z[name] for name, parameter in self.module.named_parameters()
        }
        trained = parameters_of(optimizer)
        if any(parameter not in centre_of for parameter in trained):
            raise InputError("the optimiser trains parameters that are not the module's")
        optimizer.state.clear()
        self._pulls.append(Pull(optimizer, self.multiplier, [centre_of[parameter] for parameter in trained]))
        self._handles.append(optimizer.register_step_post_hook(self._count))
        return optimizer

    def sgd(self) -> Optimizer:
        """The algorithm's own local optimiser: SGD at its `lr` and `momentum`, with the pull."""
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        return self.attach(SGD(trained, self._problem.lr, self._problem.momentum))

    def record(self, loss: Tensor | float) -> None:
        """Note a batch's loss, for the diagnostics: their mean is the device's `loss` of the round."""
        self._losses.append(float(loss.detach()) if isinstance(loss, Tensor) else float(loss))

    def _count(self, *_: Any) -> None:
        self._steps += 1

    def finish(self) -> Finished:
        """End the round: the dual and the tolerance's step, the state to keep, the summand to send, the diagnostics.

        `loss` is NaN among the diagnostics if none was recorded.
        """
        if not self._pulls:
            raise InputError("no optimiser took part in the round: attach yours, or take sgd(), before the loop")
        if self._steps == 0:
            raise InputError(
                "the attached optimiser took no step: was there data, and did the loop use this optimiser?"
            )
        for hook in (*self._pulls, *self._handles):
            hook.remove()
        loss = jnp.asarray(sum(self._losses) if self._losses else math.nan, float)
        batches = jnp.asarray(max(len(self._losses), 1))  # of which the diagnostics' loss is the mean
        taken = StepsTaken(_tree(parameters(self.module)), loss, batches)
        return self.algorithm.finish(self.algorithm.accept_steps(self._carry, taken))


def _tree(arrays: Arrays) -> dict[str, jax.Array]:
    """For the algorithm. JAX computes in 32 bits unless told otherwise (`jax_enable_x64`)."""
    return {name: jnp.asarray(array) for name, array in arrays.items()}
