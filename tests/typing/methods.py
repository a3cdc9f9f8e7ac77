"""A method that is jitted keeps its parameters, without `self` on an instance.

Checked by pyright and mypy, never run.
"""

from typing import assert_type

import equinox as eqx
from jax import Array

import staged


class Model(eqx.Module):
    weight: Array

    @staged.jit
    def loss(self, x: Array, *, rate: float = 0.1) -> Array:
        return rate * (self.weight + x)

    @staged.jit(donate="all")
    def update(self, x: Array) -> "Model":
        return Model(self.weight - x)

    @staged.jit
    def norm(self) -> Array:
        return abs(self.weight)

    @staged.jit
    @staticmethod
    def shift(x: Array, by: int) -> Array:
        return x + by

    @staged.jit
    @classmethod
    def zeros(cls, like: Array) -> "Model":
        return cls(0 * like)

    @staticmethod
    @staged.jit
    def shift_inside(x: Array, by: int) -> Array:
        return x + by


def check_method(x: Array, model: Model) -> None:
    """On an instance."""
    assert_type(model.loss(x), Array)
    assert_type(model.loss(x, rate=0.2), Array)
    assert_type(model.loss.trace(x, rate=0.2).lower().compile()(x), Array)
    assert_type(model.loss.eval_shape(x), Array)
    assert_type(model.norm.lower().compile()(), Array)
    assert_type(model.update(x), Model)
    assert_type(model.update(x).loss.trace(x).lower().compile()(x), Array)


def check_from_class(x: Array, model: Model) -> None:
    """From the class, the instance is the first argument."""
    assert_type(Model.loss(model, x), Array)
    assert_type(Model.loss.trace(model, x).lower().compile()(model, x, rate=0.2), Array)
    assert_type(Model.norm(model), Array)


def check_static_method(x: Array, model: Model) -> None:
    """A static method, in either order of the decorators."""
    assert_type(Model.shift(x, 1), Array)
    assert_type(Model.shift.trace(x, by=1).lower().compile()(x, 1), Array)
    assert_type(model.shift(x, 1), Array)
    assert_type(model.shift.lower(x, 1).compile()(x, by=1), Array)
    assert_type(Model.shift_inside(x, 1), Array)
    assert_type(model.shift_inside.trace(x, by=1).lower().compile()(x, 1), Array)


def check_class_method(x: Array, model: Model) -> None:
    """A class method, which `jit` decorates from outside."""
    assert_type(Model.zeros(x), Model)
    assert_type(Model.zeros.trace(x).lower().compile()(like=x), Model)
    assert_type(model.zeros(x), Model)
    assert_type(model.zeros.lower(x).compile()(x), Model)


class Holder:
    def __init__(self, fun: staged.Jitted[[Array], Array]) -> None:
        self.fun = fun


class HolderModule(eqx.Module):
    fun: staged.Jitted[[Array], Array]


def check_attribute(x: Array, holder: Holder, module: HolderModule) -> None:
    """A jitted function that an instance keeps binds nothing."""
    assert_type(holder.fun(x), Array)
    assert_type(holder.fun.trace(x).lower().compile()(x), Array)
    assert_type(module.fun(x), Array)
    assert_type(module.fun.trace(x).lower().compile()(x), Array)
