"""How a record and a stage read in a terminal.

This module uses `_abstract` alone.
"""

from __future__ import annotations

import re
from typing import Any

import attrs
import equinox as eqx
import jax
import jax.tree_util as jtu

from ._abstract import aval_of


def static_text(value: Any) -> str:
    """A static value; a callable by its name, without the address that `repr` shows."""
    text = repr(value)
    if not callable(value):
        return text
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and text == object.__repr__(value):
        return f"<function {name}>"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


@attrs.frozen(repr=False)
class _Shown:
    """A leaf as it is to be read."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _shown(leaf: Any) -> _Shown:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        aval = aval_of(leaf)
        return _Shown(f"weak {aval}" if aval.weak_type else str(aval))
    return _Shown(static_text(leaf))


def tree_text(tree: Any, *, indent: str) -> str:
    """A tree with its abstract arrays as `float32[3]`; later lines are indented."""
    text = eqx.tree_pformat(jtu.tree_map(_shown, tree), width=84 - len(indent))
    return text.replace("\n", f"\n{indent}")
