"""What is legal under a trace, and the names of what a function closes over.

This module uses `_errors`, `_jax` and `_static`.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

import attrs
import jax
import numpy as np

from . import _jax
from ._errors import ClosedOverTracerError, TopLevelOnlyError, checked
from ._static import attributes, one_level


def require_top_level(
    leaves: Sequence[Any], paths: Sequence[str], fun_name: str
) -> None:
    """Refuse a compiled call inside a transformation, of which it cannot be a part.

    Concrete arguments are refused as well, since their result would become a constant;
    `jax.ensure_compile_time_eval()` asks for just that, and is obeyed.
    """
    for leaf, path in zip(leaves, paths, strict=True):
        if isinstance(leaf, _jax.Tracer):
            where = _jax.transformation(leaf)
            raise TopLevelOnlyError(
                f"`{fun_name}` is compiled, and was called inside a JAX "
                f"transformation.\n"
                f"  `{path}` is a tracer of {where}.\n"
                "A compiled program is for the top level only. Inside a transformation "
                "call the jitted function that it was made from, or use its "
                "`eval_shape` if only shapes are wanted.",
                path=path,
                transformation=where,
            )
    if not _jax.may_compute():
        where = _jax.transformation()
        raise TopLevelOnlyError(
            f"`{fun_name}` is compiled, and was called inside a JAX transformation.\n"
            f"  No argument is a tracer, but {where} is running: the result would "
            "become a constant of its program.\n"
            "Call it outside and pass the result in, call the jitted function that it "
            "was made from, or wrap the call in `jax.ensure_compile_time_eval()` if a "
            "constant is wanted.",
            path=None,
            transformation=where,
        )


@final
@checked
@attrs.frozen(kw_only=True)
class CapturedConstant:
    """An array that a traced function closed over, so that its program holds it.

    `name` is the variable that refers to it, as far as it can be found; `nbytes` is its
    size in bytes.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: Any
    nbytes: int


def captured(
    traced: jax.stages.Traced, roots: Iterable[tuple[str, Any]]
) -> tuple[CapturedConstant, ...]:
    """The constants of a traced function, with their names."""
    constants = _jax.captured_constants(traced)
    names = _names(constants, roots)
    return tuple(
        CapturedConstant(
            name=names.get(id(constant)),
            shape=tuple(np.shape(constant)),
            dtype=constant.dtype,
            nbytes=int(constant.size * constant.dtype.itemsize),
        )
        for constant in constants
    )


def closed_over_tracers(traced: jax.stages.Traced) -> list[Any]:
    """The tracers of surrounding traces that a traced function closed over."""
    return [c for c in _jax.captured_constants(traced) if isinstance(c, _jax.Tracer)]


def refuse_captured_tracers(
    traced: jax.stages.Traced, roots: Iterable[tuple[str, Any]], fun_name: str
) -> None:
    """Refuse a function that closes over tracers: its program would lack an input."""
    tracers = closed_over_tracers(traced)
    if not tracers:
        return
    found = _names(tracers, roots)
    names: list[str] = []
    lines: list[str] = []
    for tracer in tracers:
        aval = jax.typeof(tracer)
        where = _jax.transformation(tracer)
        name = found.get(id(tracer))
        if name is None:
            used = _jax.line_that_uses(traced, tracer)
            name = f"{type(tracer).__name__} of {aval}"
            line = f"  a tracer of {where}, {aval}" + (
                f", used at {used}" if used else ""
            )
        else:
            line = f"  `{name}` is a tracer of {where}, {aval}"
        names.append(name)
        lines.append(line)
    raise ClosedOverTracerError(
        f"`{fun_name}` closes over a tracer, and cannot be staged ahead of time.\n"
        + "\n".join(lines)
        + "\nPass it as an argument (or in a `jax.tree_util.Partial`), use "
        "`eval_shape` if only shapes are wanted, or call the jitted function.",
        names=tuple(names),
    )


def reaches_tracer(roots: Iterable[tuple[str, Any]]) -> bool:
    """Whether a tracer can be reached from some objects, through closures and all."""
    return any(isinstance(item, _jax.Tracer) for _, item in _reachable(roots))


_CODE_DEPTH = 6
_LIMIT = 20_000


def _names(wanted: Sequence[Any], roots: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """The shortest name by which each wanted object can be reached from the roots."""
    missing = {id(item) for item in wanted}
    found: dict[int, str] = {}
    for name, item in _reachable(roots):
        if id(item) in missing:
            found[id(item)] = name
            missing.remove(id(item))
            if not missing:
                break
    return found


def _reachable(roots: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Each object that can be reached, the nearest first, within limits."""
    seen: set[int] = set()
    level = list(roots)
    for _ in range(_CODE_DEPTH):
        below: list[tuple[str, Any]] = []
        for name, item in level:
            if id(item) in seen or len(seen) > _LIMIT:
                continue
            seen.add(id(item))
            yield name, item
            # What cannot be looked into has no name to give.
            with contextlib.suppress(Exception):
                below.extend(_reached(name, item))
        level = below


def _reached(name: str, item: Any) -> Iterator[tuple[str, Any]]:
    """What can be reached from an object in one step, by the name in the code."""
    if isinstance(item, types.FunctionType):
        yield from _variables(item)
    elif isinstance(item, types.MethodType):
        yield from _reached(name, item.__func__)
        yield "self", item.__self__
    elif isinstance(item, (jax.Array, np.ndarray, str, bytes, type, types.ModuleType)):
        return
    else:
        wrapped = getattr(item, "__wrapped__", None)
        if wrapped is not None and callable(item):
            yield name, wrapped
        if isinstance(item, functools.partial):
            yield name, item.func
            for index, value in enumerate(item.args):
                yield f"{name}.args[{index}]", value
            yield from item.keywords.items()
        if isinstance(item, jax.stages.Wrapped) or _is_ours(item):
            return  # what a user put in was reached above
        for keys, child in one_level(item)[0]:
            yield f"{name}{_jax.keystr(keys)}", child
        for key, child in attributes(item):
            yield f"{name}.{key}", child


def _is_ours(item: Any) -> bool:
    return type(item).__module__.startswith(f"{__package__}.")


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables that a function refers to: closed over, global, or default."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # a variable that is not assigned yet
    for name in _global_names(code):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    defaults = function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    yield from zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)
