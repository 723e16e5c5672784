"""A method's local step, traced by JAX, as a program on PyTorch's vectors.

The methods have one implementation, in JAX. Their `step` is traced once, on parameters laid out as one vector, with the
network left open (`fedbc.torch.oracle`). What remains is a handful of operations on vectors and numbers, which run here
one by one: `c x + y` is one operation, and a vector that nobody needs any more is written over. Numbers are Python's,
in 64 bits.

A step with an operation that is not known here is `Unknown`: the caller then has JAX run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.extend import core
from torch import Tensor

from fedbc.torch.equations import BOTH, inlined, needed
from fedbc.torch.operations import Unknown, scalar_operation, vector_operation
from fedbc.torch.oracle import GRADIENT, HESSIAN_TIMES, LOSS, Oracle

Atom = Any
Registers = list[Any]
Instruction = Callable[[Oracle, Registers], None]


class Program:
    """A traced function, to be called with an oracle and values: tensors, numbers, batches."""

    def __init__(self, closed: Any, *, owned: bool = True) -> None:
        """`owned`: the vectors given may be written over, if nothing later needs them."""
        equations, results = needed(*inlined(closed))
        self._inputs = list(closed.jaxpr.invars)
        self._place: dict[Any, int] = {}
        self.used: set[int] = set()
        """the numbers of the inputs that the program reads"""
        for var in self._inputs:
            self._register(var)
        self.results = results
        self._instructions: list[Instruction] = []
        self._spare = {id(v) for v in self._inputs} if owned else set()
        _Compiler(self, equations, results)
        self._outputs = [self._reader(atom) for atom in results]
        self._size = len(self._place)

    def __call__(self, oracle: Oracle, values: Sequence[Any]) -> list[Any]:
        """Run it."""
        registers: Registers = [None] * self._size
        registers[: len(values)] = values
        for instruction in self._instructions:
            instruction(oracle, registers)
        return [read(registers) for read in self._outputs]

    def forwarded(self) -> list[int | None]:
        """For each result, the number of the input that it is, or None."""
        number = {id(v): i for i, v in enumerate(self._inputs)}
        return [None if isinstance(a, core.Literal) else number.get(id(a)) for a in self.results]

    def _register(self, var: Any) -> int:
        return self._place.setdefault(id(var), len(self._place))

    def _reader(self, atom: Atom) -> Callable[[Registers], Any]:
        if isinstance(atom, core.Literal):
            value = _number(atom.val)
            return lambda registers: value
        place = self._register(atom)
        return lambda registers: registers[place]


class _Compiler:
    """Turns equations into instructions."""

    def __init__(self, program: Program, equations: list[Any], results: list[Atom]) -> None:
        self.program, self.equations = program, equations
        uses: dict[int, list[int]] = {}
        for number, equation in enumerate(equations):
            for atom in equation.invars:
                if not isinstance(atom, core.Literal):
                    uses.setdefault(id(atom), []).append(number)
        for atom in results:
            uses.setdefault(id(atom), []).append(len(equations))
        self.uses = uses
        program.used = {
            i for i, v in enumerate(program._inputs) if any(n < len(equations) for n in uses.get(id(v), []))
        }
        self.scaled: dict[int, tuple[Atom, Atom]] = {}
        """products of a number and a vector that one addition takes: they are not formed"""
        self.own = set(program._spare)
        """vectors that may be written over once they are no longer needed"""
        for number, equation in enumerate(equations):
            self._compile(number, equation)

    def _compile(self, number: int, equation: Any) -> None:
        name, outs = equation.primitive.name, equation.outvars
        if equation.primitive in (LOSS, GRADIENT, HESSIAN_TIMES, BOTH):
            self._add_oracle(equation)
        elif name == "mul" and self._is_scaling(number, equation):
            pass
        elif name in ("add", "sub") and self._is_axpy(equation):
            self._add_axpy(number, equation)
        elif name in _CONTROL:
            # What a branch or a loop gives may be what it was given: it is not written over.
            self.program._instructions.append(_CONTROL[name](self.program, equation))
        elif _is_vector(outs[0]) or any(_is_vector(a) for a in equation.invars):
            self._add_vector(number, equation)
        else:
            self._add_scalar(equation)

    # What the network is asked for.

    def _add_oracle(self, equation: Any) -> None:
        reads = [self.program._reader(a) for a in equation.invars]
        places = [self.program._register(v) for v in equation.outvars]
        kind = equation.primitive

        def run(oracle: Oracle, registers: Registers) -> None:
            given = [read(registers) for read in reads]
            if kind is LOSS:
                registers[places[0]] = oracle.value(*given)
            elif kind is HESSIAN_TIMES:
                registers[places[0]] = oracle.hessian_times(*given)
            elif kind is GRADIENT:
                registers[places[0]] = oracle.value_and_gradient(*given)[1]
            else:
                registers[places[0]], registers[places[1]] = oracle.value_and_gradient(*given)

        self.program._instructions.append(run)
        self.own.update(id(v) for v in equation.outvars)

    # Vectors.

    def _is_scaling(self, number: int, equation: Any) -> bool:
        """Whether this is c x, for one later addition alone; it is then left to that."""
        (out,) = equation.outvars
        a, b = equation.invars
        if _is_vector(a) == _is_vector(b):
            return False
        later = self.uses.get(id(out), [])
        if len(later) != 1 or later[0] >= len(self.equations):
            return False
        user = self.equations[later[0]]
        c, x = (b, a) if _is_vector(a) else (a, b)
        if user.primitive.name not in ("add", "sub") or not all(_is_vector(i) for i in user.invars):
            return False
        if user.primitive.name == "sub" and user.invars[0] is out:
            return False
        if any(id(i) in self.scaled for i in user.invars):
            return False
        self.scaled[id(out)] = (c, x)
        for atom in (c, x):  # they are needed until then
            if not isinstance(atom, core.Literal):
                self.uses[id(atom)].append(later[0])
        return True

    def _is_axpy(self, equation: Any) -> bool:
        return any(id(a) in self.scaled for a in equation.invars)

    def _add_axpy(self, number: int, equation: Any) -> None:
        a, b = equation.invars
        other, scaled = (a, b) if id(b) in self.scaled else (b, a)
        c, x = self.scaled[id(scaled)]
        sign = -1.0 if equation.primitive.name == "sub" else 1.0
        y, x_of, c_of = (self.program._reader(atom) for atom in (other, x, c))
        into, place = self._target(number, (other, x), equation.outvars[0])

        def run(oracle: Oracle, registers: Registers) -> None:
            out = into(oracle, registers)
            registers[place] = torch.add(y(registers), x_of(registers), alpha=sign * float(c_of(registers)), out=out)

        self.program._instructions.append(run)

    def _add_vector(self, number: int, equation: Any) -> None:
        work = vector_operation(equation)
        reads = [self.program._reader(a) for a in equation.invars]
        if not _is_vector(equation.outvars[0]):
            place = self.program._register(equation.outvars[0])

            def reduce(oracle: Oracle, registers: Registers) -> None:
                registers[place] = work(*(read(registers) for read in reads), out=None).item()

            self.program._instructions.append(reduce)
            return
        same = [a for a in equation.invars if _is_vector(a) and a.aval == equation.outvars[0].aval]
        into, place = self._target(number, same, equation.outvars[0])

        def run(oracle: Oracle, registers: Registers) -> None:
            registers[place] = work(*(read(registers) for read in reads), out=into(oracle, registers))

        self.program._instructions.append(run)

    def _target(self, number: int, atoms: Sequence[Atom], out: Any) -> tuple[Callable[..., Tensor | None], int]:
        """Where a vector is written: over one of these that nobody needs later, or to a spare one."""
        self.own.add(id(out))
        place = self.program._register(out)
        dead = [a for a in atoms if not isinstance(a, core.Literal) and self._dies(a, number)]
        if not dead:
            return lambda oracle, registers: oracle.spare.pop() if oracle.spare and _fits(out, oracle) else None, place
        places = [self.program._register(a) for a in {id(a): a for a in dead}.values()]

        def overwrite(oracle: Oracle, registers: Registers) -> Tensor:
            oracle.spare += [registers[p] for p in places[1:]]
            return registers[places[0]]

        return overwrite, place

    def _dies(self, atom: Any, number: int) -> bool:
        return id(atom) in self.own and max(self.uses[id(atom)]) <= number

    # Numbers.

    def _add_scalar(self, equation: Any) -> None:
        work = scalar_operation(equation)
        reads = [self.program._reader(a) for a in equation.invars]
        place = self.program._register(equation.outvars[0])

        def run(oracle: Oracle, registers: Registers) -> None:
            registers[place] = work(*(read(registers) for read in reads))

        self.program._instructions.append(run)


def _fits(var: Any, oracle: Oracle) -> bool:
    return var.aval.size == oracle.spare[-1].numel()


def _is_vector(atom: Atom) -> bool:
    return getattr(atom.aval, "ndim", 0) > 0


def _number(value: Any) -> Any:
    """A constant of JAX's as Python or PyTorch has it."""
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else torch.from_numpy(np.array(array))


