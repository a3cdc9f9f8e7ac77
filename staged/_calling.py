"""The call of an executable: checked against its record, explained where it fails.

JAX's C++ dispatch knows every signature that has been checked before: the structure,
the shapes, dtypes, weak types and shardings, and JAX's configuration. So the checks run
in its `miss`, once for each, and what explains a failure runs after the failure.

This module uses `_abstract`, `_call`, `_diff`, `_donation`, `_equinox`, `_errors`,
`_guards`, `_jax`, `_output`, `_staging` and `_static`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NoReturn, final

import attrs
import equinox as eqx
import jax
import jax.tree_util as jtu

from . import _jax
from ._abstract import RANDOM, ArraySharding, Aval, aval_of, current_context
from ._call import BoundCall, is_dynamic, path_of
from ._diff import Difference, listed
from ._donation import blames_buffer, explain_buffers
from ._equinox import waiting
from ._errors import AbstractArgumentError, CallMismatchError, StagedError
from ._guards import require_top_level
from ._output import PACKED
from ._staging import Staging
from ._static import strict_key, tree_key


_NUMBERS = frozenset((bool, int, float, complex))


@final
class Refused(Exception):
    """A call that an executable was not made for; who catches it finds out why."""


@final
@attrs.frozen(eq=False, kw_only=True)
class Inputs:
    """How some of the values of a call become inputs of the program.

    `statics` are the static leaves by index, each with its strict key; `mask` marks the
    others, or is `None` where there are no others; `numbers` are the inputs for which
    JAX's dispatch would take a Python number for an array; `targets` are the shardings
    to copy to, if that was asked for.
    """

    treedef: Any
    statics: tuple[tuple[int, Any, Any], ...]
    mask: tuple[bool, ...] | None
    numbers: tuple[int, ...]
    targets: tuple[Any, ...] | None

    @property
    def as_they_are(self) -> bool:
        """Whether the dispatch, which flattens too, can take the values themselves."""
        return self.mask is None and not self.numbers and self.targets is None

    def of(self, values: Any) -> Sequence[Any]:
        """The inputs; raises `Refused` for another structure or other static leaves."""
        leaves, treedef = _jax.flatten(values)
        if not same_structure(treedef, self.treedef):
            raise Refused
        if self.mask is not None:
            for index, value, key in self.statics:
                leaf = leaves[index]
                if leaf is not value and not _same(leaf, key):
                    raise Refused
            leaves = list(compress(leaves, self.mask))
        for index in self.numbers:
            if type(leaves[index]) in _NUMBERS:
                raise Refused
        return leaves if self.targets is None else place(leaves, self.targets)


def same_structure(given: Any, expected: Any) -> bool:
    """Whether two structures are equal, or strictly so where they hold a NaN, say."""
    try:
        return given == expected or tree_key(given) == tree_key(expected)
    except Exception:  # noqa: BLE001  # of the static fields' own methods
        return False


def _same(leaf: Any, key: Any) -> bool:
    try:
        return strict_key(leaf) == key
    except Exception:  # noqa: BLE001  # what cannot be compared is refused with a reason
        return False


@final
@attrs.frozen(eq=False, kw_only=True)
class Caller:
    """How one executable is called.

    `dispatch` takes the values of the parameters where `inputs.as_they_are`, else the
    inputs. `plain` is the number of positional arguments that are the values already,
    or -1; `wanted` is where the executable wants its inputs. `reads_random` says that
    the program was made with the settings of random numbers, which JAX's dispatch does
    not look at.
    """

    staging: Staging
    call: BoundCall
    inputs: Inputs
    dispatch: Callable[..., Any]
    plain: int
    direct: bool
    wanted: tuple[Any, ...]
    reads_random: bool

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result for some arguments."""
        try:
            values = args
            if kwargs or len(args) != self.plain:
                values = self.staging.binder.bind(args, kwargs)
            if not self.direct:
                values = self.inputs.of(values)
            if self.reads_random:
                self.check_random()
            out = self.dispatch(*values)
        except Exception as error:  # noqa: BLE001  # explained, or raised again
            self.explain(args, kwargs, error)
        return out.unpack() if type(out) in PACKED else out

    def check_random(self) -> None:
        """Refuse other settings of random numbers than the program was made with."""
        if _jax.random_settings() != self.call.context.random():
            raise Refused

    def with_staging(self, staging: Staging) -> Caller:
        """The same for another function of the same structure."""
        return attrs.evolve(self, staging=staging, plain=staging.binder.plain)

    def explain(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
    ) -> NoReturn:
        """Raise the error that says why a call failed, or `error` if it is not ours."""
        if isinstance(error, (StagedError, eqx.EquinoxRuntimeError)):
            raise error
        staging, name = self.staging, self.call.fun_name
        if isinstance(error, _jax.FloatingPointFailure):
            raise floating_point_error(name, error) from None
        keyed, _ = _jax.tree_flatten_with_path(staging.binder.bind(args, kwargs))
        parameters = staging.binder.parameters
        require_top_level(
            [leaf for _, leaf in keyed],
            [path_of(parameters, keys) for keys, _ in keyed],
            name,
        )
        given, inputs = staging.bind(args, kwargs)
        self._refuse_abstract(given, inputs)
        self.refuse(given)
        if isinstance(error, Refused) or blames_buffer(error):
            buffers = explain_buffers(
                inputs, given.dynamic_paths, given.donated_mask, name
            )
            if buffers is not None:
                raise buffers from None
        raise error

    def refuse(self, given: BoundCall) -> None:
        """Raise for a record that differs from the executable's where that counts."""
        found = tuple(
            self._as_placed(d) for d in self.call.diff(given) if self.counts(d)
        )
        if found:
            raise CallMismatchError(
                f"`{self.call.fun_name}`: the call is not the one that it was compiled "
                f"for.\n{listed(found)}\n"
                "Call it as it was traced, stage it anew for this call, or call the "
                "jitted function, which compiles whatever it is called with.",
                differences=found,
            ) from None

    def _refuse_abstract(self, given: BoundCall, inputs: Sequence[Any]) -> None:
        for path, leaf in zip(given.dynamic_paths, inputs, strict=True):
            if not isinstance(leaf, jax.ShapeDtypeStruct):
                continue
            name = self.call.fun_name
            carried = any(
                leaf is x for x in jtu.tree_leaves(self.staging.binder.carried)
            )
            if carried:
                raise AbstractArgumentError(
                    f"`{name}` was traced for a function whose own arrays are "
                    f"abstract.\n  `{path}` is {aval_of(leaf)}, a shape and dtype "
                    "without values.\n"
                    "Give it a function with arrays: `compiled.with_fun(fun)(...)`.",
                    path=path,
                )
            raise abstract_argument(name, path, leaf)

    def counts(self, difference: Difference) -> bool:
        """Whether the executable cannot overlook a difference of two records."""
        if difference.kind == "weak type":
            return bool(difference.expected)
        if difference.kind == "context":
            name = difference.path.removeprefix("jax.config.")
            return self.reads_random if name in RANDOM else name != "mesh"
        if difference.kind != "sharding" or not isinstance(
            difference.given, ArraySharding
        ):
            return difference.kind != "sharding"
        wanted = self._wanted(difference)
        return wanted is not None and wanted != difference.given

    def _as_placed(self, difference: Difference) -> Difference:
        """A difference in sharding with what the executable wants, not the record."""
        if difference.kind != "sharding":
            return difference
        return attrs.evolve(difference, expected=self._wanted(difference))

    def _wanted(self, difference: Difference) -> ArraySharding | None:
        """Where the executable wants the array at the path of a difference."""
        wanted = self.wanted[self.call.dynamic_paths.index(difference.path)]
        ndim = difference.given.ndim
        return None if wanted is None else ArraySharding(wanted, ndim)


