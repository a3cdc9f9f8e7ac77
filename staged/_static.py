"""Static values: when two of them are the same, and which cannot be trusted.

Equality is strict, since a program that was made for `1` is not one for `1.0` or
`True`. This module uses `_equinox`, `_errors` and `_jax`.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import struct
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from decimal import Decimal
from typing import Any, cast

import attrs
import jax
import jax.tree_util as jtu
import numpy as np

from . import _jax
from ._equinox import without_names
from ._errors import StaticLeafError


@dataclasses.dataclass(frozen=True)
class _Default:
    """Stands for a parameter that was left out and whose default is no static value."""

    def __repr__(self) -> str:
        return "its default"


DEFAULT = _Default()

type_of: Callable[[Any], type[Any]] = type
"""`type` of a value that a type checker knows nothing of."""

_PADDED: tuple[Any, ...] = (np.longdouble, np.clongdouble)

_MORE_THAN_EQUAL = (Decimal, range, datetime.datetime, datetime.time)
"""Types whose equal values differ: `Decimal("0")` and `Decimal("-0")`, say."""

NUMPY: tuple[type[Any], type[Any]] = (np.ndarray, np.generic)
"""The two kinds of NumPy's values, whose own types have parameters unknown here."""


def strict_key(value: Any) -> Hashable:
    """A value that is equal for strictly equal static values only.

    Floats are compared by their bits, containers by their members; objects that are
    compared by identity are referred to weakly, so that a cache does not hold them.
    Raises `TypeError` where a value cannot be hashed or compared.
    """
    kind = type_of(value)
    if isinstance(value, NUMPY[1]) and not value.dtype.hasobject:
        if isinstance(value, _PADDED):
            return kind, repr(value)  # among its bytes are some that mean nothing
        return kind, value.dtype, value.tobytes()
    if isinstance(value, float):
        return kind, b"nan" if value != value else struct.pack("<d", value)
    if isinstance(value, complex):
        return kind, strict_key(value.real), strict_key(value.imag)
    if kind is _jax.PyTreeDef:
        return kind, tree_key(value)
    if isinstance(value, tuple):
        return kind, tuple(map(strict_key, _joined(value)))  # pyright: ignore[reportUnknownArgumentType]  # of anything
    if kind is slice:  # hashable from Python 3.12 on
        return kind, strict_key((value.start, value.stop, value.step))
    if isinstance(value, frozenset):
        return kind, frozenset(map(strict_key, value))  # pyright: ignore[reportUnknownArgumentType]  # of anything
    if kind is types.MethodType:
        return kind, strict_key(value.__func__), strict_key(value.__self__)
    if compares_by_identity(value):
        return kind, weakref.ref(value)
    hash(value)
    if kind in _MORE_THAN_EQUAL:
        return kind, value, repr(value)
    names = _compared_fields(kind)
    if names is not None:
        return kind, tuple([strict_key(getattr(value, name)) for name in names])
    if type(value == value) is not bool:
        raise TypeError(f"`==` of a {kind.__name__} does not give a plain bool")
    return kind, value


@functools.cache
def _compared_fields(kind: type[Any]) -> tuple[str, ...] | None:
    """The fields by which a dataclass or attrs class compares, if it does so by itself.

    `Config(1) == Config(1.0)` where `==` was generated from the fields: they are to be
    compared strictly. A class that defines its own `==` is taken at its word.
    """
    owner: Any = next(base for base in kind.__mro__ if "__eq__" in base.__dict__)
    if dataclasses.is_dataclass(owner):
        names = [field.name for field in dataclasses.fields(owner) if field.compare]
        generated = dataclasses.make_dataclass("_", names)
    elif attrs.has(owner):
        fields = [field for field in attrs.fields(owner) if field.eq]
        if any(field.eq_key for field in fields):
            return None
        names = [field.name for field in fields]
        generated = attrs.make_class("_", names)
    else:
        return None
    return tuple(names) if _same_code(generated.__eq__, owner.__eq__) else None


def _same_code(ours: Any, theirs: Any) -> bool:
    mine, other = ours.__code__, getattr(theirs, "__code__", None)
    return mine.co_code == getattr(other, "co_code", None) and (
        mine.co_names == getattr(other, "co_names", None)
    )


def _joined(items: Sequence[Any]) -> Sequence[Any]:
    """Static data with each flattened pytree, a list and its structure, as one tuple.

    Equinox and Lineax keep such ones in static fields. Theirs is the one list that is
    taken for a value: the structure beside it says how long it has to stay.
    """
    if list not in map(type_of, items):
        return items
    joined: list[Any] = []
    previous: tuple[Any, ...] = (None, *items)
    for before, item in zip(previous, items, strict=False):
        if _is_joined(before, item):
            joined[-1] = (tuple(before), item)
        else:
            joined.append(item)
    return joined


