"""What is measured: the same call through `staged` and through its peers.

A case is a function that makes the calls, by name. `staged` is first, and each call
returns its result, so that a test can compare them all.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import staged


Calls = Mapping[str, Callable[[], Any]]


@attrs.frozen(kw_only=True)
class Limit:
    """`ours` is to take at most `factor` times what `peer` takes."""

    ours: str
    factor: float
    peer: str


@attrs.frozen(kw_only=True)
class Case:
    """Calls that compute the same, and how they are to compare."""

    name: str
    make: Callable[[], Calls]
    limits: tuple[Limit, ...] = ()


class Net(eqx.Module):
    """`2 * n + 1` small arrays in Modules, with static fields and a static leaf."""

    layers: list[eqx.nn.Linear]
    scale: jax.Array
    activation: Callable[[jax.Array], jax.Array]

    def __init__(self, n: int) -> None:
        keys = jax.random.split(jax.random.key(0), n)
        self.layers = [eqx.nn.Linear(2, 2, key=key) for key in keys]
        self.scale = jnp.ones(2)
        self.activation = jax.nn.relu

    def __call__(self, x: jax.Array) -> jax.Array:
        """One pass over all arrays, with as little work as reads them."""
        total = sum(layer.weight[0] + layer.bias for layer in self.layers)
        return self.activation(self.scale * x + total)


def tree_of(leaves: int) -> dict[str, dict[str, jax.Array]]:
    """A plain dict of dicts with so many small arrays, ten in each."""
    return {
        f"block{i}": {
            f"w{j}": jnp.full(2, float(i + j)) for j in range(min(10, leaves - i))
        }
        for i in range(0, leaves, 10)
    }


def apply(model: Any, x: jax.Array) -> jax.Array:
    """A Module called."""
    return model(x)


def total(tree: Any, x: jax.Array) -> jax.Array:
    """The sum of all arrays of a tree."""
    return x + sum(jax.tree.leaves(tree))


def _calls(
    fun: Callable[..., Any], tree: Any, x: jax.Array, **more: Callable[[], Any]
) -> Calls:
    """One function of a tree and an array, through all."""
    dynamic, static = eqx.partition(tree, eqx.is_array)

    def flat(dynamic: Any, x: jax.Array) -> Any:
        return fun(eqx.combine(dynamic, static), x)

    ours, theirs = staged.jit(fun), eqx.filter_jit(fun)
    raw = jax.jit(flat)
    compiled = ours.trace(tree, x).lower().compile()
    raw_compiled = raw.lower(dynamic, x).compile()
    eqx_compiled = theirs.lower(tree, x).compile()
    return {
        "staged Compiled": lambda: compiled(tree, x),
        "staged Jitted": lambda: ours(tree, x),
        "JAX Compiled": lambda: raw_compiled(dynamic, x),
        "jax.jit": lambda: raw(dynamic, x),
        "Equinox Compiled": lambda: eqx_compiled(tree, x),
        "filter_jit": lambda: theirs(tree, x),
        **more,
    }


def two_arrays() -> Calls:
    """The least that a call can be."""
    return _calls(jnp.add, jnp.ones(2), jnp.ones(2))


def keywords() -> Calls:
    """The same by keyword, with a static default left out."""

    def add(x: jax.Array, *, y: jax.Array, times: int = 2) -> jax.Array:
        return x + times * y

    x, y = jnp.ones(2), jnp.ones(2)
    ours, theirs, raw = staged.jit(add), eqx.filter_jit(add), jax.jit(add)
    compiled = ours.trace(x, y=y).lower().compile()
    raw_compiled = raw.lower(x, y=y).compile()
    return {
        "staged Compiled": lambda: compiled(x, y=y),
        "staged Jitted": lambda: ours(x, y=y),
        "JAX Compiled": lambda: raw_compiled(x, y=y),
        "jax.jit": lambda: raw(x, y=y),
        "filter_jit": lambda: theirs(x, y=y),
    }


def modules(leaves: int) -> Callable[[], Calls]:
    """A model of so many arrays in Modules; `partial` has it fixed."""

    def make() -> Calls:
        model, x = Net((leaves - 1) // 2), jnp.ones(2)
        compiled = staged.jit(apply).trace(model, x).lower().compile()
        fixed = getattr(compiled, "partial", lambda m: lambda x: compiled(m, x))(model)
        return _calls(apply, model, x, **{"staged partial": lambda: fixed(x)})

    return make


def dicts(leaves: int) -> Callable[[], Calls]:
    """So many arrays in plain dicts."""
    return lambda: _calls(total, tree_of(leaves), jnp.ones(2))


def static_heavy() -> Calls:
    """Two arrays beside forty numbers, strings and functions."""

    def scaled(settings: Any, x: jax.Array) -> jax.Array:
        return settings["gain"] * x * len(settings["names"]) + settings["x"]

    settings = {
        "gain": 2,
        "names": tuple(f"name{i}" for i in range(20)),
        "rates": [0.5 * i for i in range(17)],
        "functions": (jnp.sin, jnp.cos),
        "x": jnp.ones(2),
    }
    return _calls(scaled, settings, jnp.ones(2))


class Loss:
    """Adam steps of a `Net` on its squared result, written once for all."""

    def __init__(self) -> None:
        self.adam = optax.adam(1e-3)

    def init(self, model: Net) -> Any:
        """The state of the optimizer."""
        return self.adam.init(eqx.filter(model, eqx.is_array))

    def step(self, model: Net, state: Any, x: jax.Array) -> tuple[Net, Any, jax.Array]:
        """One step, in the form that `staged` and Equinox compile."""
        loss, grads = eqx.filter_value_and_grad(lambda m: (m(x) ** 2).sum())(model)
        updates, state = self.adam.update(grads, state)
        return eqx.apply_updates(model, updates), state, loss


def training(leaves: int) -> Callable[[], Calls]:
    """A donated Adam step, whose state is fed back; `leaves` counts model and state."""

    def make() -> Calls:
        loss = Loss()
        model = eqx.tree_at(lambda m: m.scale, Net((leaves - 1) // 6), jnp.ones(2))
        if (leaves - 1) // 3 % 2 == 0:
            model = eqx.tree_at(lambda m: m.scale, model, 1.0)
        state, x = loss.init(model), jnp.ones(2)
        dynamic, static = eqx.partition(model, eqx.is_array)
        count = len(jax.tree.leaves((dynamic, state)))
        assert count == leaves, count

        def flat(dynamic: Any, state: Any, x: jax.Array) -> Any:
            model, state, out = loss.step(eqx.combine(dynamic, static), state, x)
            return eqx.filter(model, eqx.is_array), state, out

        def copied(tree: Any) -> Any:
            return jax.tree.map(lambda a: a.copy() if eqx.is_array(a) else a, tree)

        ours = staged.jit(loss.step, donate=("model", "state"))
        compiled = ours.trace(model, state, x).lower().compile()
        raw = jax.jit(flat, donate_argnums=(0, 1))
        raw_compiled = raw.lower(dynamic, state, x).compile()
        theirs = eqx.filter_jit(loss.step, donate="all-except-first")

        def swapped(x: jax.Array, model: Any, state: Any) -> Any:
            return loss.step(model, state, x)

        theirs = eqx.filter_jit(swapped, donate="all-except-first")

        def fed(call: Callable[..., Any], *start: Any) -> Callable[[], Any]:
            held = copied(start)

            def step() -> Any:
                nonlocal held
                *held, out = call(*held, x)
                return out

            return step

        carry = compiled.carry(
            model=copied(model), state=copied(state), outputs={"model": 0, "state": 1}
        )

        def carried() -> Any:
            nonlocal carry
            carry, out = carry.step(x)
            return out

        return {
            "staged carry": carried,
            "staged Compiled": fed(compiled, model, state),
            "staged Jitted": fed(ours, model, state),
            "JAX Compiled": fed(raw_compiled, dynamic, state),
            "jax.jit": fed(raw, dynamic, state),
            "filter_jit": fed(lambda m, s, x: theirs(x, m, s), model, state),
        }

    return make


def same(results: list[Any]) -> bool:
    """Whether all results are equal."""
    return all(np.allclose(results[0], other, rtol=1e-6) for other in results[1:])


def _limit(ours: str, factor: float, peer: str) -> Limit:
    return Limit(ours=f"staged {ours}", factor=factor, peer=peer)


CASES = (
    Case(
        name="two arrays",
        make=two_arrays,
        limits=(
            _limit("Compiled", 1.2, "JAX Compiled"),
            _limit("Jitted", 1.3, "jax.jit"),
        ),
    ),
    Case(name="keywords", make=keywords),
    Case(
        name="9 leaves in Modules",
        make=modules(9),
        limits=(
            _limit("Compiled", 1.2, "JAX Compiled"),
            _limit("Compiled", 0.6, "Equinox Compiled"),
            _limit("Jitted", 0.45, "filter_jit"),
            _limit("partial", 0.8, "jax.jit"),
        ),
    ),
    Case(name="97 leaves in Modules", make=modules(97)),
    Case(
        name="481 leaves in Modules",
        make=modules(481),
        limits=(
            _limit("Compiled", 1.15, "JAX Compiled"),
            _limit("Jitted", 1.15, "jax.jit"),
            _limit("partial", 0.4, "jax.jit"),
        ),
    ),
    Case(name="5,000 leaves in Modules", make=modules(4999)),
    Case(name="97 leaves in dicts", make=dicts(97)),
    Case(name="static-heavy", make=static_heavy),
    Case(
        name="training, 97 leaves",
        make=training(97),
        limits=(
            _limit("carry", 0.75, "jax.jit"),
            _limit("carry", 0.35, "filter_jit"),
        ),
    ),
    Case(
        name="training, 481 leaves",
        make=training(481),
        limits=(
            _limit("carry", 0.75, "jax.jit"),
            _limit("carry", 0.35, "filter_jit"),
        ),
    ),
)
