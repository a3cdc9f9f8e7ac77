"""The record of a call, made in one place and carried unchanged by every stage.

`bind` is the only place where arguments become leaves, and `BoundCall` (with the
`Partition` inside it) the only one where leaves become arguments again. This module
uses `_abstract`, `_diff`, `_donation`, `_errors`, `_jax`, `_reprs`, `_signature` and
`_static`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from types import MappingProxyType
from typing import Any, final

import attrs
import equinox as eqx
import jax

from . import _jax
from ._abstract import Aval, Context, aval_of, current_context
from ._diff import Difference, differences
from ._donation import Donation
from ._errors import OptionError, checked
from ._reprs import static_text
from ._signature import ABSENT, Binder, Parameter, Parameters
from ._static import (
    NUMPY,
    check_static,
    check_structure,
    holdable,
    strict_key,
    tree_key,
)


Predicate = Callable[[Any], bool]


def is_dynamic(dynamic: Predicate, leaf: Any) -> bool:
    """Whether a leaf is an input of the program, by the user's predicate.

    An abstract value is asked about through a tracer of its shape and dtype.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        if dynamic is eqx.is_array or dynamic is eqx.is_array_like:
            return True
        answers: list[bool] = []
        try:
            _jax.eval_shape(lambda tracer: answers.append(bool(dynamic(tracer))), leaf)
        except Exception as error:  # noqa: BLE001  # of the user's predicate
            raise OptionError(
                f"`dynamic` gives no answer for an abstract value of {aval_of(leaf)}.\n"
                f"  It raises {type(error).__name__}.\n"
                "Let it look at types, shapes and dtypes alone, not at values.",
                option="dynamic",
            ) from None
        return answers[0]
    if isinstance(leaf, NUMPY) and not holdable(leaf.dtype):
        return False
    return bool(dynamic(leaf))