def _is_joined(before: Any, item: Any) -> bool:
    return type_of(item) is _jax.PyTreeDef and type_of(before) is list


def compares_by_identity(value: Any) -> bool:
    """Whether `value` is equal to itself alone, and can be referred to weakly."""
    kind = type_of(value)
    if kind.__eq__ is not object.__eq__ or kind.__hash__ is not object.__hash__:
        return isinstance(value, type)
    return kind.__weakrefoffset__ != 0


def identity_in(value: Any) -> Any:
    """What of `value` is compared by identity: it, or whose method it is, or `None`."""
    if type(value) is types.MethodType:
        value = value.__self__
    return value if compares_by_identity(value) else None


def held_weakly(value: Any) -> Callable[[], Any]:
    """`value` behind a call, without keeping it alive if it is compared by identity."""
    if identity_in(value) is None:
        return lambda: value
    if type(value) is types.MethodType:
        return weakref.WeakMethod(value)
    return weakref.ref(value)


def tree_key(treedef: Any) -> Hashable:
    """The same for a tree's structure: node types, static fields and all.

    `hash(treedef)` leaves static fields out, and its `==` takes `1` for `True`.
    """
    data = treedef.node_data()
    if data is None:
        return None
    kind, aux = data
    if kind is defaultdict:
        aux = (aux[0], tuple(aux[1]))
    elif kind is dict or kind is OrderedDict:
        aux = tuple(aux)  # JAX gives the keys as a list
    aux = without_names(kind, aux)
    return kind, strict_key(aux), tuple(map(tree_key, treedef.children()))


def check_static(
    value: Any, path: str, fun_name: str, *, is_leaf: bool = False
) -> None:
    """Refuse a static value that has no equality, or whose arrays may be replaced."""
    try:
        strict_key(value)
    except Exception as error:  # noqa: BLE001  # of the value's own methods
        way_out = (
            "Every leaf that is no array is static, and a program is made for its "
            "value. Pass a tuple, a frozenset or a frozen dataclass instead, or an "
            "array if the value changes from call to call."
        )
        is_array = isinstance(value, jax.Array) or (
            isinstance(value, NUMPY[0]) and holdable(value.dtype)
        )
        if is_leaf and is_array:
            way_out = (
                "It is static since `dynamic` says so, and an array has no hash. Let "
                "`dynamic` answer True for it, or pass its values in a tuple."
            )
        raise StaticLeafError(
            f"`{fun_name}`: the static value at `{path}` cannot be hashed and "
            f"compared.\n"
            f"  `{path}` is {_describe(value)}: {error}\n{way_out}",
            path=path,
        ) from None
    held = _array_in(value)
    if held is not None:
        raise StaticLeafError(
            f"`{fun_name}`: the static value at `{path}` holds an array, at "
            f"`{path}{held}`.\n"
            f"  `{path}` is {_describe(value)}, an object that is compared by "
            "identity: a later assignment to its attributes would not count.\n"
            "Make its class a pytree (an `equinox.Module`, or "
            "`jax.tree_util.register_dataclass`), or pass the array as an argument.",
            path=f"{path}{held}",
        )


def _describe(value: Any) -> str:
    text = shown(value)
    short = text if len(text) <= 60 else f"{text[:57]}..."
    return f"of type `{type(value).__name__}`, {short}"


def shown(value: Any) -> str:
    """The `repr` of a value, or its type where the value has none to give."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # of the value's own method
        return f"<{type(value).__name__}>"


_TRUSTED = ("jax", "jaxlib", "numpy", "equinox", "functools", "builtins", "staged")


def _is_object(value: Any) -> bool:
    """Whether `value` is an object with attributes of a user's: not code."""
    if isinstance(value, (type, types.FunctionType, types.ModuleType)):
        return False
    return type_of(value).__module__.partition(".")[0] not in _TRUSTED


def _array_in(value: Any) -> str | None:
    """Where below `value` an array stands that an assignment could replace."""
    if isinstance(value, types.MethodType):
        held = _array_in(value.__self__)
        return None if held is None else f".__self__{held}"
    if not _is_object(value) or type_of(value).__eq__ is not object.__eq__:
        return None
    seen: set[int] = set()
    pending = deque([(value, "")])
    while pending:
        item, path = pending.popleft()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, jax.Array) or (
            isinstance(item, NUMPY[0]) and item.dtype.kind not in "OUSV"
        ):
            return path
        if type_of(item) not in _ATOMS:
            pending.extend((part, path + step) for step, part in _parts(item))
    return None


