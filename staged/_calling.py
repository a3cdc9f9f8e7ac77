"""The call of an executable: checked against its record, explained where it fails.

The hot path flattens once, compares the structure, and goes to JAX's C++ dispatch,
which knows every signature that has been checked before. This module uses all of the
above.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NoReturn

import attrs
import equinox as eqx
import jax
import jax.tree_util as jtu

from . import _jax
from ._abstract import ArraySharding, Aval, aval_of, current_context
from ._call import BoundCall, is_dynamic, path_of
from ._diff import Difference, listed
from ._donation import blames_buffer, explain_buffers
from ._equinox import waiting
from ._errors import AbstractArgumentError, CallMismatchError, StagedError
from ._guards import require_top_level
from ._output import PACKED, unpack
from ._staging import Staging
from ._static import strict_key


_NUMBERS = frozenset((bool, int, float, complex))


class _Refused(Exception):
    """A signature that the executable was not made for."""


@attrs.frozen(eq=False)
class Caller:
    """How one executable is called.

    `flat` says that every parameter is one array, so that there is nothing to flatten;
    `numbers` are the inputs for which JAX's dispatch would take a Python number for an
    array; `targets` are the shardings to copy to, if that was asked for.
    """

    staging: Staging
    call: BoundCall
    dispatch: Callable[..., Any]
    plain: int
    flat: bool
    treedef: Any
    statics: tuple[tuple[int, Any, Any], ...]
    numbers: tuple[int, ...]
    targets: tuple[Any, ...] | None
    wanted: tuple[Any, ...]

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result for some arguments."""
        inputs: Any = args
        if kwargs or len(args) != self.plain:
            inputs = self.staging.binder.bind(args, kwargs)
        if not self.flat:
            inputs, treedef = _jax.flatten(inputs)
            try:
                differs = treedef != self.treedef
            except Exception:  # noqa: BLE001  # of the static fields' own methods
                differs = True
            if differs:
                return self._explain(args, kwargs, None)
        if self.statics:
            for index, value, key in self.statics:
                leaf = inputs[index]
                if leaf is not value and not _same(leaf, key):
                    return self._explain(args, kwargs, None)
            inputs = compress(inputs, self.call.partition.mask)
        if self.numbers or self.targets:
            inputs = list(inputs)
            if any(type(inputs[index]) in _NUMBERS for index in self.numbers):
                return self._explain(args, kwargs, None)
            if self.targets:
                inputs = list(map(_placed, inputs, self.targets))
        try:
            out = self.dispatch(*inputs)
        except (StagedError, eqx.EquinoxRuntimeError):
            raise
        except (_Refused, TypeError, ValueError, RuntimeError) as error:
            return self._explain(args, kwargs, error)
        except _jax.FloatingPointFailure as error:
            raise FloatingPointError(
                f"`{self.call.fun_name}`: a result holds an invalid value "
                f"({error.args[-1]}). Call the function itself to see where it arises."
            ) from None
        return unpack(out) if type(out) in PACKED else out

    def _explain(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception | None
    ) -> Any:
        """Raise the error that says why a call failed, or `error` if it is not ours."""
        staging, name = self.staging, self.call.fun_name
        keyed, _ = _jax.tree_flatten_with_path(staging.binder.bind(args, kwargs))
        parameters = staging.binder.parameters
        require_top_level(
            [leaf for _, leaf in keyed],
            [path_of(parameters, keys) for keys, _ in keyed],
            name,
        )
        given, inputs = staging.bind(args, kwargs)
        self._refuse_abstract(given, inputs)
        if error is None or isinstance(error, _Refused) or blames_buffer(error):
            buffers = explain_buffers(
                inputs, given.dynamic_paths, given.donated_mask, name
            )
            if buffers is not None:
                raise buffers from None
        found = tuple(
            self._as_placed(d)
            for d in self.call.diff(given)
            if self.counts(d)
        )
        if found:
            raise CallMismatchError(
                f"`{name}`: the call is not the one that it was compiled for.\n"
                f"{listed(found)}\n"
                "Call it as it was traced, stage it anew for this call, or call the "
                "jitted function, which compiles whatever it is called with.",
                differences=found,
            ) from None
        if error is not None:
            raise error
        # Equal by our comparison, though not by the structure's own: NaN, say.
        return unpack(self.dispatch(*inputs))

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
            return difference.path != "jax.config.mesh"
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


def abstract_argument(name: str, path: str, leaf: Any) -> AbstractArgumentError:
    """The error for an abstract value where a call computes."""
    return AbstractArgumentError(
        f"`{name}` was called with an abstract value.\n"
        f"  `{path}`: expected an array, given a ShapeDtypeStruct of {aval_of(leaf)}.\n"
        "Abstract values are for `trace`, `lower` and `eval_shape`; pass an array.",
        path=path,
    )


def _same(leaf: Any, key: Any) -> bool:
    try:
        return strict_key(leaf) == key
    except Exception:  # noqa: BLE001  # what cannot be compared is refused with a reason
        return False


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


def make_caller(
    staging: Staging, call: BoundCall, compiled: jax.stages.Compiled, *, waits: bool
) -> Caller:
    """The caller of an executable."""
    inner = _jax.compiled_miss(compiled)
    paths, name, dynamic = call.dynamic_paths, call.fun_name, staging.options.dynamic

    def miss(*leaves: Any) -> tuple[Any, Any, Any]:
        require_top_level(leaves, paths, name)
        if current_context().numerics() != call.context.numerics():
            raise _Refused
        for leaf, aval in zip(leaves, call.avals, strict=True):
            if isinstance(leaf, jax.ShapeDtypeStruct) or not is_dynamic(dynamic, leaf):
                raise _Refused
            given = aval_of(leaf)
            same = given.shape == aval.shape and given.dtype == aval.dtype
            if not same or (aval.weak_type and not given.weak_type):
                raise _Refused
        if not waits:
            return inner(*leaves)
        __equinox_jit_id__ = os.urandom(16)
        outputs, _, flag = waiting(__equinox_jit_id__, inner, *leaves)
        return outputs, None, flag

    def without_jit(*leaves: Any) -> Any:
        return miss(*leaves)[0]

    places = [i for i, m in enumerate(call.partition.mask) if not m]
    keys = map(strict_key, call.statics)
    wanted = tuple(_jax.input_shardings(compiled))
    numbers = tuple(
        index
        for index, aval in enumerate(call.avals)
        if aval.shape == ()
        and (aval.weak_type or aval.dtype == bool)
        and not is_dynamic(dynamic, 1.0)
    )
    return Caller(
        staging,
        call,
        _jax.dispatcher(name, without_jit, miss),
        staging.binder.plain,
        _jax.flatten((0,) * staging.binder.plain)[1] == call.partition.treedef
        and all(call.partition.mask),
        call.partition.treedef,
        tuple(zip(places, call.statics, keys, strict=True)),
        numbers,
        wanted if staging.options.reshard else None,
        wanted,
    )


def refuse(found: tuple[Difference, ...], name: str) -> NoReturn:
    """Raise for a function that an executable cannot be called with."""
    raise CallMismatchError(
        f"`{name}`: the function is not like the one that it was compiled for.\n"
        f"{listed(found)}\n"
        "Give a function of the same structure, or stage the new one.",
        differences=found,
    )