def floating_point_error(name: str, error: Exception) -> FloatingPointError:
    """The error for a result that `jax.debug_nans` or its like does not allow."""
    return FloatingPointError(
        f"`{name}`: a result holds an invalid value ({error.args[-1]}). Call the "
        "function itself to see where it arises."
    )


def abstract_argument(name: str, path: str, leaf: Any) -> AbstractArgumentError:
    """The error for an abstract value where a call computes."""
    return AbstractArgumentError(
        f"`{name}` was called with an abstract value.\n"
        f"  `{path}`: expected an array, given a ShapeDtypeStruct of {aval_of(leaf)}.\n"
        "Abstract values are for `trace`, `lower` and `eval_shape`; pass an array.",
        path=path,
    )


def _placed(leaf: Any, target: Any) -> Any:
    if target is None or not isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, _jax.Tracer) or not leaf.committed:
        return leaf
    if leaf.sharding.is_equivalent_to(target, leaf.ndim):
        return leaf
    return _jax.device_put(leaf, target)


def place(leaves: Sequence[Any], targets: Sequence[Any]) -> list[Any]:
    """Copy committed arrays that are elsewhere to where they are wanted."""
    return list(map(_placed, leaves, targets))


def unplaced(call: BoundCall, targets: Sequence[Any]) -> tuple[Aval, ...]:
    """The abstract leaves of a call whose arrays are to be copied elsewhere."""
    return tuple(
        aval if target is None else attrs.evolve(aval, sharding=None)
        for aval, target in zip(call.avals, targets, strict=True)
    )


