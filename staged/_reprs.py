"""How a record and a stage read in a terminal.

This module uses `_abstract`, `_jax` and `_static`.
"""

from __future__ import annotations

import re
from typing import Any

import attrs
import equinox as eqx
import jax
import jax.tree_util as jtu

from . import _jax
from ._abstract import aval_of
from ._static import shown


def static_text(value: Any) -> str:
    """A static value; a callable by its name, without the address that `repr` shows."""
    text = shown(value)
    if not callable(value):
        return text
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and text == object.__repr__(value):
        return f"<function {name}>"
    return without_addresses(text)


def without_addresses(text: str) -> str:
    """A `repr` without where in memory an object is."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


@attrs.frozen(repr=False)
class _Shown:
    """A leaf as it is to be read."""

    text: str
    abstract: bool

    def __repr__(self) -> str:
        return self.text


def _shown(leaf: Any) -> _Shown:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        aval = aval_of(leaf)
        return _Shown(f"weak {aval}" if aval.weak_type else str(aval), True)
    return _Shown(static_text(leaf), False)


def tree_text(tree: Any) -> str:
    """A tree in one line where it fits, else one line for each leaf, by its path."""
    shown = jtu.tree_map(_shown, tree)
    text = eqx.tree_pformat(shown, width=80)
    if "\n" not in text:
        return text
    lines: list[str] = []
    for keys, leaf in _jax.tree_flatten_with_path(shown)[0]:
        mark = ": " if leaf.abstract else " = "
        lines.append(f"{_jax.keystr(keys)}{mark}{leaf}")
    return "\n".join(lines)
