"""From JAX's equations of a traced function to those that matter.

Nested functions are opened, what is known beforehand is computed, repetitions and what nobody needs are left out, and a
loss and its gradient at the same point become one question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend import core

from fedbc.torch.oracle import GRADIENT, HESSIAN_TIMES, LOSS

Atom = Any
CONTROL = ("cond", "while", "scan")
"""Branches and loops, which hold functions of their own."""


BOTH = core.Primitive("loss_and_gradient")
BOTH.multiple_results = True
_NESTED = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}
_NESTED |= {"custom_vjp_call": "call_jaxpr", "remat": "jaxpr", "checkpoint": "jaxpr"}


class Variable:
    """A value's name."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


class Equation:
    """An equation whose atoms may be replaced."""

    def __init__(self, primitive: Any, invars: list[Atom], outvars: list[Any], params: dict[str, Any]) -> None:
        self.primitive, self.invars, self.outvars, self.params = primitive, invars, outvars, params


def inlined(closed: Any) -> tuple[list[Equation], list[Atom]]:
    """The equations with nested functions opened, aliases resolved and constants computed."""
    known: dict[int, Atom] = {}  # what stands for a variable
    equations: list[Equation] = []

    def resolved(atom: Atom) -> Atom:
        return atom if isinstance(atom, core.Literal) else known.get(id(atom), atom)

    def walk(jaxpr: Any, consts: Sequence[Any]) -> None:
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            known[id(var)] = core.Literal(value, var.aval)
        for equation in jaxpr.eqns:
            invars = [resolved(a) for a in equation.invars]
            name = equation.primitive.name
            if name in _NESTED:
                inner = equation.params[_NESTED[name]]
                inner, constants = (inner.jaxpr, inner.consts) if hasattr(inner, "jaxpr") else (inner, ())
                known.update((id(v), a) for v, a in zip(inner.invars, invars, strict=True))
                walk(inner, constants)
                known.update((id(v), resolved(a)) for v, a in zip(equation.outvars, inner.outvars, strict=True))
            elif (alias := _alias(equation, invars)) is not None:
                known[id(equation.outvars[0])] = alias
            elif name not in CONTROL and all(isinstance(a, core.Literal) for a in invars) and _computable(equation):
                values = equation.primitive.bind(*(a.val for a in invars), **equation.params)
                values = values if equation.primitive.multiple_results else [values]
                for var, value in zip(equation.outvars, values, strict=True):
                    known[id(var)] = core.Literal(value, var.aval)
            else:
                # Variables of their own: a function that is called twice has the same ones both times.
                outvars = [Variable(v.aval) for v in equation.outvars]
                known.update((id(v), new) for v, new in zip(equation.outvars, outvars, strict=True))
                equations.append(Equation(equation.primitive, invars, outvars, equation.params))

    walk(closed.jaxpr, closed.consts)
    return equations, [resolved(a) for a in closed.jaxpr.outvars]


def _computable(equation: Any) -> bool:
    return equation.primitive not in (LOSS, GRADIENT, HESSIAN_TIMES)


def _alias(equation: Any, invars: list[Atom]) -> Atom | None:
    """What the equation's result is the same as, as far as a program here can tell."""
    name, (out, *rest) = equation.primitive.name, equation.outvars
    if rest:
        return None
    first = invars[0] if invars else None
    if name in ("copy", "copy_p", "stop_gradient", "optimization_barrier", "pvary"):
        return first
    if name == "convert_element_type" and first is not None:
        same = first.aval.dtype == out.aval.dtype
        return first if same and first.aval.shape == out.aval.shape else None
    if name in ("broadcast_in_dim", "reshape", "squeeze") and first is not None and first.aval.shape == out.aval.shape:
        return first
    if name == "mul":
        for one, other in (invars, invars[::-1]):
            if isinstance(one, core.Literal) and other.aval == out.aval and bool(np.all(np.asarray(one.val) == 1)):
                return other
    return None


def needed(equations: list[Equation], results: list[Atom]) -> tuple[list[Equation], list[Atom]]:
    """What the results need, each once; a loss and its gradient at one point as one question."""
    kept, _ = _asked_for(equations, results)
    first: dict[tuple[Any, ...], Equation] = {}
    known: dict[int, Atom] = {}
    unique: list[Equation] = []
    for equation in reversed(kept):
        equation.invars = [known.get(id(a), a) for a in equation.invars]
        if equation.primitive not in (LOSS, GRADIENT):
            unique.append(equation)
            continue
        asked = (equation.primitive, *(id(a) for a in equation.invars))
        if asked in first:
            known[id(equation.outvars[0])] = first[asked].outvars[0]
        else:
            first[asked] = equation
            unique.append(equation)
    return _paired(unique), [known.get(id(a), a) for a in results]


def _asked_for(equations: list[Equation], results: list[Atom]) -> tuple[list[Equation], set[int]]:
    """The equations that results need, the last one first, and all atoms of theirs."""
    asked_for = {id(a) for a in results}
    kept: list[Equation] = []
    for equation in reversed(equations):
        if any(id(v) in asked_for for v in equation.outvars):
            asked_for.update(id(a) for a in equation.invars)
            kept.append(equation)
    return kept, asked_for


def inputs_needed(closed: Any) -> set[int]:
    """The numbers of a function's inputs that its results need."""
    _, asked_for = _asked_for(*inlined(closed))
    return {number for number, var in enumerate(closed.jaxpr.invars) if id(var) in asked_for}


def results_following(closed: Any, inputs: Sequence[int]) -> set[int]:
    """The numbers of a function's results that depend on some of its inputs."""
    equations, results = inlined(closed)
    reached = {id(closed.jaxpr.invars[number]) for number in inputs}
    for equation in equations:
        if any(id(a) in reached for a in equation.invars):
            reached.update(id(v) for v in equation.outvars)
    return {number for number, atom in enumerate(results) if id(atom) in reached}


def _paired(equations: list[Equation]) -> list[Equation]:
    both: dict[tuple[int, ...], dict[Any, Equation]] = {}
    for equation in equations:
        if equation.primitive in (LOSS, GRADIENT):
            both.setdefault(tuple(id(a) for a in equation.invars), {})[equation.primitive] = equation
    done, paired = set(), []
    for equation in equations:
        pair = both.get(tuple(id(a) for a in equation.invars), {}) if equation.primitive in (LOSS, GRADIENT) else {}
        if len(pair) < 2:
            paired.append(equation)
        elif id(pair) not in done:
            done.add(id(pair))
            outvars = [pair[LOSS].outvars[0], pair[GRADIENT].outvars[0]]
            paired.append(Equation(BOTH, equation.invars, outvars, {}))
    return paired
