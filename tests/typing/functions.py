"""The parameters and the result of a function run through every stage.

Checked by pyright and mypy, never run.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar, assert_type

import equinox as eqx
from jax import Array

import staged


P = ParamSpec("P")
R = TypeVar("R")


@staged.jit
def scale(x: Array, n: int, *, rate: float = 0.1) -> Array:
    return n * rate * x


@staged.jit(donate="all-except-first", unused_donation="error")
def step(batch: Array, model: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
    return batch, model


def double(x: Array, n: int) -> Array:
    return n * x


def variadic(x: Array, *rest: Array, **named: int) -> Array:
    return x + len(rest) + len(named)


def check_jit(x: Array, model: dict[str, Array]) -> None:
    """Bare, configured, and as a call."""
    assert_type(scale(x, 2), Array)
    assert_type(scale(x, n=2, rate=0.5), Array)
    assert_type(step(x, model), tuple[Array, dict[str, Array]])
    assert_type(staged.jit(double)(x, 2), Array)
    assert_type(staged.jit(double, dynamic=eqx.is_array_like)(x, n=2), Array)
    assert_type(staged.jit(reshard=True)(double)(x, 2), Array)
    assert_type(staged.jit(variadic)(x, x, x, last=1), Array)
    assert_type(staged.jit(staged.jit(double))(x, 2), Array)
    assert_type(staged.jit(lambda: x)(), Array)
    assert_type(scale.__wrapped__(x, 2), Array)


def check_stages(x: Array, model: dict[str, Array]) -> None:
    """One stage after the other."""
    traced = step.trace(x, model)
    lowered = traced.lower()
    compiled = lowered.compile()
    assert_type(compiled(x, model), tuple[Array, dict[str, Array]])
    assert_type(compiled(batch=x, model=model), tuple[Array, dict[str, Array]])
    assert_type(compiled.fun(x, model), tuple[Array, dict[str, Array]])
    assert_type(step.lower(x, model).compile()(x, model)[0], Array)
    assert_type(step.eval_shape(x, model), tuple[Array, dict[str, Array]])
    assert_type(scale.trace(x, 2, rate=0.2).lower().compile()(x, 2, rate=0.2), Array)
    assert_type(staged.jit(variadic).lower(x, x).compile()(x, x, last=1), Array)


def check_abstract(x: Array) -> None:
    """What `staged.abstract` returns stands for an array."""
    struct = staged.abstract((3,), "float32")
    assert_type(scale.trace(struct, 2).lower().compile()(x, 2), Array)
    assert_type(scale.lower(struct, n=2, rate=0.5).compile()(x, 2), Array)
    assert_type(scale.eval_shape(staged.abstract((3,), "bfloat16"), 2), Array)


def compile_double(
    traced: staged.Traced[[Array, int], Array],
) -> staged.Compiled[[Array, int], Array]:
    """Stages as parameters and as a result."""
    lowered = traced.lower(lowering_platforms=("cpu",))
    assert_type(lowered, staged.Lowered[[Array, int], Array])
    compiled: Callable[[Array, int], Array] = lowered.compile()
    return lowered.compile().with_fun(compiled)


def compile_any(
    jitted: staged.Jitted[P, R], *args: P.args, **kwargs: P.kwargs
) -> staged.Compiled[P, R]:
    """The same for any function."""
    return jitted.trace(*args, **kwargs).lower().compile()


def check_generic(x: Array) -> None:
    """The parameters run through code that knows nothing of them."""
    assert_type(compile_any(scale, x, 2, rate=0.5)(x, 2), Array)
    assert_type(compile_any(staged.jit(double), x, n=2)(x, n=2), Array)


def check_with_fun(x: Array) -> None:
    """Another function of the same structure, jitted or not."""
    compiled = staged.jit(double).lower(x, 2).compile()
    assert_type(compiled.with_fun(double)(x, n=2), Array)
    assert_type(compiled.with_fun(staged.jit(double))(x, 2), Array)


def check_partial(x: Array) -> None:
    """A partial keeps what is left of the parameters."""
    halved = staged.jit(functools.partial(double, n=2))
    assert_type(halved(x), Array)
    assert_type(halved.trace(x).lower().compile()(x), Array)
    assert_type(staged.jit(functools.partial(double, x)).lower(n=2).compile()(2), Array)


class Linear(eqx.Module):
    weight: Array

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        return self.weight + x

    def loss(self, x: Array) -> Array:
        return self(x) + 1


def check_modules(x: Array, linear: Linear) -> None:
    """A callable Module, and its bound method."""
    forward = staged.jit(linear)
    assert_type(forward(x, key=None), Array)
    assert_type(forward.trace(x).lower().compile()(x, key=x), Array)
    assert_type(forward.lower(x).compile().with_fun(Linear(x))(x), Array)
    assert_type(staged.jit(linear.loss).trace(x).lower().compile()(x), Array)