@attrs.frozen(eq=False)
class Partition:
    """How the values of the parameters split into dynamic and static leaves."""

    parameters: Parameters
    treedef: Any
    mask: tuple[bool, ...]

    def values(self, dynamic: Sequence[Any], static: Sequence[Any]) -> tuple[Any, ...]:
        """One value for each parameter, from its leaves."""
        inputs, constants = iter(dynamic), iter(static)
        return self.treedef.unflatten(
            [next(inputs) if m else next(constants) for m in self.mask]
        )

    def arguments(
        self, dynamic: Sequence[Any], static: Sequence[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the function, from the leaves."""
        return self.parameters.unbind(self.values(dynamic, static))

    def static(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The static ones among all leaves."""
        return tuple(leaf for m, leaf in zip(self.mask, leaves, strict=True) if not m)


def path_of(parameters: Parameters, keys: Sequence[Any]) -> str:
    """A tree path in the user's terms: `model.layers[0].weight`."""
    index: int = keys[0].idx
    parameter, rest = parameters.items[index], tuple(keys[1:])
    if parameter.kind is Parameter.VAR_KEYWORD and rest:
        start = _keyword_path(parameters, parameter, rest[0].key)
        return f"{start}{_jax.keystr(rest[1:])}"
    return f"{parameter.name}{_jax.keystr(rest)}"


def _keyword_path(parameters: Parameters, parameter: Parameter, name: str) -> str:
    """The path of one of `**kwargs`: its name, unless a parameter bears it too."""
    others = (p.name for p in parameters.items if p is not parameter)
    return f"**{parameter.name}[{name!r}]" if name in others else name


def named(
    parameters: Parameters, values: Sequence[Any]
) -> Iterator[tuple[str, str, Any]]:
    """The name, the path and the value of each parameter; each of `**kwargs` apart."""
    for parameter, value in zip(parameters.items, values, strict=True):
        if parameter.kind is Parameter.VAR_KEYWORD:
            for name, item in value.items():
                yield name, _keyword_path(parameters, parameter, name), item
        elif value is not ABSENT:
            yield parameter.name, parameter.name, value


@final
@checked
@attrs.frozen(kw_only=True, eq=False, repr=False, slots=False)
class BoundCall:
    """One call, bound to the function's signature: what every stage was made for.

    Two records are equal, and have the same hash, if they describe the same call of the
    same function: however the arguments were spelled, with static values compared
    strictly. It holds no array of the call.
    """

    fun_name: str
    """The function's name."""

    context: Context
    """What of JAX's configuration was in force."""

    _fun: Any = attrs.field(alias="fun")
    _carried: frozenset[Any] = attrs.field(alias="carried")
    partition: Partition
    avals: tuple[Aval, ...]
    statics: tuple[Any, ...]
    donated_mask: tuple[bool, ...]
    _paths: tuple[str, ...] = attrs.field(alias="paths")

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, each array as a `jax.ShapeDtypeStruct`.

        What is a parameter's default, or carried by the function itself, is left out.
        """
        return self._arguments[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, each array as a `jax.ShapeDtypeStruct`."""
        return self._arguments[1]

    @property
    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.arguments([aval.struct() for aval in self.avals])

    def arguments(
        self, dynamic: Sequence[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call, with other things in place of its arrays."""
        values = self.partition.values(dynamic, self.statics)
        return self.partition.parameters.unbind(values, self._carried)

    @property
    def dynamic(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """The abstract value of each dynamic leaf, by its tree path."""
        structs = (aval.struct() for aval in self.avals)
        paths = compress(self._paths, self.partition.mask)
        return MappingProxyType(dict(zip(paths, structs, strict=True)))

    @property
    def static(self) -> Mapping[str, Any]:
        """The value of each static leaf, by its tree path."""
        paths = self.partition.static(self._paths)
        return MappingProxyType(dict(zip(paths, self.statics, strict=True)))

    @property
    def donated(self) -> tuple[str, ...]:
        """The tree paths of the leaves whose buffers the program may reuse."""
        return tuple(compress(self.dynamic_paths, self.donated_mask))

    @property
    def dynamic_paths(self) -> tuple[str, ...]:
        """The tree paths of the dynamic leaves, in the order of the inputs."""
        return tuple(compress(self._paths, self.partition.mask))

    def diff(self, other: BoundCall) -> tuple[Difference, ...]:
        """What is different in `other`, by tree path, with this record as the expected.

        Empty exactly if the records are equal.
        """
        return tuple(self._differences(other))

    def _differences(self, other: BoundCall) -> Iterator[Difference]:
        if strict_key(self._fun) != strict_key(other._fun):
            yield Difference(
                path="",
                kind="function",
                expected=self.fun_name,
                given=other.fun_name,
            )
        yield from differences(self.by_path, other.by_path)
        ours, theirs = set(self.donated), set(other.donated)
        shared = set(self.dynamic_paths) & set(other.dynamic_paths)
        for path in self.dynamic_paths:
            if path in shared and (path in ours) != (path in theirs):
                words = ("not donated", "donated")
                yield Difference(
                    path=path,
                    kind="donation",
                    expected=words[path in ours],
                    given=words[path in theirs],
                )
        for field in attrs.fields(Context):
            mine = getattr(self.context, field.name)
            other_one = getattr(other.context, field.name)
            if mine != other_one:
                yield Difference(
                    path=f"jax.config.{field.name}",
                    kind="context",
                    expected=mine,
                    given=other_one,
                )

    @property
    def named(self) -> Iterator[tuple[str, str, Any]]:
        """Each parameter's name, path and value; abstract values as leaves."""
        values = self.partition.values(self.avals, self.statics)
        return named(self.partition.parameters, values)

    @property
    def by_path(self) -> dict[str, Any]:
        """The value of each parameter by its path; abstract values as leaves."""
        return {path: value for _, path, value in self.named}

    @cached_property
    def program_key(self) -> Hashable:
        """All but shapes, dtypes and context: what JAX itself does not tell apart."""
        return (
            tree_key(self.partition.treedef),
            self.partition.mask,
            tuple(map(strict_key, self.statics)),
            self.donated_mask,
        )

    @property
    def _key(self) -> Hashable:
        return strict_key(self._fun), self.program_key, self.avals, self.context

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundCall):
            return NotImplemented
        return self is other or self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        lines = [f"BoundCall of {self.fun_name}:"]
        donated = set(self.donated)
        static = iter(self.statics)
        avals = iter(self.avals)
        for path, dynamic in zip(self._paths, self.partition.mask, strict=True):
            if dynamic:
                aval = next(avals)
                notes = [str(aval)]
                notes += ["weak"] * aval.weak_type
                notes += [f"on {aval.sharding}"] * (aval.sharding is not None)
                notes += ["donated"] * (path in donated)
                lines.append(f"  {path}: {', '.join(notes)}")
            else:
                lines.append(f"  {path} = {static_text(next(static))}")
        return "\n".join(lines)


def bind(
    binder: Binder,
    dynamic: Predicate,
    donation: Donation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[BoundCall, list[Any]]:
    """The record of a call, and its dynamic leaves; the one place that makes either.

    Raises `SignatureError` where the arguments do not fit, and `StaticLeafError` where
    a static value cannot be compared.
    """
    values = binder.bind(args, kwargs)
    parameters, name = binder.parameters, binder.fun_name
    keyed, treedef = _jax.tree_flatten_with_path(values)
    paths = tuple(path_of(parameters, keys) for keys, _ in keyed)
    leaves = [leaf for _, leaf in keyed]
    mask = tuple(is_dynamic(dynamic, leaf) for leaf in leaves)
    for path, leaf, is_input in zip(paths, leaves, mask, strict=True):
        if not is_input:
            check_static(leaf, path, name, is_leaf=True)
    roots = ((path, value) for _, path, value in named(parameters, values))
    check_structure(roots, name)
    inputs = list(compress(leaves, mask))
    avals: list[Aval] = []
    for path, leaf in zip(compress(paths, mask), inputs, strict=True):
        avals.append(_aval(leaf, path, dynamic, name))
    partition = Partition(parameters, treedef, mask)
    plan = binder.plan(len(args), tuple(kwargs))
    donated = compress(donation.leaves(binder, plan, values), mask)
    call = BoundCall(
        fun_name=name,
        context=current_context(),
        fun=binder.opened.core,
        carried=plan.carried(),
        partition=partition,
        avals=tuple(avals),
        statics=partition.static(leaves),
        donated_mask=tuple(donated),
        paths=paths,
    )
    return call, inputs


def _aval(leaf: Any, path: str, dynamic: Predicate, fun_name: str) -> Aval:
    try:
        aval = aval_of(leaf)
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(
            f"`{fun_name}`: `{path}` cannot be an input of a program.\n"
            f"  `dynamic` says that it is one, but it is of type "
            f"`{type(leaf).__name__}`, which JAX refuses: {error}\n"
            "Let `dynamic` answer False for it.",
            option="dynamic",
        ) from None
    if dynamic is eqx.is_array or dynamic is eqx.is_array_like:
        return aval
    if not is_dynamic(dynamic, aval.struct()):
        raise OptionError(
            f"`{fun_name}`: `dynamic` answers differently for `{path}` and for its "
            f"abstract value.\n"
            f"  `{path}` is {aval}: True for the value, False for its shape and "
            "dtype.\n"
            "Let `dynamic` look at shapes, dtypes and types alone.",
            option="dynamic",
        )
    return aval
