"""The options of `jit`, checked where they are given.

This module uses `_call`, `_donation`, `_errors`, `_jax`, `_signature` and `_static`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, cast, final

import attrs
import equinox as eqx
import jax
import jax.tree_util as jtu

from . import _jax
from ._call import BoundCall, Predicate
from ._donation import Donation, parse_donation
from ._errors import CompilerOptionError, OptionError
from ._signature import Binder
from ._static import one_level


@final
class _Unspecified:
    def __repr__(self) -> str:
        return "unspecified"

    def __reduce__(self) -> str:
        return "UNSPECIFIED"  # a copy is the same object


UNSPECIFIED: Any = _Unspecified()
"""Stands for an option that was not given, where `None` means something to JAX."""

_PASSED = ("keep_unused", "device", "backend", "inline", "compiler_options")
_INSTEAD = {
    "static_argnums": "every leaf that is no array is static already; see `dynamic`",
    "static_argnames": "every leaf that is no array is static already; see `dynamic`",
    "donate_argnums": "name the parameters: `donate=('state',)`",
    "donate_argnames": "name the parameters: `donate=('state',)`",
    "abstracted_axes": "JAX itself no longer supports it",
    "axis_resources": "use `in_shardings` and `out_shardings`",
    "filter_spec": "use `dynamic`, a predicate on leaves",
}


@attrs.frozen(hash=False)
class Options:
    """What `jit` was told."""

    dynamic: Predicate
    donation: Donation
    in_shardings: Mapping[str, Any]
    out_shardings: Any
    reshard: bool
    passed: dict[str, Any] = attrs.field(eq=repr)  # `1` is not `True` to XLA

    def __hash__(self) -> int:
        return hash((self.dynamic, self.donation, self.reshard, repr(self.passed)))

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The options for XLA."""
        return self.passed.get("compiler_options") or {}

    def check_names(self, binder: Binder) -> None:
        """Refuse names that are no parameters of the function."""
        self.donation.check_names(binder)
        known = binder.parameters.names()
        for name in self.in_shardings:
            if known is not None and name not in known:
                raise OptionError(
                    f"`{binder.fun_name}`: `in_shardings` names {name!r}, which is no "
                    f"parameter of it.\n  expected one of {known}.",
                    option="in_shardings",
                )

    def shardings(self, call: BoundCall) -> tuple[Any, ...] | None:
        """The sharding asked for each dynamic leaf; `None` if none is asked for."""
        if not self.in_shardings:
            return None
        mask = call.partition.mask
        is_input = iter(mask)
        found: list[Any] = []
        for name, path, tree in call.named:
            prefix = self.in_shardings.get(name)
            misfit = _Misfit(call.fun_name, "in_shardings", "argument")
            found.extend(_broadcast(prefix, tree, path, is_input, misfit))
        return tuple(compress(found, mask))

    def check_backend(self, fun_name: str) -> None:
        """Refuse a `backend` that is not here; JAX's are set up by asking for one."""
        backend = self.passed.get("backend")
        if backend is None:
            return
        try:
            _jax.devices(backend)
        except RuntimeError as error:
            raise OptionError(
                f"`{fun_name}`: there is no `backend` {backend!r} here.\n  {error}",
                option="backend",
            ) from None

    def check_result(self, result: Any, mask: Sequence[bool], fun_name: str) -> None:
        """Refuse `out_shardings` that are no prefix of the result's tree."""
        misfit = _Misfit(fun_name, "out_shardings", "result")
        _broadcast(self.out_shardings, result, "result", iter(mask), misfit)


_DEFAULTS: dict[str, Any] = {
    "donate": "none",
    "unused_donation": None,
    "dynamic": eqx.is_array,
    "in_shardings": None,
    "out_shardings": UNSPECIFIED,
    "reshard": False,
}


def parse_options(given: Mapping[str, Any]) -> Options:
    """Check the options of `jit`; raises `OptionError`. Equal ones give one object."""
    own, passed = dict(_DEFAULTS), dict[str, Any]()
    for name, value in given.items():
        if name not in _DEFAULTS and name not in _PASSED:
            raise _unknown(name)
        (own if name in _DEFAULTS else passed)[name] = value
    dynamic, in_shardings = own["dynamic"], own["in_shardings"] or dict[str, Any]()
    if not callable(dynamic):
        raise OptionError(
            "`jit(dynamic=...)` must be a predicate on leaves, such as "
            f"`equinox.is_array`, given {dynamic!r}.",
            option="dynamic",
        )
    if not isinstance(in_shardings, Mapping):
        raise OptionError(
            "`jit(in_shardings=...)` must map names of parameters to shardings, given "
            f"{in_shardings!r}.",
            option="in_shardings",
        )
    if not isinstance(own["reshard"], bool):
        raise OptionError(
            f"`jit(reshard=...)` must be True or False, given {own['reshard']!r}.",
            option="reshard",
        )
    device = passed.get("device")
    if device is not None and not hasattr(device, "client"):
        raise OptionError(
            f"`jit(device=...)` must be a device of JAX, given {device!r}.",
            option="device",
        )
    if device is not None and passed.get("backend") is not None:
        raise OptionError(
            "`jit` takes `device` or `backend`, not both.", option="device"
        )
    if passed.get("compiler_options") is not None:
        passed["compiler_options"] = compiler_options_of(passed["compiler_options"])
    for name in ("keep_unused", "inline"):
        if not isinstance(passed.get(name, False), bool):
            raise OptionError(
                f"`jit({name}=...)` must be True or False, given {passed[name]!r}.",
                option=name,
            )
    if own["out_shardings"] is not UNSPECIFIED:
        _check_shardings(own["out_shardings"])
    return Options(
        own["dynamic"],
        parse_donation(own["donate"], own["unused_donation"]),
        dict(cast("Mapping[str, Any]", in_shardings)),
        own["out_shardings"],
        own["reshard"],
        passed,
    )


