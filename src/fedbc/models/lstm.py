"""The paper's recurrent network for Shakespeare: it reads characters and predicts the next one.

The derivative of a recurrence, as JAX derives it from `scan`, adds a small product to a large weight gradient at every
time step. Here the backward scan only stacks the derivatives of the gates; the weight gradient is one product over all
time steps after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedbc import checks
from fedbc.errors import InputError
from fedbc.models.base import Array, Model, Params
from fedbc.models.layers import dense, dense_init, product, transposed, uniform


def lstm(alphabet: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> Model:
    """Embedding, LSTM layers, and the last state to one logit a character.

    It takes whole-number codes of shape (n, time). The parameters are those of PyTorch's `nn.Embedding`, `nn.LSTM`
    (with its two biases per layer and its order of the gates: input, forget, cell, output) and `nn.Linear`, the weights
    transposed, and are initialised alike: the embedding N(0, 1), the LSTM U(±1/sqrt(hidden)).

    alphabet: how many characters there are.
    embedding: how many numbers stand for a character.
    hidden: the size of the state of each layer.
    layers: how many LSTM layers.
    """
    checks.integer("alphabet", alphabet, at_least=2)
    checks.integer("embedding", embedding, at_least=1)
    checks.integer("hidden", hidden, at_least=1)
    checks.integer("layers", layers, at_least=1)

    def init(key: Array) -> Params:
        first, last, *keys = jax.random.split(key, 2 + layers)
        inputs = [embedding] + [hidden] * (layers - 1)
        return {
            "embedding": jax.random.normal(first, (alphabet, embedding), jnp.result_type(float)),
            "layers": [_layer_init(k, size, hidden) for k, size in zip(keys, inputs, strict=True)],
            "out": dense_init(last, hidden, alphabet),
        }

    def apply(params: Params, x: Array) -> Array:
        if x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.integer):
            raise InputError(f"lstm takes whole-number codes of shape (n, time), not {x.dtype} of shape {x.shape}")
        first = params["layers"][0]
        # What a character adds to the gates is worked out once a character, not once an occurrence.
        table = params["embedding"] @ first["w_ih"] + first["b_ih"] + first["b_hh"]
        return dense(params["out"], _last_state(params["layers"], table, x.T))

    return Model(init, apply, name=f"lstm({alphabet}, {embedding}, {hidden}, {layers})")


def _layer_init(key: Array, inputs: int, hidden: int) -> Params:
    shapes = {"w_ih": (inputs, 4 * hidden), "w_hh": (hidden, 4 * hidden), "b_ih": (4 * hidden,), "b_hh": (4 * hidden,)}
    keys = jax.random.split(key, len(shapes))
    return {name: uniform(k, shape, hidden) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


@jax.custom_vjp
def _last_state(layers: Params, table: Array, codes: Array) -> Array:
    """The last layer's state after the last of the codes (time, n); `table` has a code's share in the first gates.

    This is the way to evaluate: all layers in one scan that keeps nothing. Training goes layer by layer (below).
    """
    first, *rest = layers

    def step(carry: list[tuple[Array, Array]], now: Array) -> tuple[list[tuple[Array, Array]], None]:
        state = _cell(jnp.split(first["w_hh"], 4, axis=1), _look_up(table, now), carry[0])[0]
        after = [state]
        for layer, before in zip(rest, carry[1:], strict=True):
            share = state[0] @ layer["w_ih"] + (layer["b_ih"] + layer["b_hh"])
            state = _cell(jnp.split(layer["w_hh"], 4, axis=1), share, before)[0]
            after.append(state)
        return after, None

    zero = jnp.zeros((codes.shape[1], first["w_hh"].shape[0]), table.dtype)
    states, _ = jax.lax.scan(step, [(zero, zero)] * len(layers), codes)
    return states[-1][0]


def _in_training(layers: Params, table: Array, codes: Array) -> Array:
    """The same; what a layer's inputs add to its gates is one product over all time steps."""
    time, n = codes.shape
    first, *rest = layers
    h = _recur(first["w_hh"], _look_up(table, codes))
    for layer in rest:
        shares = product(h.reshape(time * n, -1), layer["w_ih"]) + (layer["b_ih"] + layer["b_hh"])
        h = _recur(layer["w_hh"], shares.reshape(time, n, -1))
    return h[-1]


def _last_state_forward(layers: Params, table: Array, codes: Array) -> tuple[Array, Any]:
    return jax.vjp(lambda layers, table: _in_training(layers, table, codes), layers, table)


def _last_state_backward(pullback: Any, dh: Array) -> tuple[Params, Array, None]:
    return (*pullback(dh), None)


_last_state.defvjp(_last_state_forward, _last_state_backward)


def _look_up(table: Array, codes: Array) -> Array:
    """Rows of the table. A code outside the alphabet gives NaN, which a run reports, not another character's row."""
    return table.at[codes].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


Gates = tuple[Array, Array, Array, Array]


def _cell(weights: Sequence[Array], share: Array, state: tuple[Array, Array]) -> tuple[tuple[Array, Array], Gates]:
    """One time step of one layer: the new state (h, c), and the gates, from what the input adds to them.

    `weights` are the recurrent weights of each gate: one such quarter fits a core's cache, all of them do not.
    """
    h, c = state
    i, f, g, o = (s + h @ w for s, w in zip(jnp.split(share, 4, axis=1), weights, strict=True))
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    c = f * c + i * g
    return (o * jnp.tanh(c), c), (i, f, g, o)


@jax.custom_vjp
def _recur(w: Array, shares: Array) -> Array:
    """The states h (time, n, hidden) of one layer, from its recurrent weights and the inputs' share in its gates."""
    return _recur_forward(w, shares)[0]


Saved = tuple[Array, Array, tuple[Gates, Array]]


def _recur_forward(w: Array, shares: Array) -> tuple[Array, Saved]:
    weights = jnp.split(w, 4, axis=1)

    def step(state: tuple[Array, Array], share: Array) -> tuple[tuple[Array, Array], tuple[Array, tuple[Gates, Array]]]:
        state, gates = _cell(weights, share, state)
        h, c = state
        return state, (h, (gates, c))

    zero = jnp.zeros((shares.shape[1], w.shape[0]), shares.dtype)
    h, rest = jax.lax.scan(step, (zero, zero), shares)[1]
    return h, (w, h, rest)


def _recur_backward(saved: Saved, dh: Array) -> tuple[Array, Array]:
    w, states, (gates, cells) = saved
    hidden = w.shape[0]
    backward = transposed(w)
    before = jnp.concatenate([jnp.zeros_like(cells[:1]), cells[:-1]])

    def step(carry: tuple[Array, Array], now: tuple[Array, Gates, Array, Array]) -> tuple[tuple[Array, Array], Array]:
        dh, dc = carry
        more, (i, f, g, o), c, c_before = now
        dh = dh + more
        squashed = jnp.tanh(c)
        dc = dc + dh * o * (1 - squashed * squashed)
        di, df, dg = dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g)
        do = dh * squashed * o * (1 - o)
        d = jnp.concatenate([di, df, dg, do], axis=1)
        return (d @ backward, dc * f), d

    zero = jnp.zeros_like(cells[0])
    _, d = jax.lax.scan(step, (zero, zero), (dh, gates, cells, before), reverse=True)
    # The state before the first step is zero: that step adds nothing to the recurrent weights' gradient.
    dw = transposed(states[:-1].reshape(-1, hidden)) @ d[1:].reshape(-1, 4 * hidden)
    return dw, d


_recur.defvjp(_recur_forward, _recur_backward)