def misplaced(call: BoundCall, targets: Sequence[Any]) -> CallMismatchError | None:
    """The error for arrays that are not where `in_shardings` wants them, if any."""
    found: list[Difference] = []
    for path, aval, target in zip(call.dynamic_paths, call.avals, targets, strict=True):
        if aval.sharding is None or target is None:
            continue
        wanted = ArraySharding(target, len(aval.shape))
        if wanted != aval.sharding:
            found.append(
                Difference(
                    path=path, kind="sharding", expected=wanted, given=aval.sharding
                )
            )
    if not found:
        return None
    return CallMismatchError(
        f"`{call.fun_name}`: an argument is not where `in_shardings` wants it.\n"
        f"{listed(found)}\n"
        "Move it there by `jax.device_put`, or let each call copy it: "
        "`jit(reshard=True)`.",
        differences=tuple(found),
    )


def number_places(call: BoundCall, dynamic: Callable[[Any], bool]) -> tuple[int, ...]:
    """The inputs where JAX's dispatch would take a number, which is a static value."""
    return tuple(
        index
        for index, aval in enumerate(call.avals)
        if aval.shape == ()
        and (aval.weak_type or aval.dtype == bool)
        and not is_dynamic(dynamic, 1.0)
    )


def make_caller(
    staging: Staging,
    call: BoundCall,
    compiled: jax.stages.Compiled,
    *,
    waits: bool,
    reads_random: bool,
) -> Caller:
    """The caller of an executable."""
    inner = _jax.compiled_miss(compiled)
    paths, name, dynamic = call.dynamic_paths, call.fun_name, staging.options.dynamic
    partition = call.partition

    def miss(*leaves: Any) -> tuple[Any, Any, Any]:
        require_top_level(leaves, paths, name)
        if current_context().numerics() != call.context.numerics():
            raise Refused
        for leaf, aval in zip(leaves, call.avals, strict=True):
            if isinstance(leaf, jax.ShapeDtypeStruct) or not is_dynamic(dynamic, leaf):
                raise Refused
            given = aval_of(leaf)
            same = given.shape == aval.shape and given.dtype == aval.dtype
            if not same or (aval.weak_type and not given.weak_type):
                raise Refused
        if not waits:
            return inner(*leaves)
        __equinox_jit_id__ = os.urandom(16)
        outputs, _, flag = waiting(__equinox_jit_id__, inner, *leaves)
        return outputs, None, flag

    def miss_of_values(*values: Any) -> tuple[Any, Any, Any]:
        leaves, treedef = _jax.flatten(values)
        if not same_structure(treedef, partition.treedef):
            raise Refused
        return miss(*leaves)

    places = [i for i, m in enumerate(partition.mask) if not m]
    keys = map(strict_key, call.statics)
    wanted = tuple(_jax.input_shardings(compiled, len(paths)))
    inputs = Inputs(
        treedef=partition.treedef,
        statics=tuple(zip(places, call.statics, keys, strict=True)),
        mask=partition.mask if places else None,
        numbers=number_places(call, dynamic),
        targets=wanted if staging.options.reshard else None,
    )
    direct = inputs.as_they_are
    return Caller(
        staging=staging,
        call=call,
        inputs=inputs,
        dispatch=_jax.dispatcher(name, miss_of_values if direct else miss),
        plain=staging.binder.plain,
        direct=direct,
        wanted=wanted,
        reads_random=reads_random,
    )


def refuse(found: tuple[Difference, ...], name: str) -> NoReturn:
    """Raise for a function that an executable cannot be called with."""
    raise CallMismatchError(
        f"`{name}`: the function is not like the one that it was compiled for.\n"
        f"{listed(found)}\n"
        "Give a function of the same structure, or stage the new one.",
        differences=found,
    )
