"""A function with the options of `jit`: what `Jitted` and every stage are about.

This module uses `_call`, `_jax`, `_options`, `_signature` and `_static`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import jax
import jax.tree_util as jtu

from . import _jax
from ._call import BoundCall, bind, is_dynamic
from ._options import Options
from ._signature import (
    Binder,
    Opened,
    Owner,
    function_parts,
    make_binder,
    name_of,
    open_function,
)
from ._static import one_level, static_parts, strict_key, tree_key


@attrs.frozen(eq=False)
class Staging:
    """A function, its options, and how its arguments are bound.

    `bound` says that the function is a decorated method of an instance, which then
    counts as the first argument of a call rather than as part of the function.
    """

    fun: Any
    bound: bool
    options: Options
    binder: Binder

    @staticmethod
    def of(
        fun: Callable[..., Any], options: Options, *, bound: bool = False
    ) -> Staging:
        """Open a function and prepare the binding of its arguments."""
        opened = open_function(fun)
        if bound and opened.values:
            *values, (instance, _) = opened.values
            opened = attrs.evolve(opened, values=(*values, (instance, Owner.CALL)))
        name = name_of(fun)

        def is_static(default: Any) -> bool:
            return _is_static(default, options)

        return Staging(fun, bound, options, make_binder(name, opened, is_static))

    @property
    def opened(self) -> Opened:
        """The function taken apart."""
        return self.binder.opened

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[BoundCall, list[Any]]:
        """The record of a call, and its dynamic leaves."""
        options = self.options
        return bind(self.binder, options.dynamic, options.donation, args, kwargs)

    def with_fun(self, fun: Any) -> Staging:
        """The same for another function, or for what a `Jitted` holds."""
        other = getattr(fun, "staging", None)
        if isinstance(other, Staging):
            return Staging.of(other.fun, self.options, bound=other.bound)
        return Staging.of(fun, self.options, bound=self.bound)

    def without_tracers(self) -> Staging:
        """The same, with abstract values in place of tracers in the function."""
        parts, form = function_parts(self.fun)
        if not any(isinstance(x, _jax.Tracer) for x in jtu.tree_leaves(parts)):
            return self
        fun = form.build(jtu.tree_map(_abstract, parts))
        return Staging.of(fun, self.options, bound=self.bound)


def _abstract(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    aval: Any = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _is_static(default: Any, options: Options) -> bool:
    """Whether a default holds no array, and can be compared."""
    leaves, treedef = _jax.flatten(default)
    try:
        tree_key(treedef)
        for leaf in leaves:
            strict_key(leaf)
            if is_dynamic(options.dynamic, leaf):
                return False
    except Exception:  # noqa: BLE001  # what cannot be compared is not static
        return False
    return True


def code_roots(staging: Staging, call: BoundCall) -> Iterator[tuple[str, Any]]:
    """Where a search for what a call's function closes over begins."""
    yield staging.binder.fun_name, staging.opened.core
    yield from call.static.items()
    pending: list[tuple[str, Any]] = list(call.by_path.items())
    while pending:
        path, node = pending.pop()
        children, treedef = one_level(node)
        if treedef.node_data() is not None:
            for name, part in static_parts(node, treedef):
                yield f"{path}{name}", part
        pending += [(path + _jax.keystr(keys), child) for keys, child in children]
