"""What a type checker refuses: an ignore below that ignores nothing is an error.

Checked by pyright and mypy, never run.
"""

import functools

import equinox as eqx
import jax
from jax import Array

import staged


@staged.jit
def scale(x: Array, n: int, *, rate: float = 0.1) -> Array:
    return n * rate * x


def other(x: Array) -> Array:
    return x


def refuse_arguments(x: Array) -> None:
    """Arguments that do not fit, in every stage, and a result that is no text."""
    scale(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    scale(x, "2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    scale(x, 2, 0.5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    scale(x, 2, rat=0.5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    scale.trace(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    scale.trace(x, "2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    scale.lower(x, 2, 0.5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    scale.eval_shape(x, n="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    compiled = scale.trace(x, 2).lower().compile()
    compiled(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    compiled("x", 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    compiled(x, 2, rat=0.5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    text: str = scale(x, 2)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    text = compiled(x, 2)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(text)


def refuse_abstract(x: Array, struct: jax.ShapeDtypeStruct) -> None:
    """JAX's own abstract value stands for no array; `staged.abstract` does."""
    scale.trace(struct, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    scale.eval_shape(struct, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    scale(struct, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    scale.lower(x, 2).compile()(struct, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    staged.abstract(3, "float32")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    staged.abstract((3,))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    staged.abstract((3,), "float32", weak=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def refuse_transitions(x: Array) -> None:
    """A transition that is illegal does not exist."""
    traced = scale.trace(x, 2)
    lowered = traced.lower()
    compiled = lowered.compile()
    traced(x, 2)  # type: ignore[operator]  # pyright: ignore[reportCallIssue]
    traced.compile()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    traced.trace(x, 2)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    lowered(x, 2)  # type: ignore[operator]  # pyright: ignore[reportCallIssue]
    lowered.lower()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    lowered.trace(x, 2)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    compiled.trace(x, 2)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    compiled.lower()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    compiled.compile()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    scale.compile()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    print(compiled.jaxpr)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
    print(scale.call)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]


def refuse_change(
    traced: staged.Traced[[Array], Array], call: staged.BoundCall
) -> None:
    """Stages and records are frozen."""
    traced.call = call  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    call.fun_name = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    call.context.enable_x64 = True  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


class Executable(staged.Compiled[[Array], Array]):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    """Stages and errors are final."""


class Mismatch(staged.CallMismatchError):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    """The root of the errors is not."""


class MyError(staged.StagedError):
    """An error of one's own."""


def refuse_options() -> None:
    """Options that are misspelt, of the wrong type, or for `jax.jit` only."""
    staged.jit(donat="all")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    staged.jit(static_argnums=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    staged.jit(other, static_argnames="x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    staged.jit(other, donate_argnums=0)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    staged.jit(donate=1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    staged.jit(unused_donation="raise")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    staged.jit(dynamic=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    staged.jit(other, in_shardings=("x",))  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    staged.jit(other, reshard="yes")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    staged.jit(other, eqx.is_array)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    staged.jit("other")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def refuse_stage_options(x: Array) -> None:
    """The same for the options of a stage."""
    traced = staged.jit(other).trace(x)
    traced.lower(("cpu",))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    traced.lower(lowering_platforms="cpu")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    lowered = traced.lower()
    lowered.as_text("llvm")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    lowered.compile({"xla_dump_to": ""})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    lowered.compile(options={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    lowered.compile().with_fun(scale)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Model(eqx.Module):
    weight: Array

    @staged.jit
    def loss(self, x: Array) -> Array:
        return self.weight + x

    @staged.jit
    @staticmethod
    def shift(x: Array, by: int) -> Array:
        return x + by

    @staged.jit
    @classmethod
    def zeros(cls, like: Array) -> "Model":
        return cls(0 * like)


def refuse_methods(x: Array, model: Model) -> None:
    """On an instance there is no `self` to give, from the class there is."""
    model.loss()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    model.loss(model, x)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
    model.loss.trace("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    model.loss.trace(x).lower().compile()(x, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Model.loss(x)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
    Model.shift(x, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    model.shift(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Model.zeros(Model, x)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
    model.zeros("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def refuse_partial(x: Array) -> None:
    """What a partial has left of the parameters; mypy lets it take anything."""
    halved = staged.jit(functools.partial(scale, n=2))
    halved("x")  # pyright: ignore[reportArgumentType]
    halved.trace(x, rat=0.5)  # pyright: ignore[reportCallIssue]
