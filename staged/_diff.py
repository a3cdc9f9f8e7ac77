"""The differences of two calls, leaf by leaf, in the user's own terms.

This module uses `_abstract`, `_errors`, `_jax`, `_reprs` and `_static`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, final

import attrs
import numpy as np

from . import _jax
from ._abstract import Aval
from ._errors import checked
from ._reprs import static_text, without_addresses
from ._static import (
    compares_by_identity,
    one_level,
    shown,
    static_parts,
    strict_key,
    tree_key,
)


Kind = Literal[
    "function",
    "structure",
    "shape",
    "dtype",
    "weak type",
    "sharding",
    "static value",
    "donation",
    "context",
]


@final
@checked
@attrs.frozen(kw_only=True)
class Difference:
    """One difference between two calls: where, of what kind, expected and given.

    `path` is a tree path in terms of the parameters, such as `model.layers[0].weight`.
    `expected` and `given` are the values themselves: a shape, a dtype, a static value.
    """

    path: str
    kind: Kind
    expected: Any
    given: Any

    def __str__(self) -> str:
        what = f"`{self.path}`" if self.path else "the function"
        expected, given = _text(self.kind, self.expected), _text(self.kind, self.given)
        kind = self.kind
        if expected == given and kind == "function":
            given = "another function of that name"
        elif expected == given:  # two functions of one name as values, say
            expected, given = shown(self.expected), shown(self.given)
        if kind == "static value" and self._by_identity():
            kind += ", compared by identity: pass the same object"
        return f"{what}: compiled for {expected}, given {given} ({kind})"

    def _by_identity(self) -> bool:
        """Whether the two values read alike, and are different objects all the same."""
        expected, given = map(
            without_addresses, (shown(self.expected), shown(self.given))
        )
        return expected == given and compares_by_identity(self.expected)


@attrs.frozen
class Description:
    """Words for what stands at a place, where no value can be shown."""

    words: str

    def __str__(self) -> str:
        return self.words


def _text(kind: Kind, value: Any) -> str:
    if kind == "weak type":
        return "a weak type" if value else "a strong type"
    if kind == "sharding" and value is None:
        return "an uncommitted array"
    if kind in ("function", "sharding", "donation"):
        return str(value)
    if isinstance(value, np.dtype):
        return value.name
    return str(value) if isinstance(value, (Aval, Description)) else static_text(value)


def differences(
    expected: Mapping[str, Any], given: Mapping[str, Any]
) -> Iterator[Difference]:
    """Compare trees by name; their dynamic leaves are abstract values (`Aval`)."""
    for name in [*expected, *(n for n in given if n not in expected)]:
        if name in expected and name in given:
            yield from _compare(name, expected[name], given[name])
        else:
            yield Difference(
                path=name,
                kind="structure",
                expected=_describe(expected.get(name, _NOTHING)),
                given=_describe(given.get(name, _NOTHING)),
            )


_NOTHING = Description("nothing")


def _describe(tree: Any) -> Any:
    """A leaf itself, or the type of a node."""
    children, treedef = one_level(tree)
    if treedef.node_data() is None or tree is None:
        return tree
    name = type(tree).__name__
    if isinstance(tree, (tuple, list, dict)):
        return Description(f"{name} of length {len(children)}")
    return Description(name)


def _compare(path: str, expected: Any, given: Any) -> Iterator[Difference]:
    ours, our_node = one_level(expected)
    theirs, their_node = one_level(given)
    if our_node.node_data() is None or their_node.node_data() is None:
        yield from _compare_leaves(path, expected, given)
        return
    if type(expected) is not type(given):
        yield _structure(path, expected, given)
        return
    static = list(_compare_static(path, (expected, our_node), (given, their_node)))
    yield from static
    our_children = {_jax.keystr(keys): child for keys, child in ours}
    their_children = {_jax.keystr(keys): child for keys, child in theirs}
    for key in dict.fromkeys([*our_children, *their_children]):
        below = path + key
        if key in our_children and key in their_children:
            yield from _compare(below, our_children[key], their_children[key])
        else:
            yield _structure(
                below,
                our_children.get(key, _NOTHING),
                their_children.get(key, _NOTHING),
            )
    same_children = set(our_children) == set(their_children)
    if not static and same_children and tree_key(our_node) != tree_key(their_node):
        # The order of an `OrderedDict`, say.
        yield Difference(
            path=path,
            kind="structure",
            expected=_describe_data(our_node),
            given=_describe_data(their_node),
        )


def _describe_data(treedef: Any) -> Description:
    kind, data = treedef.node_data()
    return Description(f"{kind.__name__} with {data}")


def _structure(path: str, expected: Any, given: Any) -> Difference:
    return Difference(
        path=path,
        kind="structure",
        expected=_describe(expected),
        given=_describe(given),
    )


def _compare_static(
    path: str, expected: tuple[Any, Any], given: tuple[Any, Any]
) -> Iterator[Difference]:
    """The static fields of two nodes of one type."""
    ours, theirs = static_parts(*expected), static_parts(*given)
    for (name, mine), (_, other) in zip(ours, theirs, strict=False):
        if strict_key(mine) != strict_key(other):
            yield Difference(
                path=path + name, kind="static value", expected=mine, given=other
            )


def _compare_leaves(path: str, expected: Any, given: Any) -> Iterator[Difference]:
    if isinstance(expected, Aval) and isinstance(given, Aval):
        for kind, field in _FIELDS:
            ours, theirs = getattr(expected, field), getattr(given, field)
            if ours != theirs:
                yield Difference(path=path, kind=kind, expected=ours, given=theirs)
    elif (
        isinstance(expected, Aval)
        or isinstance(given, Aval)
        or one_level(expected)[1] != one_level(given)[1]
    ):
        yield _structure(path, expected, given)
    elif strict_key(expected) != strict_key(given):
        yield Difference(path=path, kind="static value", expected=expected, given=given)


_FIELDS: tuple[tuple[Kind, str], ...] = (
    ("shape", "shape"),
    ("dtype", "dtype"),
    ("weak type", "weak_type"),
    ("sharding", "sharding"),
)


def listed(found: Iterable[Difference]) -> str:
    """The lines of a message that list differences."""
    return "\n".join(f"  {difference}" for difference in found)
