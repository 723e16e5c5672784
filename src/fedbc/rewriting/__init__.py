"""The same computation with other operations, where XLA's own are slow on a CPU.

XLA brings a convolution into the form that its fast kernels take only in the outermost computation of a program. The
derivatives of a convolution come in other forms, and within a loop, such as that of a device's local steps, a plain
nest of loops then computes them, 20 to 100 times slower (JAX 0.10.2). So a program is looked through, after
differentiation and with all that is nested in it, and its convolutions (`convolutions`), the derivatives of its
poolings (`pooling`) and some of its sums (`sums`) are replaced. What they compute is the same up to rounding. Which
operation takes the place of which depends on the program and the machine alone, not on measurements, so that a run
resumes to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from fedbc import runtime
from fedbc.rewriting.convolutions import convolution
from fedbc.rewriting.pooling import maximum_gradient
from fedbc.rewriting.sums import in_two_steps, is_slow


class Replacement(NamedTuple):
    """What takes the place of an operation; functions of its operands and parameters."""

    compute: Callable[..., jax.Array]
    wanted: Callable[..., bool] = lambda *operands, **parameters: True


_REPLACEMENTS = {
    jax.lax.conv_general_dilated_p: Replacement(convolution),
    jax.lax.select_and_scatter_add_p: Replacement(maximum_gradient),
    jax.lax.reduce_sum_p: Replacement(in_two_steps, is_slow),
}
"""By the operation's primitive."""


def rewritten(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function to be compiled, with operations that this machine computes fast."""

    def replayed(*arguments: Any) -> Any:
        if not runtime.on_cpu() or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return function(*arguments)
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        return jax.tree.unflatten(
            jax.tree.structure(shapes), jaxpr_as_fun(_program(program))(*jax.tree.leaves(arguments))
        )

    return replayed


def _program(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program itself, if there is nothing to replace."""
    if not _any_replaced(program.jaxpr):
        return program
    inputs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in program.in_avals]
    return jax.make_jaxpr(lambda *values: _replay(program, values))(*inputs)


def _any_replaced(program: Jaxpr) -> bool:
    return any(
        equation.primitive in _REPLACEMENTS or any(map(_any_replaced, _nested(equation))) for equation in program.eqns
    )


def _is_replaced(equation: JaxprEqn) -> bool:
    found = _REPLACEMENTS.get(equation.primitive)
    return found is not None and found.wanted(*(of.aval for of in equation.invars), **equation.params)


def _nested(equation: JaxprEqn) -> list[Jaxpr]:
    """The programs within an equation: a loop's body, a branch, a function that is called."""
    leaves = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program)
    return [leaf.jaxpr if isinstance(leaf, ClosedJaxpr) else leaf for leaf in leaves if _is_program(leaf)]


def _is_program(value: Any) -> bool:
    return isinstance(value, ClosedJaxpr | Jaxpr)


def _replay(program: ClosedJaxpr, values: tuple[Any, ...]) -> list[Any]:
    known = dict(zip([*program.jaxpr.constvars, *program.jaxpr.invars], [*program.consts, *values], strict=True))

    def value(of: Any) -> Any:
        return of.val if isinstance(of, Literal) else known[of]

    for equation in program.jaxpr.eqns:
        operands = [value(of) for of in equation.invars]
        with equation.ctx.manager:
            known.update(zip(equation.outvars, _outcome(equation, operands), strict=True))
    return [value(of) for of in program.jaxpr.outvars]


def _outcome(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    primitive = equation.primitive
    if _is_replaced(equation):
        return [_REPLACEMENTS[primitive].compute(*operands, **equation.params)]
    parameters = equation.params
    if any(map(_any_replaced, _nested(equation))):
        parameters = jax.tree.map(_nested_program, parameters, is_leaf=_is_program)
    outcome = primitive.bind(*operands, **primitive.get_bind_params(parameters))
    return outcome if primitive.multiple_results else [outcome]


def _nested_program(value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        return _program(value)
    if isinstance(value, Jaxpr):
        replaced = _program(ClosedJaxpr(value, ()))
        return value if replaced.consts else replaced.jaxpr
    return value