# Branches and loops.


def _branch(program: Program, equation: Any) -> Instruction:
    which, *operands = [program._reader(a) for a in equation.invars]
    branches = [Program(branch, owned=False) for branch in equation.params["branches"]]
    places = [program._register(v) for v in equation.outvars]

    def run(oracle: Oracle, registers: Registers) -> None:
        branch = branches[min(max(int(which(registers)), 0), len(branches) - 1)]
        values = branch(oracle, [read(registers) for read in operands])
        for place, value in zip(places, values, strict=True):
            registers[place] = value

    return run


def _while(program: Program, equation: Any) -> Instruction:
    params = equation.params
    going, body = Program(params["cond_jaxpr"], owned=False), Program(params["body_jaxpr"], owned=False)
    reads = [program._reader(a) for a in equation.invars]
    places = [program._register(v) for v in equation.outvars]
    first, second = params["cond_nconsts"], params["body_nconsts"]

    def run(oracle: Oracle, registers: Registers) -> None:
        values = [read(registers) for read in reads]
        of_going, of_body = values[:first], values[first : first + second]
        state = values[first + second :]
        while going(oracle, [*of_going, *state])[0]:
            state = body(oracle, [*of_body, *state])
        for place, value in zip(places, state, strict=True):
            registers[place] = value

    return run


def _scan(program: Program, equation: Any) -> Instruction:
    params = equation.params
    constants, carried = params["num_consts"], params["num_carry"]
    if len(equation.invars) > constants + carried or len(equation.outvars) > carried:
        raise Unknown("scan over arrays")
    body = Program(params["jaxpr"], owned=False)
    reads = [program._reader(a) for a in equation.invars]
    places = [program._register(v) for v in equation.outvars]

    def run(oracle: Oracle, registers: Registers) -> None:
        values = [read(registers) for read in reads]
        state = values[constants:]
        for _ in range(params["length"]):
            state = body(oracle, [*values[:constants], *state])
        for place, value in zip(places, state, strict=True):
            registers[place] = value

    return run


_CONTROL: dict[str, Callable[[Program, Any], Instruction]] = {"cond": _branch, "while": _while, "scan": _scan}


def trace(function: Callable[..., Any], *shapes: Any) -> Program:
    """A program of a function of pytrees; its values are their leaves."""
    return Program(jax.make_jaxpr(function)(*shapes))