def _check_shardings(tree: Any) -> None:
    """Refuse a leaf of `out_shardings` that says no place."""
    places = (jax.sharding.Sharding, jax.sharding.PartitionSpec, *_jax.LAYOUTS)
    for leaf in jtu.tree_leaves(tree, is_leaf=lambda x: isinstance(x, places)):
        if not isinstance(leaf, places):
            raise OptionError(
                "`jit(out_shardings=...)` must be a sharding, or a prefix of the "
                f"result's tree with shardings as leaves, given {leaf!r}.",
                option="out_shardings",
            )


def compiler_options_of(options: Any) -> dict[str, Any]:
    """Options for XLA as a dict; `OptionError` where XLA can take no such thing."""
    if not isinstance(options, Mapping):
        raise OptionError(
            f"`compiler_options` must map names to values, given {options!r}.",
            option="compiler_options",
        )
    found = dict(cast("Mapping[Any, Any]", options))
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, (str, bool, int, float)):
            raise OptionError(
                "`compiler_options` maps names to a string, a bool, an int or a float "
                f"each, given {value!r} for {name!r}.",
                option="compiler_options",
            )
    return found


_BLAMES_OPTION = ("No such compile option", "While setting option")


def refused_by_xla(
    error: Exception, options: Mapping[str, Any] | None, fun_name: str
) -> CompilerOptionError | None:
    """Our error for one of XLA's that blames one of the `compiler_options`."""
    if not options or not any(words in str(error) for words in _BLAMES_OPTION):
        return None
    return CompilerOptionError(
        f"`{fun_name}`: XLA refuses the `compiler_options` {dict(options)!r}.\n"
        f"  {error}",
        options=dict(options),
    )


def _unknown(name: str) -> OptionError:
    if name in _INSTEAD:
        return OptionError(
            f"`jit` has no option `{name}`: {_INSTEAD[name]}.", option=name
        )
    near = difflib.get_close_matches(name, [*_DEFAULTS, *_PASSED], 1)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return OptionError(f"`jit` has no option `{name}`.{hint}", option=name)


def resolved(target: Any, fun_name: str) -> jax.sharding.Sharding | None:
    """What one of the `in_shardings` means here and now.

    A bare `PartitionSpec` is one over the mesh that is set; where only an abstract mesh
    is, inside a transformation or by `use_abstract_mesh`, it asks for no place yet.
    """
    if not isinstance(target, jax.sharding.PartitionSpec):
        return target
    abstract: Any = jax.sharding.get_abstract_mesh()
    if abstract.empty:
        raise OptionError(
            f"`{fun_name}`: `in_shardings` holds {target}, but no mesh is set.\n"
            "Set one by `jax.set_mesh`, or give a `jax.sharding.NamedSharding`.",
            option="in_shardings",
        )
    if not _jax.may_compute():
        return None
    mesh: Any = jax.sharding.get_mesh()
    return None if mesh.empty else jax.sharding.NamedSharding(mesh, target)


@attrs.frozen
class _Misfit:
    """The error for shardings that are no prefix of a tree."""

    fun_name: str
    option: str
    what: str

    def __call__(self, prefix: Any, path: str) -> OptionError:
        return OptionError(
            f"`{self.fun_name}`: `{self.option}` does not fit the {self.what} at "
            f"`{path}`.\n"
            f"  expected a sharding or a prefix of the tree there, given {prefix!r}.",
            option=self.option,
        )


def _broadcast(
    prefix: Any, tree: Any, path: str, mask: Iterator[bool], misfit: _Misfit
) -> list[Any]:
    """One sharding for each leaf of a tree, from a prefix of it."""
    if prefix is None or isinstance(
        prefix, (jax.sharding.Sharding, jax.sharding.PartitionSpec)
    ):
        return [prefix for _ in zip(jtu.tree_leaves(tree), mask, strict=False)]
    children, treedef = one_level(tree)
    if treedef.node_data() is None:
        if next(mask):
            raise misfit(prefix, path)
        return [None]  # a static leaf matches whatever stands there
    parts, prefix_def = one_level(prefix)
    if prefix_def.node_data() is None or type(prefix) is not type(tree):
        raise misfit(prefix, path)
    by_key = {_jax.keystr(keys): part for keys, part in parts}
    if set(by_key) != {_jax.keystr(keys) for keys, _ in children}:
        raise misfit(prefix, path)
    found: list[Any] = []
    for keys, child in children:
        key = _jax.keystr(keys)
        found += _broadcast(by_key[key], child, path + key, mask, misfit)
    return found
