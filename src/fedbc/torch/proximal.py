"""The pull towards the global model, for any optimiser of PyTorch's.

FedBC's local objective is f_i(w) + lambda_i ‖w - z‖², so every step adds 2 lambda_i (w - z) to the gradient of f_i.
Whatever the loop did to the gradient before (clipping, scaling, accumulation) it did to that of f_i alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from fedbc import checks
from fedbc.errors import InputError


class Pull:
    """Adds 2 lambda (w - z) to the gradient before each step of an optimiser, until `remove`; a context manager, too.

    The optimiser stays what it is, so that schedulers, gradient scalers and closures work with it as before.

    optimizer: any optimiser of PyTorch's.
    multiplier: lambda.
    centre: z, one tensor a parameter, in the order of the optimiser's parameters; by default where they are now.
    """

    def __init__(self, optimizer: Optimizer, multiplier: float, centre: Iterable[Tensor] | None = None) -> None:
        checks.number("multiplier", multiplier, at_least=0)
        self._parameters = parameters_of(optimizer)
        held = list(self._parameters if centre is None else centre)
        if [c.shape for c in held] != [p.shape for p in self._parameters]:
            raise InputError("centre does not fit the optimiser: give one tensor a parameter, of its shape")
        self.multiplier = float(multiplier)
        self._centre = [c.detach().to(p, copy=True) for c, p in zip(held, self._parameters, strict=True)]
        self._handle = optimizer.register_step_pre_hook(self._before_step)

    def remove(self) -> None:
        """Let the optimiser be what it was."""
        self._handle.remove()

    def __enter__(self) -> Pull:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.remove()

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._add()
            return None
        # The closure computes the gradient anew, once or several times a step: the pull follows it each time.
        return args[:1], {**kwargs, "closure": self._after(closure)}

    def _after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def pulled() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._add()
            return loss

        return pulled

    @torch.no_grad()
    def _add(self) -> None:
        if self.multiplier == 0:
            return
        for parameter, centre in zip(self._parameters, self._centre, strict=True):
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:  # no part of the loss: its gradient is 0
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.add_(parameter - centre, alpha=2 * self.multiplier)


class ProximalSGD(SGD):
    """PyTorch's SGD with the pull: v <- momentum v + g + 2 lambda (w - z), w <- w - lr v.

    z is where the parameters are when the optimiser is made, or where `anchor` finds them; lambda is `multiplier`. All
    else is as in `torch.optim.SGD`.
    """

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0, *, multiplier: float = 0.0, **rest: Any):
        super().__init__(params, lr=lr, momentum=momentum, **rest)
        self._pull = Pull(self, multiplier)

    def anchor(self, multiplier: float) -> None:
        """A new round: z is where the parameters are now, lambda is new, momentum starts from rest."""
        self._pull.remove()
        self._pull = Pull(self, multiplier)
        self.state.clear()


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All that an optimiser trains, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