_ATOMS = frozenset((int, float, complex, bool, str, bytes, type(None)))


def _parts(item: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(item, (set, frozenset)):
        for part in cast("Iterable[Any]", item):
            yield "{...}", part
    elif isinstance(item, Mapping):
        for key, part in cast("Mapping[Any, Any]", item).items():
            yield f"[{shown(key)}]", part
    elif isinstance(item, deque):
        for index, part in enumerate(cast("deque[Any]", item)):
            yield f"[{index}]", part
    else:
        children = one_level(item)[0]
        for keys, part in children:
            yield _jax.keystr(keys), part
        if not children and _is_object(item):
            for name, part in attributes(item):
                yield f".{name}", part


def attributes(item: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object that it holds itself, slots included."""
    yield from _looked_up(item, "__dict__", {}).items()
    for cls in type(item).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            private = name.startswith("__") and not name.endswith("__")
            held = f"_{cls.__name__.lstrip('_')}{name}" if private else name
            value = _looked_up(item, held, DEFAULT)
            if value is not DEFAULT:
                yield name, value


def _looked_up(item: Any, name: str, otherwise: Any) -> Any:
    """An attribute, without what a class's own `__getattr__` would say of it."""
    try:
        return object.__getattribute__(item, name)
    except AttributeError:
        return otherwise


_LEAF: Any = _jax.flatten(0)[1]


def one_level(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """The children of a pytree node with their keys, and its structure alone.

    A leaf has no children and the structure of a leaf.
    """
    if type(node).__module__ == "builtins" and isinstance(node, (Iterator, ValuesView)):
        return [], _LEAF  # JAX would say so too, with a warning

    def is_leaf(item: Any) -> bool:
        return item is not node

    children, treedef = _jax.tree_flatten_with_path(node, is_leaf=is_leaf)
    return ([] if treedef.node_data() is None else children), treedef


def static_parts(node: Any, treedef: Any) -> list[tuple[str, Any]]:
    """The static data of a pytree node, each part with its name as the user wrote it.

    JAX keeps them without names: a dataclass says which of its fields they are, and
    those of other nodes are found among the node's attributes.
    """
    kind, aux = treedef.node_data()
    if kind is defaultdict:
        return [(".default_factory", aux[0])]
    if isinstance(node, (dict, list, tuple)) or node is None:
        return []
    aux = without_names(kind, aux)
    parts = aux if type_of(aux) is tuple else (aux,)
    fields = dataclasses.fields(node) if dataclasses.is_dataclass(node) else ()
    static = [f".{field.name}" for field in fields if field.metadata.get("static")]
    if 0 < len(static) <= len(parts):
        # Equinox puts a mark of its own before the values of the fields.
        names = [""] * (len(parts) - len(static)) + static
        joined = [*map(_is_joined, (None, *parts), parts)]
        kept = [name for name, gone in zip(names, joined, strict=False) if not gone]
        return list(zip(kept, _joined(parts), strict=True))
    named = list(attributes(node))
    for keys, child in one_level(node)[0]:
        key = keys[0].name if isinstance(keys[0], jtu.GetAttrKey) else None
        for index, (name, held) in enumerate(named):
            if name == key or (key is None and held is child):
                del named[index]
                break
    for name, held in named:
        if held is aux:
            return [(f".{name}", aux)]
    return [(_take(named, part), part) for part in parts]


def _take(named: list[tuple[str, Any]], part: Any) -> str:
    """The name of the first attribute that is `part`, which is then taken."""
    for index, (name, held) in enumerate(named):
        if held is part:
            del named[index]
            return f".{name}"
    return ""


def check_structure(roots: Iterable[tuple[str, Any]], fun_name: str) -> None:
    """Refuse static *fields* that cannot be compared, by the path of the field."""
    pending = list(roots)
    while pending:
        path, node = pending.pop(0)
        children, treedef = one_level(node)
        if treedef.node_data() is None:
            continue
        for name, part in static_parts(node, treedef):
            check_static(part, f"{path}{name}", fun_name)
        pending.extend((path + _jax.keystr(keys), child) for keys, child in children)


@functools.cache
def holdable(dtype: np.dtype[Any]) -> bool:
    """Whether JAX has arrays of a NumPy dtype: not of strings, objects or times."""
    try:
        jax.typeof(np.empty(0, dtype))
    except TypeError:
        return False
    return True
