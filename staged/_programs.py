"""Programs: one flat `jax.jit` function for each structure and set of static values.

JAX's own caches then tell shapes, dtypes, shardings and contexts apart. A program is
found again by the structure of a call's values; nothing here keeps a function alive.
This module uses `_call`, `_donation`, `_equinox`, `_jax`, `_options`, `_output` and
`_static`.
"""

from __future__ import annotations

import inspect
import operator
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import compress
from typing import Any, cast

import attrs
import equinox as eqx

from . import _jax
from ._call import BoundCall, Predicate
from ._donation import check_compiled, check_lowered, lower_quietly
from ._equinox import holds_error_check, waiting
from ._options import UNSPECIFIED, Options
from ._output import PlacedOutput, pack, pack_placed
from ._static import (
    DEFAULT,
    compares_by_identity,
    held_weakly,
    identity_in,
    strict_key,
    tree_key,
)


class _LeafName(str):
    """A tree path as the name of a parameter, where JAX shows it in its messages."""

    __slots__ = ()

    def isidentifier(self) -> bool:
        return True


@attrs.frozen(eq=False)
class Program:
    """A function of flat leaves: `jitted` for the stages, `call` for plain calls.

    `flat` is the function itself; `shardings` is what `in_shardings` asks for each
    leaf, or `None` if it asks for nothing.
    """

    jitted: Any
    call: Callable[..., Any]
    flat: Callable[..., Any]
    shardings: tuple[Any, ...] | None


def make_program(
    call: BoundCall, core: Callable[..., Any], source: Any, options: Options
) -> Program:
    """The program of a call, which refers to the function and its statics weakly."""
    partition, name = call.partition, call.fun_name
    core_held = held_weakly(core)
    statics_held = tuple(map(held_weakly, call.statics))
    placed = options.out_shardings is not UNSPECIFIED

    def flat(*leaves: Any) -> Any:
        statics = [static() for static in statics_held]
        args, kwargs = partition.arguments(leaves, statics)
        result = core_held()(*args, **kwargs)
        held = tuple(zip(statics, statics_held, strict=True))
        if placed:
            return pack_placed(result, held, check_result)
        return pack(result, held)

    def check_result(result: Any, mask: Sequence[bool]) -> None:
        options.check_result(result, mask, name)

    paths = call.dynamic_paths
    flat.__name__ = flat.__qualname__ = name
    flat.__signature__ = inspect.Signature(  # read by `inspect`
        [
            inspect.Parameter(_LeafName(p), inspect.Parameter.POSITIONAL_ONLY)
            for p in paths
        ],
        __validate_parameters__=False,
    )
    options.check_backend(name)
    passed = dict(options.passed)
    shardings = options.shardings(call)
    if shardings is not None:
        passed["in_shardings"] = shardings
    if placed:
        passed["out_shardings"] = PlacedOutput(options.out_shardings)
    donated = call.donated_mask
    flat.__dict__["__wrapped__"] = source  # JAX notes its file and line, at once
    jitted = _jax.jit(
        flat, donate_argnums=tuple(compress(range(len(donated)), donated)), **passed
    )
    del flat.__dict__["__wrapped__"]
    miss = _jit_miss(jitted, paths, donated, options, name)
    return Program(jitted, _jax.dispatcher(name, miss, flat), flat, shardings)


def _jit_miss(
    jitted: Any,
    paths: Sequence[str],
    donated: Sequence[bool],
    options: Options,
    name: str,
) -> _jax.Miss:
    """What is done once for each new signature of an ordinary call."""
    inner = _jax.jit_miss(jitted)
    tracing = threading.RLock()
    donates = any(donated)
    unused = options.donation.unused

    def miss(*leaves: Any) -> tuple[Any, Any, Any]:
        if not _jax.may_compute() or any(
            isinstance(leaf, _jax.Tracer) for leaf in leaves
        ):
            return inner(*leaves)  # inlined into the surrounding program
        __equinox_jit_id__ = os.urandom(16)
        with tracing:
            traced = jitted.trace(*leaves)
        if donates:
            lowered = lower_quietly(traced)
            if check_lowered(lowered, paths, donated, unused, name):
                compiled = cast("Any", lowered).compile()
                check_compiled(compiled, paths, donated, unused, name)
        if holds_error_check(traced.jaxpr):
            outputs, _, flag = waiting(__equinox_jit_id__, inner, *leaves)
            return outputs, None, flag
        return inner(*leaves)

    return miss


