"""What of a `Jitted` is left where `beartype.claw` puts a function in its place.

This module imports nothing of the package.
"""

import functools
import sys
from collections.abc import Iterator
from typing import Any, no_type_check


class Attributes:
    """Where a `Jitted` keeps its attributes, below its own `__dict__`."""


_attributes: Any = Attributes.__dict__["__dict__"]


_METHODS = ("trace", "lower", "eval_shape", "clear_cache")


class _Unshared(dict[str, Any]):
    """The attributes of a function, without the methods for whoever copies them all."""

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items() if name not in _METHODS)

    def keys(self) -> Any:
        """The names, as `dict.update` asks for them."""
        return tuple(self)


@no_type_check  # `beartype`, where it is applied to this too, would add a frame
class CopiedAttributes:
    """The `__dict__` of a `Jitted`: the attributes, which a wrapper of it copies.

    `beartype.claw` replaces a `Jitted`, if it is one in a module, by a function that
    checks the types; on it, the methods are to be found too. On any other wrapper, such
    as JAX's of a gradient, be it of that function, they would stage another than it.
    """

    def __get__(self, jitted: Any, owner: Any = None) -> dict[str, Any]:
        attributes: dict[str, Any] = _attributes.__get__(jitted)
        reader = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # it has no public name
        caller = reader.f_back
        if (
            reader.f_code is not functools.update_wrapper.__code__
            or caller is None
            or not caller.f_globals.get("__name__", "").startswith("beartype.")
        ):
            return attributes
        methods = {name: getattr(jitted._entry, name) for name in _METHODS}
        wrapper = reader.f_locals["wrapper"]
        wrapper.__dict__ = _Unshared(wrapper.__dict__ | attributes | methods)
        return attributes
