"""What a function returns, static leaves included, through a program of arrays.

This module uses `_jax` and `_static`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

import jax
import jax.tree_util as jtu

from . import _jax
from ._static import NUMPY, holdable, identity_in


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, NUMPY):
        return holdable(leaf.dtype)
    return isinstance(leaf, jax.Array)


@final
class _Rest:
    """What of a result is static.

    It is compared by identity, as JAX compares structures: the values in it may be of
    any kind, and need not compare at all. Those at the places of `held` are static
    values of the call, too, which gets them from its caller: the program is not to
    keep them alive.
    """

    __slots__ = ("held", "leaves", "places", "treedef")

    def __init__(
        self,
        treedef: Any,
        leaves: Sequence[Any],
        places: Sequence[int],
        held: Mapping[int, Callable[[], Any]],
    ) -> None:
        self.treedef = treedef
        self.leaves = leaves
        self.places = places
        self.held = held


@final
class Output:
    """A result with static leaves: its arrays as children, the rest as static data."""

    __slots__ = ("arrays", "rest")

    def __init__(self, arrays: Sequence[Any], rest: _Rest) -> None:
        self.arrays = arrays
        self.rest = rest

    def unpack(self) -> Any:
        """The result as the function returned it."""
        leaves = list(self.rest.leaves)
        for place, array in zip(self.rest.places, self.arrays, strict=True):
            leaves[place] = array
        for place, value in self.rest.held.items():
            leaves[place] = value()
        return self.rest.treedef.unflatten(leaves)


_jax.register_pytree_node(
    Output,
    lambda out: (out.arrays, out.rest),
    lambda rest, arrays: Output(arrays, rest),
)


@final
class PlacedOutput:
    """A result whose tree is kept, so that a prefix of shardings fits it."""

    __slots__ = ("tree",)

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def unpack(self) -> Any:
        """The result as the function returned it."""
        return jtu.tree_map(_value, self.tree, is_leaf=_is_static)


_jax.register_pytree_node(
    PlacedOutput,
    lambda out: ((out.tree,), None),
    lambda _, trees: PlacedOutput(trees[0]),
)


@final
class _Static:
    """A static leaf of a result, as a node without children, compared by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Callable[[], Any]) -> None:
        self.value = value


_jax.register_pytree_node(
    _Static, lambda static: ((), static), lambda static, _: static
)


def _is_static(leaf: Any) -> bool:
    return isinstance(leaf, _Static)


def _value(leaf: Any) -> Any:
    return leaf.value() if isinstance(leaf, _Static) else leaf


PACKED: frozenset[type] = frozenset((Output, PlacedOutput))
"""What `pack` wraps a result in."""


Held = Sequence[tuple[Any, Callable[[], Any]]]
"""The static values of a call, each with the way to it that does not keep it alive."""


def pack_placed(
    result: Any, held: Held, check: Callable[[Any, Sequence[bool]], None]
) -> Any:
    """A result as a tree of arrays that a prefix of shardings fits.

    `check` is called with the result, and whether each of its leaves is an array.
    """
    leaves, treedef = _jax.flatten(result)
    mask = list(map(_is_array, leaves))
    check(result, mask)
    wrapped = [
        leaf if is_array else _Static(_way_to(leaf, held) or partial(_itself, leaf))
        for leaf, is_array in zip(leaves, mask, strict=True)
    ]
    return PlacedOutput(treedef.unflatten(wrapped))


def pack(result: Any, held: Held) -> Any:
    """A result as a tree of arrays; itself if it has no other leaves."""
    leaves, treedef = _jax.flatten(result)
    places = tuple(i for i, leaf in enumerate(leaves) if _is_array(leaf))
    if len(places) == len(leaves):
        return result
    arrays = tuple(leaves[i] for i in places)
    ways = {i: _way_to(leaf, held) for i, leaf in enumerate(leaves)}
    found = {i: way for i, way in ways.items() if way is not None}
    for place in (*places, *found):
        leaves[place] = None
    return Output(arrays, _Rest(treedef, leaves, places, found))


def _way_to(leaf: Any, held: Held) -> Callable[[], Any] | None:
    """The way to a static value of the call that `leaf` is and that is held weakly."""
    if identity_in(leaf) is None:
        return None
    return next((way for value, way in held if value is leaf), None)


def _itself(value: Any) -> Any:
    return value


def unpack(packed: Any) -> Any:
    """The result that was packed."""
    return packed.unpack() if type(packed) in PACKED else packed
