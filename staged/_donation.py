"""What is donated, and what happens when no output can use it.

This module uses `_errors`, `_jax` and `_signature`.
"""

from __future__ import annotations

import difflib
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Literal, cast

import attrs
import jax
import jax.tree_util as jtu

from . import _jax
from ._errors import DonationError, OptionError
from ._signature import Binder, Origin, Owner, Parameter, Plan


DonateWord = Literal["all", "all-except-first", "warn", "warn-except-first", "none"]
Donate = DonateWord | str | Iterable[str]
UnusedDonation = Literal["ignore", "warn", "error"]

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_WORDS = ("all", "all-except-first", "warn", "warn-except-first", "none")


@attrs.frozen
class Donation:
    """Equinox's words, or names of parameters; and what to do if a buffer is unused."""

    function: bool
    first: bool
    rest: bool
    names: tuple[str, ...]
    unused: UnusedDonation

    @property
    def any(self) -> bool:
        """Whether anything can be donated at all."""
        return self.function or self.first or self.rest or bool(self.names)

    def check_names(self, binder: Binder) -> None:
        """Refuse the name of a parameter that no call can donate."""
        known = binder.parameters.names()
        filled = [
            parameter.name
            for parameter, (_, owner) in zip(
                binder.parameters.items, binder.opened.values, strict=False
            )
            if owner is Owner.PARTIAL and parameter.kind in _BY_POSITION
        ]
        for name in self.names:
            if name in filled:
                raise OptionError(
                    f"`{binder.fun_name}`: `donate` names {name!r}, which is filled by "
                    "a functools.partial: what it holds is never donated.\n"
                    "Pass the value in each call, or use a `jax.tree_util.Partial`.",
                    option="donate",
                )
            if known is not None and name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise OptionError(
                    f"`{binder.fun_name}`: `donate` names {name!r}, which is no "
                    f"parameter of it.\n"
                    f"  expected one of {known}, or one of Equinox's words: "
                    f"{', '.join(map(repr, _WORDS))}.{hint}",
                    option="donate",
                )

    def leaves(self, binder: Binder, plan: Plan, values: Sequence[Any]) -> list[bool]:
        """Whether each leaf of the parameters' values is donated, if it is an array."""
        if not self.any:
            return [False] * len(jtu.tree_leaves(values))
        positional = (*_BY_POSITION, Parameter.VAR_POSITIONAL)
        opened = binder.opened
        owners: list[Owner] = [
            o for _, o in (*opened.values, *opened.keywords.values())
        ]
        first = Owner.CALL not in owners  # else the instance was the first one
        donated: list[bool] = []
        for parameter, source, value in zip(
            binder.parameters.items, plan.sources, values, strict=True
        ):
            for name, token, item in _items(parameter, source, value):
                if token[0] == Origin.CARRIED.value:
                    answer = self._carried(owners[int(token[1])], name)
                elif first and parameter.kind in positional:
                    answer, first = self.first, False
                else:
                    answer = self.rest
                if self.names and token[0] != Origin.CARRIED.value:
                    answer = name in self.names or parameter.name in self.names
                answer = answer and token[0] != Origin.DEFAULT.value
                donated += [answer] * len(jtu.tree_leaves(item))
        return donated

    def _carried(self, owner: Owner, name: str) -> bool:
        if owner is Owner.PARTIAL:
            return False
        if self.names:
            return name in self.names
        return self.first if owner is Owner.CALL else self.function


def _items(
    parameter: Parameter, source: Any, value: Any
) -> Iterator[tuple[str, tuple[int, Any], Any]]:
    """The values of one parameter, in the order in which JAX flattens them."""
    if parameter.kind is Parameter.VAR_POSITIONAL:
        for token, item in zip(source, value, strict=True):
            yield parameter.name, token, item
    elif parameter.kind is Parameter.VAR_KEYWORD:
        for name in sorted(source):
            yield name, source[name], value[name]
    else:
        yield parameter.name, source, value


def parse_donation(donate: Any, unused: Any) -> Donation:
    """The options `donate` and `unused_donation` of `jit`; raises `OptionError`."""
    if unused not in (None, "ignore", "warn", "error"):
        raise OptionError(
            "`jit(unused_donation=...)` must be 'ignore', 'warn' or 'error', "
            f"given {unused!r}.",
            option="unused_donation",
        )
    if isinstance(donate, str) and donate in _WORDS:
        everything = donate in ("all", "warn")
        rest = donate != "none"
        silent: UnusedDonation = "ignore" if donate.startswith("all") else "warn"
        return Donation(rest, everything, rest, (), unused or silent)
    names: tuple[Any, ...] = (donate,)
    if isinstance(donate, Iterable) and not isinstance(donate, (str, bytes, dict)):
        names = tuple(cast("Iterable[Any]", donate))
    if not all(isinstance(name, str) for name in names):
        raise OptionError(
            f"`jit(donate=...)` must be one of {', '.join(map(repr, _WORDS))}, or "
            f"names of parameters, given {donate!r}.",
            option="donate",
        )
    return Donation(False, False, False, names, unused or "warn")


