"""`jit` and what it returns: the entrance to the stages, and the ordinary call.

It does without `from __future__ import annotations`: `beartype` takes no `ParamSpec`
from a string. This module uses `_stages` and what stands under it, and `_programs`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    final,
    overload,
)

import attrs
import equinox as eqx
import jax

from . import _jax
from ._beartype import Attributes, CopiedAttributes
from ._call import BoundCall
from ._calling import (
    abstract_argument,
    floating_point_error,
    misplaced,
    place,
    unplaced,
)
from ._donation import Donate, UnusedDonation, blames_buffer, explain_buffers
from ._errors import OptionError, StagedError
from ._guards import closed_over_tracers, reaches_tracer
from ._options import UNSPECIFIED, Options, parse_options, refused_by_xla, resolved
from ._output import PACKED, unpack
from ._programs import Program, Programs, make_program, programs_for
from ._reprs import static_text
from ._signature import Form, call_object, function_parts
from ._stages import Lowered, Traced, make_traced
from ._staging import Staging, code_roots
from ._static import type_of


P = ParamSpec("P")
R = TypeVar("R", covariant=True)
Q = ParamSpec("Q")
T = TypeVar("T")
S = TypeVar("S")

Receiver = Literal["instance", "class", "none"]
"""What a `Jitted` binds when it is found in a class: as a function, as a `classmethod`,
or, as a `staticmethod` and a bound method, nothing."""


@attrs.frozen(eq=False)
class _Entry:
    """What a `Jitted` does, apart from the object, so that nothing refers to itself."""

    staging: Staging
    programs: Programs
    plain: int
    reshards: bool

    @staticmethod
    def of(staging: Staging, programs: Programs) -> "_Entry":
        """The entry of a function, with what its ordinary call looks at."""
        options = staging.options
        reshards = options.reshard and bool(options.in_shardings)
        return _Entry(staging, programs, staging.binder.plain, reshards)

    @property
    def _name(self) -> str:
        return self.staging.binder.fun_name

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The ordinary call."""
        table = self.programs.table()
        program, inputs = None, args
        if kwargs or len(args) != self.plain:
            values = self.staging.binder.bind(args, kwargs)
        else:
            values = args
            program = table.of_arrays.get(tuple(map(type, args)))
        if program is None:
            found = self.programs.find(table, values)
            program, inputs = found or self._first(args, kwargs, values)
        if self.reshards and program.shardings is not None:
            inputs = place(inputs, self._resolved(program.shardings))
        try:
            out = program.call(*inputs)
        except (StagedError, eqx.EquinoxRuntimeError):
            raise
        except (TypeError, ValueError, RuntimeError) as error:
            self._explain(args, kwargs, error)
            raise
        except _jax.FloatingPointFailure as failure:
            self._find_line(program, inputs)
            raise floating_point_error(self._name, failure) from None
        return unpack(out) if type(out) in PACKED else out

    def _find_line(self, program: Program, inputs: Sequence[Any]) -> None:
        """Run a function line by line, so that `jax.debug_nans` tells which it is."""
        try:
            program.flat(*inputs)
        except (RuntimeError, ValueError) as error:
            if not blames_buffer(error):  # else what was donated is gone
                raise

    def _first(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], values: tuple[Any, ...]
    ) -> tuple[Program, Sequence[Any]]:
        """The program of a call that is not known yet, and its inputs."""
        call, inputs = self.staging.bind(args, kwargs)
        for path, leaf in zip(call.dynamic_paths, inputs, strict=True):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                raise abstract_argument(self._name, path, leaf)
        program = self._program(call)
        self.programs.remember(call, values)
        return program, inputs

    def _program(self, call: BoundCall) -> Program:
        program = self.programs.get(call)
        if program is None:
            core = self.staging.opened.core
            source = core
            if core is call_object:
                source = type(self.staging.opened.values[0][0]).__call__
            program = make_program(call, core, source, self.staging.options)
            if _jax.may_compute() or not reaches_tracer(self._statics(call)):
                program = self.programs.add(call, program)
        return program

    def _statics(self, call: BoundCall) -> list[tuple[str, Any]]:
        return list(code_roots(self.staging, call))[1:]

    def _explain(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
    ) -> None:
        """Raise our error for arguments that no program can take."""
        call, inputs = self.staging.bind(args, kwargs)
        paths, donated = call.dynamic_paths, call.donated_mask
        if blames_buffer(error):
            buffers = explain_buffers(inputs, paths, donated, self._name)
            if buffers is not None:
                raise buffers from None
        options = self.staging.options.compiler_options
        ours = misplaced(call, self._targets(call)) or refused_by_xla(
            error, options, self._name
        )
        if ours is not None:
            raise ours from None

    def _targets(self, call: BoundCall) -> Sequence[Any]:
        """The sharding that `in_shardings` asks of each dynamic leaf, or `None`."""
        found = self.staging.options.shardings(call)
        if found is None:
            return (None,) * len(call.avals)
        return self._resolved(found)

    def _resolved(self, shardings: Sequence[Any]) -> Sequence[Any]:
        return [resolved(target, self._name) for target in shardings]

    def trace(self, /, *args: Any, **kwargs: Any) -> Traced[Any, Any]:
        """See `Jitted.trace`."""
        try:
            call, traced = self._traced(args, kwargs)
            return make_traced(self.staging, call, traced)
        except StagedError as error:
            # The error is to keep no tracer alive, nor this frame's variables.
            del args, kwargs
            raise error.with_traceback(None) from None

    def _traced(self, args: Any, kwargs: Any) -> tuple[BoundCall, Any]:
        call, inputs = self.staging.bind(args, kwargs)
        options = self.staging.options
        if options.in_shardings:
            targets = self._targets(call)
            if options.reshard:
                call = attrs.evolve(call, avals=unplaced(call, targets))
                structs = [aval.struct() for aval in call.avals]
                inputs = [
                    x if isinstance(x, _jax.Tracer) else s
                    for x, s in zip(inputs, structs, strict=True)
                ]
            else:
                elsewhere = misplaced(call, targets)
                if elsewhere is not None:
                    raise elsewhere
        traced = self._program(call).jitted.trace(*inputs)
        if closed_over_tracers(traced):
            self.programs.forget(call)  # it is good for this one trace
        return call, traced

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered[Any, Any]:
        """See `Jitted.lower`."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """See `Jitted.eval_shape`."""
        _, traced = self._traced(args, kwargs)
        return unpack(traced.out_info)

    def clear_cache(self) -> None:
        """See `Jitted.clear_cache`."""
        self.programs.clear()


@final
class Jitted(Attributes, Generic[P, R]):
    """A function that `jit` returned: callable, and the entrance to the stages.

    It is a pytree whose leaves are those of the function, and a descriptor, so that a
    decorated method binds its instance.
    """

    __wrapped__: Callable[P, R]
    __dict__ = CopiedAttributes()  # pyright: ignore[reportAssignmentType]  # it returns one

    def __init__(self, entry: _Entry, parts: Any, aux: Any) -> None:
        fun = entry.staging.fun
        self._entry = entry
        self._parts = parts
        self._aux = aux
        self.__wrapped__ = fun
        for name in (
            "__module__",
            "__doc__",
            "__annotations__",
            "__isabstractmethod__",
        ):
            value = getattr(fun, name, None)
            if value is not None and not isinstance(value, property):
                setattr(self, name, value)
        self.__name__ = entry.staging.binder.fun_name
        self.__qualname__ = getattr(fun, "__qualname__", self.__name__)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function: traced and compiled at the first call of each kind.

        Inside a transformation it is inlined, differentiated and batched.
        """
        return self._entry.call(args, kwargs)

    def trace(self, /, *args: P.args, **kwargs: P.kwargs) -> Traced[P, R]:
        """Trace the function for a call, without running it.

        **Arguments:** those of the function. Each array may be a
        `jax.ShapeDtypeStruct`, typed as [`staged.abstract`][], or a tracer.

        **Returns:** a [`staged.Traced`][].

        **Raises:** [`staged.SignatureError`][], [`staged.StaticLeafError`][], and
        [`staged.ClosedOverTracerError`][] if the function closes over a tracer.

        ```python
        import jax.numpy as jnp, staged

        scalar = staged.abstract((), jnp.float32)
        traced = staged.jit(jnp.add).trace(jnp.ones(3), scalar)
        assert traced.out_info.shape == (3,)
        ```
        """
        return self._entry.trace(*args, **kwargs)

    def lower(self, /, *args: P.args, **kwargs: P.kwargs) -> Lowered[P, R]:
        """The same as `trace(...).lower()`."""
        return self._entry.lower(*args, **kwargs)

    def eval_shape(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The result's shapes and dtypes, as `jax.eval_shape` gives them.

        This is the way to them inside a transformation, whatever the function closes
        over. Static values in the result are there as they are.
        """
        return self._entry.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget every program, so that the next call traces anew."""
        self._entry.clear_cache()

    # As a callable and not as a `Jitted`, `self` has its first parameter compared.
    @overload  # a class method
    def __get__(
        self: Callable[Concatenate[type[S], Q], T], instance: S | None, owner: type[S]
    ) -> "Jitted[Q, T]": ...
    @overload  # a method, from its class
    def __get__(
        self, instance: None, owner: type[Any] | None = None
    ) -> "Jitted[P, R]": ...
    @overload  # a method
    def __get__(
        self: Callable[Concatenate[S, Q], T],
        instance: S,
        owner: type[Any] | None = None,
    ) -> "Jitted[Q, T]": ...
    @overload  # a static method, or a function kept in an instance
    def __get__(
        self, instance: object, owner: type[Any] | None = None
    ) -> "Jitted[P, R]": ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        receiver = self._aux[-1]
        if receiver == "class":
            instance = type_of(instance) if owner is None else owner
        if instance is None or receiver == "none":
            return self
        method = MethodType(self.staging.fun, instance)
        return make_jitted(method, self.staging.options, bound=True, receiver="none")

    def __repr__(self) -> str:
        return f"staged.jit({static_text(self.__wrapped__)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _put_together, (self._aux, self._parts)

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """The trees that the function carries, and all else."""
        return self._parts, self._aux

    @property
    def staging(self) -> Staging:
        """The function and its options, as the stages hold them."""
        return self._entry.staging


def make_jitted(
    fun: Any,
    options: Options,
    *,
    bound: bool = False,
    receiver: Receiver = "instance",
) -> Jitted[Any, Any]:
    """A `Jitted` that shares its programs with all others of the same function."""
    parts, form = function_parts(fun)
    return _put_together((form, options, bound, receiver), parts)


def _put_together(
    aux: tuple[Form, Options, bool, Receiver], parts: Any
) -> Jitted[Any, Any]:
    form, options, bound, _ = aux
    staging = Staging.of(form.build(parts), options, bound=bound)
    opened = staging.opened
    anchor: Any = opened.core
    if anchor is call_object:
        anchor = type_of(opened.values[0][0])
    shape = (
        tuple(owner for _, owner in opened.values),
        tuple((name, owner) for name, (_, owner) in opened.keywords.items()),
    )
    # Every function that is jitted twice has the one class `Jitted`: it is no anchor.
    anchor = None if anchor is Jitted else anchor
    programs = programs_for(anchor, (options, shape), options.dynamic)
    return Jitted(_Entry.of(staging, programs), parts, aux)


def _flatten_with_keys(jitted: Any) -> tuple[Any, Any]:
    parts, aux = jitted.tree_flatten()
    names = aux[0].names(len(parts))
    return tuple(zip(map(_jax.GetAttrKey, names), parts, strict=True)), aux


_jax.register_pytree_with_keys(
    Jitted,
    _flatten_with_keys,
    _put_together,
    lambda jitted: jitted.tree_flatten(),
)


@overload
def jit(
    *,
    donate: Donate = "none",
    unused_donation: UnusedDonation | None = None,
    dynamic: Callable[[Any], bool] = eqx.is_array,
    in_shardings: Mapping[str, Any] | None = None,
    out_shardings: Any = UNSPECIFIED,
    reshard: bool = False,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> "_Decorator": ...
@overload
def jit(
    fun: Callable[Q, T],
    /,
    *,
    donate: Donate = "none",
    unused_donation: UnusedDonation | None = None,
    dynamic: Callable[[Any], bool] = eqx.is_array,
    in_shardings: Mapping[str, Any] | None = None,
    out_shardings: Any = UNSPECIFIED,
    reshard: bool = False,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> Jitted[Q, T]: ...
def jit(fun: Any = UNSPECIFIED, /, **options: Any) -> Any:
    """Give a function explicit compilation stages, and compile it at its calls.

    Arrays anywhere in the arguments, or in the function itself, are dynamic: inputs of
    the program. Every other leaf is static: the program is made for its value.

    **Arguments:**

    - `fun`: a pure function: of any kind, a bound method, a partial or a callable
      `equinox.Module` included. Left out, `jit(**options)` is a decorator.
    - `donate`: whose buffers the program may reuse. The names of parameters, or one of
      Equinox's words: `"all"`, `"all-except-first"`, `"warn"`, `"warn-except-first"` or
      `"none"`. Defaults, and arrays in a `functools.partial`, are never donated.
    - `unused_donation`: what to do if no output can use a donated buffer: `"ignore"`,
      `"warn"` or `"error"`. By default, `"ignore"` for the words with `all`, else
      `"warn"`.
    - `dynamic`: a predicate on leaves, `equinox.is_array` by default. It is to look at
      types, shapes and dtypes only. With `equinox.is_array_like`, Python numbers are
      dynamic too.
    - `in_shardings`: from names of parameters to shardings, or to prefixes of the
      argument's tree. Static leaves match whatever stands there.
    - `out_shardings`: a sharding, or a prefix of the result's tree, as for `jax.jit`.
    - `reshard`: copy arguments that are elsewhere, instead of refusing them.
    - `keep_unused`, `device`, `backend`, `inline`, `compiler_options`: as for
      `jax.jit`.

    **Returns:** a [`staged.Jitted`][].

    **Raises:** [`staged.OptionError`][] for an option that is unknown or wrong.

    ```python
    import jax.numpy as jnp, staged

    @staged.jit
    def scale(x, n):
        return n * x

    compiled = scale.trace(jnp.ones(3), 2).lower().compile()
    assert compiled(jnp.ones(3), 2).sum() == 6
    ```
    """
    parsed = parse_options(options)

    def decorate(fun: Any, /) -> Jitted[Any, Any]:
        return _jit(fun, parsed)

    return decorate if fun is UNSPECIFIED else _jit(fun, parsed)


class _Decorator(Protocol):
    def __call__(self, fun: Callable[Q, T], /) -> Jitted[Q, T]: ...


def _jit(fun: Any, options: Options) -> Jitted[Any, Any]:
    receiver: Receiver = "instance"
    if isinstance(fun, (classmethod, staticmethod)):
        receiver = "class" if isinstance(fun, classmethod) else "none"
        fun = cast("Any", fun).__func__
    if not callable(fun):
        raise OptionError(
            f"`jit` needs a callable, given {fun!r} of type `{type(fun).__name__}`.\n"
            "Options are given by keyword: `jit(fun, donate='all')`.",
            option="fun",
        )
    jitted = make_jitted(fun, options, receiver=receiver)
    options.check_names(jitted.staging.binder)
    return jitted