_PLAIN = frozenset((int, bool, str, bytes, type(None), type(DEFAULT)))
"""Types whose values are strictly equal if they are equal and of one type."""

_BY_TYPE: tuple[Predicate, ...] = (eqx.is_array, eqx.is_array_like)
"""Predicates whose answer depends on a leaf's type alone."""

LIMIT = 4096


@attrs.frozen(eq=False)
class _Front:
    """The programs for leaves of certain types."""

    mask: tuple[bool, ...]
    static: tuple[int, ...]
    plain: bool
    programs: dict[Hashable, Program] = attrs.field(factory=dict[Hashable, Program])

    def key(self, leaves: Sequence[Any]) -> Hashable:
        """A key that is equal for strictly equal static leaves of these types."""
        if self.plain:
            return tuple([leaves[i] for i in self.static])
        return tuple([strict_key(leaves[i]) for i in self.static])


@attrs.frozen(eq=False)
class _Structure:
    """The fronts for one structure of the values."""

    treedef: Any
    fronts: dict[Hashable, _Front] = attrs.field(factory=dict[Hashable, _Front])


@attrs.frozen(eq=False)
class Table:
    """The programs that are known by the values of a call, under one pair of settings.

    A structure is looked up by its hash first. JAX's hash leaves static fields out, so
    that structures that differ in them alone meet; from the second one on they are told
    apart by a key of our own, whose cost does not grow with their number. `of_arrays`
    has the programs for values that all are arrays, by their types. The settings are
    those of random numbers, which no cache of JAX's looks at.
    """

    prng_impl: str
    seed_offset: int
    of_arrays: dict[tuple[type, ...], Program] = attrs.field(
        factory=dict[tuple[type, ...], "Program"]
    )
    _structures: dict[int, _Structure | dict[Hashable, _Structure]] = attrs.field(
        factory=dict[int, Any]
    )

    def find(self, treedef: Any) -> _Structure | None:
        """The structure of some values, if it is known."""
        structure: Any = self._structures.get(hash(treedef))
        if type(structure) is dict:
            structures = cast("dict[Hashable, _Structure]", structure)
            structure = structures.get(tree_key(treedef))
        if structure is None or structure.treedef != treedef:
            return None
        return structure

    def structure(self, treedef: Any) -> _Structure:
        """The same, made if it is not known."""
        known = self._structures.get(hash(treedef))
        if known is None:
            known = self._structures[hash(treedef)] = _Structure(treedef)
        if isinstance(known, _Structure):
            if tree_key(known.treedef) == tree_key(treedef):
                return known
            known = {tree_key(known.treedef): known}
            self._structures[hash(treedef)] = known
        return known.setdefault(tree_key(treedef), _Structure(treedef))

    def forget(
        self, structure: _Structure, types: Hashable, front: _Front, key: Hashable
    ) -> None:
        """Forget a program, and what is empty without it."""
        front.programs.pop(key, None)
        if not front.programs:
            structure.fronts.pop(types, None)
        if structure.fronts:
            return
        code = hash(structure.treedef)
        known = self._structures.get(code)
        if isinstance(known, dict):
            known.pop(tree_key(structure.treedef), None)
        else:
            self._structures.pop(code, None)


@attrs.frozen(eq=False)
class _Kept:
    """A program, what watches over its static values, and where it is to be found."""

    program: Program
    guards: Sequence[Any]
    places: list[Callable[[], object]] = attrs.field(factory=list[Any])

    def forget(self) -> None:
        """Let no table know the program."""
        for forget in self.places:
            forget()


TABLES = 16
"""For how many settings of random numbers the programs are known at once."""