_filters = threading.Lock()


def lower_quietly(traced: jax.stages.Traced, **options: Any) -> jax.stages.Lowered:
    """Lower without JAX's own warning on donation, which does not name the argument.

    Python's warning filters belong to the whole process: one thread at a time.
    """
    with _filters, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not")
        return traced.lower(**options)


def check_lowered(
    lowered: jax.stages.Lowered,
    paths: Sequence[str],
    donated: Sequence[bool],
    unused: UnusedDonation,
    fun_name: str,
) -> bool:
    """Report the donated leaves that no output can use; whether XLA decides on some."""
    if unused == "ignore" or not any(donated):
        return False
    usable = _jax.donation_of_arguments(lowered, len(paths))
    _report(paths, donated, [u is not False for u in usable], unused, fun_name)
    return any(u is None and d for u, d in zip(usable, donated, strict=True))


def check_compiled(
    compiled: jax.stages.Compiled,
    paths: Sequence[str],
    donated: Sequence[bool],
    unused: UnusedDonation,
    fun_name: str,
) -> None:
    """The same for what XLA decided."""
    aliased = _jax.aliased_arguments(compiled, len(paths))
    _report(paths, donated, [a is not False for a in aliased], unused, fun_name)


def _report(
    paths: Sequence[str],
    donated: Sequence[bool],
    usable: Sequence[bool],
    unused: UnusedDonation,
    fun_name: str,
) -> None:
    wasted = tuple(
        path for path, d, u in zip(paths, donated, usable, strict=True) if d and not u
    )
    if not wasted:
        return
    message = (
        f"Some donated buffers were not usable: `{fun_name}` donates "
        f"{_quoted(wasted)}, but no output has the same shape, dtype and sharding, or "
        "the function does not use it.\n"
        "Donate only what an output can replace, by the names of parameters, or pass "
        "`unused_donation='ignore'`."
    )
    if unused == "error":
        raise DonationError(message, paths=wasted)
    warnings.warn(message, UserWarning, stacklevel=_level_of_the_caller())


_HERE = str(Path(__file__).parent)


def _level_of_the_caller() -> int:
    """The `stacklevel` at which `_report` warns about the line that called `staged`."""
    level, frame = 1, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # documented
    while frame.f_back and frame.f_code.co_filename.startswith((_HERE, "<@beartype")):
        level, frame = level + 1, frame.f_back
    return level


def blames_buffer(error: Exception) -> bool:
    """Whether JAX raised an error for the buffer of an argument."""
    return any(word in str(error) for word in ("deleted", "donate"))


def explain_buffers(
    leaves: Sequence[Any], paths: Sequence[str], donated: Sequence[bool], fun_name: str
) -> DonationError | None:
    """The error for leaves that are deleted, or donated and given twice, if any."""
    gone = tuple(
        path
        for leaf, path in zip(leaves, paths, strict=True)
        if isinstance(leaf, jax.Array)
        and not isinstance(leaf, _jax.Tracer)
        and leaf.is_deleted()
    )
    if gone:
        words = "is a deleted array: its buffer was", "array", "it"
        if len(gone) > 1:
            words = "are deleted arrays: their buffers were", "arrays", "them"
        return DonationError(
            f"`{fun_name}`: {_quoted(gone)} {words[0]} donated to an earlier call, or "
            "deleted.\n"
            f"Use the {words[1]} that the earlier call returned, or do not donate "
            f"{words[2]}.",
            paths=gone,
        )
    first: dict[Any, str] = {}
    given = {buffer for leaf in compress(leaves, donated) for buffer in _buffers(leaf)}
    for leaf, path in zip(leaves, paths, strict=True):
        buffers = _buffers(leaf)
        shared = [buffer for buffer in buffers if buffer in given and buffer in first]
        if shared:
            twice = (first[shared[0]], path)
            return DonationError(
                f"`{fun_name}`: {_quoted(twice)} share one buffer, which is donated: "
                "it can be given only once.\n"
                "Pass a copy (`jnp.copy`), or do not donate it.",
                paths=twice,
            )
        first |= dict.fromkeys(buffers, path)
    return None


def _buffers(leaf: Any) -> list[Any]:
    """What tells whether two leaves share memory: two arrays may have one buffer."""
    if isinstance(leaf, jax.Array) and not isinstance(leaf, _jax.Tracer):
        return [id(leaf), *_jax.buffers(leaf)]
    return [id(leaf)]


def _quoted(paths: Sequence[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths)
