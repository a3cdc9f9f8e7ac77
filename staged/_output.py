"""What a function returns, static leaves included, through a program of arrays.

This module uses `_jax` and `_static`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import jax
import jax.tree_util as jtu
import numpy as np

from . import _jax
from ._static import holdable


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, (np.ndarray, np.generic)):
        return holdable(leaf.dtype)
    return isinstance(leaf, jax.Array)


@final
class Output:
    """A result with static leaves: its arrays as children, the rest as static data."""

    __slots__ = ("arrays", "rest")

    def __init__(self, arrays: Sequence[Any], rest: tuple[Any, ...]) -> None:
        self.arrays = arrays
        self.rest = rest

    def unpack(self) -> Any:
        """The result as the function returned it."""
        treedef, leaves, places = self.rest
        leaves = list(leaves)
        for place, array in zip(places, self.arrays, strict=True):
            leaves[place] = array
        return treedef.unflatten(leaves)


jtu.register_pytree_node(
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
        return jtu.tree_map(
            lambda leaf: leaf.value if isinstance(leaf, _Static) else leaf,
            self.tree,
            is_leaf=lambda leaf: isinstance(leaf, _Static),
        )


jtu.register_pytree_node(
    PlacedOutput,
    lambda out: ((out.tree,), None),
    lambda _, trees: PlacedOutput(trees[0]),
)


@final
class _Static:
    """A static leaf of a result, as a node without children."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


jtu.register_pytree_node(
    _Static, lambda static: ((), static.value), lambda value, _: _Static(value)
)


def pack(result: Any, *, placed: bool) -> Any:
    """A result as a tree of arrays; itself if it has no other leaves."""
    leaves, treedef = _jax.flatten(result)
    if placed:
        wrapped = [leaf if _is_array(leaf) else _Static(leaf) for leaf in leaves]
        return PlacedOutput(treedef.unflatten(wrapped))
    places = tuple(i for i, leaf in enumerate(leaves) if _is_array(leaf))
    if len(places) == len(leaves):
        return result
    arrays = tuple(leaves[i] for i in places)
    for place in places:
        leaves[place] = None
    return Output(arrays, (treedef, tuple(leaves), places))


def unpack(packed: Any) -> Any:
    """The result that was packed."""
    kind = type(packed)
    return packed.unpack() if kind is Output or kind is PlacedOutput else packed
