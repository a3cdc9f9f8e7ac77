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
    """A function of flat leaves: `jitted` for the stages, `call` for plain calls."""

    jitted: Any
    call: Callable[..., Any]


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
        return pack_placed(result, check_result) if placed else pack(result)

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
    shardings = options.shardings(call.by_name, partition.mask, name)
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
    return Program(jitted, _jax.dispatcher(name, miss, flat))


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


class Programs:
    """The programs of one function, at most `LIMIT` of them.

    A structure is looked up by its hash first. JAX's hash leaves static fields out, so
    that structures that differ in them alone meet; from the second one on they are told
    apart by a key of our own, whose cost does not grow with their number. `of_arrays`
    has the programs for values that all are arrays, by their types.
    """

    __slots__ = ("__weakref__", "_by_key", "_predicate", "_structures", "of_arrays")

    def __init__(self, predicate: Predicate) -> None:
        self._predicate = None if predicate in _BY_TYPE else predicate
        self._by_key: dict[Hashable, tuple[Program, Any]] = {}
        self._structures: dict[int, _Structure | dict[Hashable, _Structure]] = {}
        self.of_arrays: dict[tuple[type, ...], Program] = {}

    def find(self, values: tuple[Any, ...]) -> tuple[Program, Sequence[Any]] | None:
        """The program for some values and its inputs, if it is known already."""
        leaves, treedef = _jax.flatten(values)
        structure: Any = self._structures.get(hash(treedef))
        try:
            if type(structure) is dict:
                structures = cast("dict[Hashable, _Structure]", structure)
                structure = structures.get(tree_key(treedef))
            if structure is None or structure.treedef != treedef:
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
        known = self._by_key.get(call.program_key)
        return None if known is None else known[0]

    def add(self, call: BoundCall, program: Program) -> Program:
        """Keep a program until one of its statics is gone, or too many came after it.

        Of two threads that come at once, both get the program of the first.
        """
        while len(self._by_key) >= LIMIT:
            self._drop(next(iter(self._by_key)))
        key, programs = call.program_key, weakref.proxy(self)

        def gone(_: Any) -> None:
            programs._drop(key)

        guards = [
            weakref.ref(static, gone)
            for static in call.statics
            if compares_by_identity(static)
        ]
        return self._by_key.setdefault(key, (program, guards))[0]

    def remember(
        self, call: BoundCall, program: Program, values: tuple[Any, ...]
    ) -> None:
        """Let `find` know a program by the values of a call."""
        leaves, treedef = _jax.flatten(values)
        mask = call.partition.mask
        flat = len(leaves) == len(values) and all(map(operator.is_, leaves, values))
        if flat and all(mask) and self._predicate is None:
            self.of_arrays[tuple(map(type, values))] = program
            return
        structure = self._structure(treedef)
        static = tuple(i for i, is_input in enumerate(mask) if not is_input)
        plain = all(type(leaves[i]) in _PLAIN for i in static)
        front = structure.fronts.setdefault(
            self._types(leaves), _Front(mask, static, plain)
        )
        front.programs[front.key(leaves)] = program

    def _structure(self, treedef: Any) -> _Structure:
        known = self._structures.get(hash(treedef))
        if known is None:
            known = self._structures[hash(treedef)] = _Structure(treedef)
        if isinstance(known, _Structure):
            if tree_key(known.treedef) == tree_key(treedef):
                return known
            known = {tree_key(known.treedef): known}
            self._structures[hash(treedef)] = known
        return known.setdefault(tree_key(treedef), _Structure(treedef))

    def forget(self, call: BoundCall) -> None:
        """Let the next call like this one make a new program."""
        self._drop(call.program_key)

    def _drop(self, key: Hashable) -> None:
        if self._by_key.pop(key, None) is not None:
            self._structures.clear()
            self.of_arrays.clear()

    def clear(self) -> None:
        """Forget every program."""
        self._by_key.clear()
        self._structures.clear()
        self.of_arrays.clear()

    def __len__(self) -> int:
        return len(self._by_key)


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
