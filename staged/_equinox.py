"""The one module that knows Equinox from inside: its runtime errors, its wrappers.

`equinox.error_if` puts a host callback into a program. The callback raises an error of
its own, which arrives wrapped by XLA; `equinox.filter_jit` turns it back into
`EquinoxRuntimeError`. So does `staged`, by the same convention. Where a later Equinox
moves these names, the error of XLA reaches the user unchanged. This module uses
`_jax` alone.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import equinox as eqx
from equinox import (
    _errors,  # pyright: ignore[reportPrivateUsage]  # see above
    _jit,  # pyright: ignore[reportPrivateUsage]  # see above
)

from . import _jax


_T = TypeVar("_T")

_RUNTIME_ERROR: type[Exception] = eqx.EquinoxRuntimeError
_CALLBACK_ERROR: type[Exception] = getattr(
    _errors, "_EquinoxRuntimeError", eqx.EquinoxRuntimeError
)
_MARK = "_EquinoxRuntimeError: "


def _is_not_equinox(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, _CALLBACK_ERROR)


# JAX logs the traceback of each failing callback. For this one error it says nothing
# that the exception does not say.
logging.getLogger("jax._src.callback").addFilter(_is_not_equinox)


def without_names(kind: Any, aux: Any) -> Any:
    """The static data of a node without what a wrapper of Equinox copies of a function.

    That is its name, its documentation and its annotations, a dict: all of them say
    nothing that the function itself, which is in the tree too, does not say.
    """
    if not issubclass(kind, eqx.Module) or not isinstance(aux[0], tuple):
        return aux
    copied = any(type(part) is dict for part in aux[0])  # a static field has no dict
    return aux[1:] if copied else aux


_checked: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def holds_error_check(jaxpr: Any) -> bool:
    """Whether a program holds Equinox's error callback: then a call waits for it."""
    known = _checked.get(jaxpr)
    if known is None:
        known = _checked[jaxpr] = any(
            _is_error_callback(eqn.params.get("callback"))
            for eqn in _jax.equations(jaxpr)
            if eqn.primitive.name == "pure_callback"
        )
    return known


def _is_error_callback(callback: Any) -> bool:
    function = getattr(callback, "callback_func", None)
    return getattr(function, "__module__", None) == _errors.__name__


@contextmanager
def equinox_errors(jit_id: bytes) -> Generator[None]:
    """Raise `equinox.EquinoxRuntimeError` for the error of an `equinox.error_if`.

    `jit_id` is the value of the local variable `__equinox_jit_id__` in the frame of the
    call, where Equinox ends the stack that it shows.
    """
    try:
        yield
    except (_jax.JaxRuntimeError, ValueError) as error:
        last: Any = getattr(_jit, "last_error_info", None)
        if last is None or _MARK not in str(error):
            raise
        message, stack = last
        lines: list[str] = []
        for piece in stack:
            if isinstance(piece, str):
                lines.append(piece)
            elif piece == jit_id:
                break
        text = getattr(_jit, "_on_error_msg", "{stack}\n{msg}")
        raised = _RUNTIME_ERROR(text.format(msg=message, stack="".join(lines[::-1])))
        raise raised from None


def waiting(jit_id: bytes, call: Callable[..., _T], *args: Any) -> _T:
    """The result of `call(*args)` when it is there, or Equinox's error."""
    with equinox_errors(jit_id):
        return _jax.block_until_ready(call(*args))