class Programs:
    """The programs of one function, at most `LIMIT` of them."""

    __slots__ = ("__weakref__", "_by_key", "_predicate", "_table", "_tables")

    def __init__(self, predicate: Predicate) -> None:
        self._predicate = None if predicate in _BY_TYPE else predicate
        self._by_key: dict[Hashable, _Kept] = {}
        self._tables: dict[tuple[str, int], Table] = {}
        self._table = self._at(_jax.random_settings())

    def table(self) -> Table:
        """The programs that are known under the settings in force here and now."""
        table = self._table
        if (
            table.prng_impl is _jax.prng_impl.value
            and table.seed_offset is _jax.seed_offset.value
        ):
            return table
        settings = _jax.random_settings()
        if settings not in self._tables and len(self._tables) >= TABLES:
            self.clear()
        table = self._table = self._at(settings)
        return table

    def _at(self, settings: tuple[str, int]) -> Table:
        return self._tables.setdefault(settings, Table(*settings))

    def find(
        self, table: Table, values: tuple[Any, ...]
    ) -> tuple[Program, Sequence[Any]] | None:
        """The program for some values and its inputs, if it is known already."""
        leaves, treedef = _jax.flatten(values)
        try:
            structure = table.find(treedef)
            if structure is None:
                return None
            front = structure.fronts.get(self._types(leaves))
            if front is None:
                return None
            if not front.static:
                program = front.programs.get(())
                return None if program is None else (program, leaves)
            program = front.programs.get(front.key(leaves))
        except Exception:  # noqa: BLE001  # of the values' own methods
            return None  # what is refused is so with a reason, where the record is made
        return (
            None if program is None else (program, tuple(compress(leaves, front.mask)))
        )

    def _types(self, leaves: Sequence[Any]) -> Hashable:
        types = tuple(map(type, leaves))
        if self._predicate is None:
            return types
        return types, tuple(map(bool, map(self._predicate, leaves)))

    def get(self, call: BoundCall) -> Program | None:
        """The program of a record."""
        kept = self._by_key.get(_key(call))
        return None if kept is None else kept.program

    def add(self, call: BoundCall, program: Program) -> Program:
        """Keep a program until one of its statics is gone, or too many came after it.

        Of two threads that come at once, both get the program of the first.
        """
        while len(self._by_key) >= LIMIT:
            self._drop(next(iter(self._by_key)))
        key, programs = _key(call), weakref.proxy(self)

        def gone(_: Any) -> None:
            programs._drop(key)

        watched = [identity_in(static) for static in call.statics]
        guards = [weakref.ref(w, gone) for w in watched if w is not None]
        return self._by_key.setdefault(key, _Kept(program, guards)).program

    def remember(self, call: BoundCall, values: tuple[Any, ...]) -> None:
        """Let `find` know a program that is kept by the values of a call."""
        kept = self._by_key.get(_key(call))
        if kept is None:
            return
        table = self._at(call.context.random())
        leaves, treedef = _jax.flatten(values)
        mask = call.partition.mask
        flat = len(leaves) == len(values) and all(map(operator.is_, leaves, values))
        if flat and all(mask) and self._predicate is None:
            types = tuple(map(type, values))
            table.of_arrays[types] = kept.program
            kept.places.append(partial(table.of_arrays.pop, types, None))
            return
        structure = table.structure(treedef)
        static = tuple(i for i, is_input in enumerate(mask) if not is_input)
        plain = all(type(leaves[i]) in _PLAIN for i in static)
        types = self._types(leaves)
        front = structure.fronts.setdefault(types, _Front(mask, static, plain))
        key = front.key(leaves)
        if key not in front.programs:  # else JAX takes two equal structures for others
            front.programs[key] = kept.program
            kept.places.append(partial(table.forget, structure, types, front, key))

    def forget(self, call: BoundCall) -> None:
        """Let the next call like this one make a new program."""
        self._drop(_key(call))

    def _drop(self, key: Hashable) -> None:
        kept = self._by_key.pop(key, None)
        if kept is not None:
            kept.forget()

    def clear(self) -> None:
        """Forget every program."""
        self._by_key.clear()
        self._tables.clear()
        self._table = self._at(_jax.random_settings())

    def __len__(self) -> int:
        return len(self._by_key)


def _key(call: BoundCall) -> Hashable:
    """What tells programs apart: JAX's own caches look at all the rest."""
    return call.program_key, call.context.random()


_shared: weakref.WeakKeyDictionary[Any, dict[Hashable, Programs]] = (
    weakref.WeakKeyDictionary()
)


SHARED = 256
"""How many kinds of `jit` of one function share programs, the last ones."""


def programs_for(anchor: Any, key: Hashable, predicate: Predicate) -> Programs:
    """The programs that every `jit` of one function with equal options shares.

    They live as long as the function does, which is referred to weakly; where it cannot
    be, they are not shared.
    """
    if not compares_by_identity(anchor):
        return Programs(predicate)
    kinds = _shared.setdefault(anchor, {})
    programs = kinds.setdefault(key, Programs(predicate))
    while len(kinds) > SHARED:
        kinds.pop(next(iter(kinds)), None)
    return programs
