"""From a function to its parameters: what is called, and which argument goes where.

A function that carries values (a bound method, a partial, a callable Module) is opened:
what remains is a plain callable, and the values are arguments of it like all others. So
a call always becomes one tuple, with one value for each parameter. This module uses
`_errors`, `_jax` and `_static`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Literal, TypeGuard, final

import attrs
import equinox as eqx
import jax.tree_util as jtu

from . import _jax
from ._errors import SignatureError
from ._static import DEFAULT, strict_key, tree_key, type_of


Parameter = inspect.Parameter
_ANY = inspect.Signature(
    [
        Parameter("args", Parameter.VAR_POSITIONAL),
        Parameter("kwargs", Parameter.VAR_KEYWORD),
    ]
)


class Owner(Enum):
    """Where a value that a function carries comes from, which decides its donation."""

    FUNCTION = "the function, a pytree"
    PARTIAL = "a functools.partial: never donated"
    CALL = "the instance of a decorated method: the call's first argument"


@attrs.frozen(eq=False)
class Opened:
    """A function taken apart: `core(*values, *args, **(keywords | kwargs))`."""

    core: Callable[..., Any]
    values: tuple[tuple[Any, Owner], ...] = ()
    keywords: dict[str, tuple[Any, Owner]] = attrs.field(factory=dict[str, Any])


def call_object(fun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The core of every callable that is a pytree itself."""
    return fun(*args, **kwargs)


def open_function(fun: Callable[..., Any]) -> Opened:
    """Take a function apart, down to a callable that carries nothing."""
    if isinstance(fun, (functools.partial, eqx.Partial)):
        inner = open_function(fun.func)
        owner = Owner.PARTIAL
        if isinstance(fun, (jtu.Partial, eqx.Partial)):
            owner = Owner.FUNCTION
        values = (*inner.values, *((value, owner) for value in fun.args))
        keywords = {name: (value, owner) for name, value in fun.keywords.items()}
        return Opened(inner.core, values, inner.keywords | keywords)
    if _is_method(fun):
        inner = open_function(fun.__func__)
        values = (*inner.values, (fun.__self__, Owner.FUNCTION))
        return Opened(inner.core, values, inner.keywords)
    if not jtu.all_leaves([fun]):
        return Opened(call_object, ((fun, Owner.FUNCTION),))
    return Opened(fun)


@attrs.frozen
class Form:
    """What of a function is no tree that it carries: how to build it from such trees.

    Without `inner` it is `fun` itself, or a bound method of the function `fun`, or what
    its one part is. With it, it is a `functools.partial` of what `inner` builds.
    """

    kind: Literal["whole", "fixed", "method", "partial"]
    fun: Any = None
    inner: Form | None = None
    counts: tuple[int, int] = (0, 0)
    keywords: tuple[str, ...] = ()

    def build(self, parts: Sequence[Any]) -> Any:
        """The function, from its parts."""
        if self.kind == "whole":
            return parts[0]
        if self.kind == "fixed":
            return self.fun
        if self.kind == "method":
            if parts[0] is None:  # a tree of which the leaves were filtered out
                return functools.partial(self.fun, None)
            return types.MethodType(self.fun, parts[0])
        assert self.inner is not None
        start, stop = self.counts
        named = dict(zip(self.keywords, parts[stop:], strict=True))
        inner = self.inner.build(parts[:start])
        return functools.partial(inner, *parts[start:stop], **named)

    def names(self, count: int) -> Iterator[str]:
        """A name for each part, for tree paths."""
        if self.kind != "partial":
            yield from ("__wrapped__", "__self__")[self.kind == "method" :][:count]
            return
        assert self.inner is not None
        start, stop = self.counts
        yield from self.inner.names(start)
        yield from (f"args_{i}" for i in range(stop - start))
        yield from self.keywords


def function_parts(fun: Callable[..., Any]) -> tuple[tuple[Any, ...], Form]:
    """The trees that a function carries, and the form in which it carries them."""
    if not jtu.all_leaves([fun]):
        return (fun,), Form("whole")
    if isinstance(fun, functools.partial):
        inner, form = function_parts(fun.func)
        counts = len(inner), len(inner) + len(fun.args)
        parts = (*inner, *fun.args, *fun.keywords.values())
        return parts, Form("partial", None, form, counts, tuple(fun.keywords))
    if isinstance(fun, types.MethodType) and not jtu.all_leaves([fun.__self__]):
        return (fun.__self__,), Form("method", fun.__func__)
    return (), Form("fixed", fun)


def _is_method(fun: Any) -> TypeGuard[types.MethodType]:
    # Equinox wraps the methods of a Module in a Module of its own.
    return isinstance(fun, types.MethodType) or (
        isinstance(fun, eqx.Module)
        and hasattr(fun, "__func__")
        and hasattr(fun, "__self__")
    )


def name_of(fun: Any) -> str:
    """The name of a function, as JAX and Equinox would find it."""
    while True:
        if isinstance(fun, (functools.partial, eqx.Partial)):
            fun = fun.func
        elif "__wrapped__" in getattr(fun, "__dict__", ()):
            fun = fun.__wrapped__
        else:
            break
    name = getattr(fun, "__name__", None)
    return name if isinstance(name, str) else type(fun).__name__


@final
class _Absent:
    """Stands for a parameter that may be given by name, as a tree without leaves."""


ABSENT: Any = _Absent()
_jax.register_pytree_node(_Absent, lambda _: ((), None), lambda _, __: ABSENT)


def _own_signature(fun: Any) -> inspect.Signature:
    """The signature of a function; of one that it wraps if it hands all on to it.

    `inspect` takes a decorator at its word that its function has the signature of the
    other one, though it may take more than that, or have other defaults.
    """
    wrapped = getattr(fun, "__wrapped__", None)
    if wrapped is None:
        return inspect.signature(fun)
    inner = _own_signature(wrapped)
    try:
        own = inspect.signature(fun, follow_wrapped=False)
    except (ValueError, TypeError):
        return inner
    return inner if _hands_on(own, inner) else own


def _hands_on(own: inspect.Signature, inner: inspect.Signature) -> bool:
    """Whether each call that fits `inner` goes through `own` with the same meaning."""
    kinds = [p.kind for p in own.parameters.values()]
    if Parameter.VAR_POSITIONAL not in kinds or Parameter.VAR_KEYWORD not in kinds:
        return False
    before = kinds.index(Parameter.VAR_POSITIONAL)
    theirs = dict(enumerate(inner.parameters.values()))
    return all(
        _alike(mine, theirs.get(i) if i < before else inner.parameters.get(mine.name))
        for i, mine in enumerate(own.parameters.values())
        if mine.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    )


def _alike(mine: inspect.Parameter, other: inspect.Parameter | None) -> bool:
    if other is None or mine.kind > other.kind:
        return False
    if mine.kind is not Parameter.POSITIONAL_ONLY and mine.name != other.name:
        return False
    return mine.default is other.default or _same_static(mine.default, other.default)


def _by_spelling(signature: inspect.Signature) -> inspect.Signature:
    """The signature of a function to which a keyword means another thing.

    Each parameter may be left out, and given by name as one of `**kwargs`.
    """
    parameters = list(signature.parameters.values())
    kinds = [p.kind for p in parameters]
    for index, parameter in enumerate(parameters):
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
            default = parameter.default
            parameters[index] = parameter.replace(
                kind=Parameter.POSITIONAL_ONLY,
                default=ABSENT if default is Parameter.empty else default,
            )
    if Parameter.VAR_KEYWORD not in kinds:
        name = _unused("kwargs", signature)
        parameters.append(Parameter(name, Parameter.VAR_KEYWORD, annotation=ABSENT))
    return inspect.Signature(parameters, __validate_parameters__=False)


def _unused(name: str, signature: inspect.Signature) -> str:
    while name in signature.parameters:
        name = f"{name}_"
    return name


def _chain(fun: Any) -> Iterator[Any]:
    """A function, what it wraps, and so on."""
    while fun is not None:
        yield fun
        fun = getattr(fun, "__wrapped__", None)


def signature_of(opened: Opened) -> inspect.Signature:
    """The signature of an opened function's core; any arguments if it tells none."""
    try:
        if opened.core is not call_object:
            signature = _own_signature(opened.core)
            if any(map(_jax.maps_by_position, _chain(opened.core))):
                return _by_spelling(signature)
            return signature
        signature = inspect.signature(opened.values[0][0])
    except (ValueError, TypeError):
        return _ANY
    first = Parameter(_unused("self", signature), Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[first, *signature.parameters.values()])


@attrs.frozen(eq=False)
class Parameters:
    """The parameters of a core, and what stands in a record for each one left out."""

    items: tuple[inspect.Parameter, ...]
    defaults: tuple[Any, ...]

    def names(self) -> list[str] | None:
        """The names that an option may use; `None` if calls may bring any name."""
        any_name = [p for p in self.items if p.kind is Parameter.VAR_KEYWORD]
        if any(p.annotation is not ABSENT for p in any_name):
            return None
        return [p.name for p in self.items if p not in any_name]

    def is_default(self, index: int, value: Any) -> bool:
        """Whether a parameter's value is its default, or strictly equal to it."""
        default = self.items[index].default
        if value is default or value is DEFAULT:
            return True
        if default is Parameter.empty or type(value) is not type(default):
            return False
        return _same_static(value, default)

    def unbind(
        self, values: Sequence[Any], skip: frozenset[Any] = frozenset()
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with these values: those that are a default left out.

        A default stays where a later argument can only be passed by position. The
        places in `skip` are passed over (see `Plan.carried`).
        """
        omitted = [self.is_default(i, value) for i, value in enumerate(values)]
        must = -1
        for index, parameter in enumerate(self.items):
            kind = parameter.kind
            if (kind is Parameter.VAR_POSITIONAL and values[index]) or (
                kind is Parameter.POSITIONAL_ONLY and not omitted[index]
            ):
                must = index
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        by_position = True
        for index, (parameter, value) in enumerate(
            zip(self.items, values, strict=True)
        ):
            if index in skip:
                continue
            if parameter.kind is Parameter.VAR_POSITIONAL:
                args += [v for i, v in enumerate(value) if (index, i) not in skip]
            elif parameter.kind is Parameter.VAR_KEYWORD:
                kwargs |= {k: v for k, v in value.items() if (index, k) not in skip}
            elif index <= must:
                args.append(parameter.default if value is DEFAULT else value)
            elif omitted[index]:
                by_position = False
            elif parameter.kind is Parameter.KEYWORD_ONLY or not by_position:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        return tuple(args), kwargs


def _same_static(value: Any, default: Any) -> bool:
    leaves, treedef = _jax.flatten(value)
    default_leaves, default_treedef = _jax.flatten(default)
    try:
        return tree_key(treedef) == tree_key(default_treedef) and all(
            map(_same_leaf, leaves, default_leaves)
        )
    except Exception:  # noqa: BLE001  # what cannot be compared is no default
        return False


def _same_leaf(leaf: Any, default: Any) -> bool:
    return leaf is default or strict_key(leaf) == strict_key(default)


class Origin(Enum):
    """Where a parameter's value comes from; a `Token` is one of these and an index."""

    CARRIED = 0
    POSITION = 1
    KEYWORD = 2
    DEFAULT = 3


Token = tuple[int, Any]
Source = Token | list[Token] | dict[str, Token]
"""One token; for `*args` a list of them; for `**kwargs` one for each name."""


PLANS = 1024
"""How many plans are kept for one function."""


@attrs.frozen(eq=False)
class Plan:
    """Where each parameter's value comes from, for a number of arguments and names."""

    sources: tuple[Source, ...]
    nested: tuple[int, ...]

    def carried(self) -> frozenset[Any]:
        """What the function itself carries: parameters, or items of one, by key."""
        places: set[Any] = set()
        for index, source in enumerate(self.sources):
            if isinstance(source, tuple):
                items: Any = [(index, source)]
            else:
                pairs = (
                    enumerate(source) if isinstance(source, list) else source.items()
                )
                items = [((index, key), token) for key, token in pairs]
            places.update(p for p, token in items if token[0] == Origin.CARRIED.value)
        return frozenset(places)


@attrs.frozen(eq=False)
class Binder:
    """How the arguments of a call become one value for each parameter.

    `plain` is the number of positional arguments that already are these values, or -1;
    `carried` are the values that the function itself carries.
    """

    fun_name: str
    opened: Opened
    parameters: Parameters
    carried: tuple[Any, ...]
    checked: tuple[int, ...]
    plain: int
    _plans: dict[Any, Plan] = attrs.field(factory=dict[Any, Any])

    def plan(self, count: int, names: tuple[str, ...]) -> Plan:
        """The plan of a call; raises `SignatureError` if the arguments do not fit."""
        plan = self._plans.get((count, names))
        if plan is None:
            plan = self._plan(count, names)
            if len(self._plans) < PLANS:
                self._plans[count, names] = plan
        return plan

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """One value for each parameter, defaults included; raises `SignatureError`."""
        plan = self.plan(len(args), tuple(kwargs))
        pools: Any = (self.carried, args, kwargs, self.parameters.defaults)
        sources: Any = plan.sources
        if plan.nested:
            values = [_resolve(pools, source) for source in sources]
        else:
            values = [pools[pool][index] for pool, index in sources]
        for index in self.checked:
            if self.parameters.is_default(index, values[index]):
                values[index] = DEFAULT
        return tuple(values)

    def _plan(self, count: int, names: tuple[str, ...]) -> Plan:
        opened, items = self.opened, self.parameters.items
        given: list[Token] = [(Origin.POSITION.value, i) for i in range(count)]
        values: list[Token] = []
        for index, (value, _) in enumerate(opened.values):
            if value is not _PLACEHOLDER:
                values.append((Origin.CARRIED.value, index))
            elif given:
                values.append(given.pop(0))
            else:
                raise self._refused("a placeholder of the partial is not filled")
        offset = len(opened.values)
        keywords: dict[str, Token] = {
            name: (Origin.CARRIED.value, offset + index)
            for index, name in enumerate(opened.keywords)
        }
        keywords |= {name: (Origin.KEYWORD.value, name) for name in names}
        # A keyword that bears the name of a positional-only parameter is one of
        # `**kwargs`, of which `inspect` is not always aware.
        only = {p.name for p in items if p.kind is Parameter.POSITIONAL_ONLY}
        apart = {name: keywords.pop(name) for name in only & keywords.keys()}
        if apart and all(p.kind is not Parameter.VAR_KEYWORD for p in items):
            named = ", ".join(sorted(map(repr, apart)))
            raise self._refused(f"{named} can only be given by position")
        signature = inspect.Signature(items, __validate_parameters__=False)
        try:
            bound = signature.bind(*values, *given, **keywords).arguments
        except TypeError as error:
            raise self._refused(self._misspelled(names) or str(error)) from None
        sources: list[Source] = []
        nested: list[int] = []
        for index, parameter in enumerate(items):
            source: Any = bound.get(parameter.name)
            if parameter.kind is Parameter.VAR_POSITIONAL:
                sources.append(list[Token](source or ()))
            elif parameter.kind is Parameter.VAR_KEYWORD:
                sources.append(dict[str, Token](source or {}) | apart)
            else:
                sources.append(source or (Origin.DEFAULT.value, index))
                continue
            nested.append(index)
        return Plan(tuple(sources), tuple(nested))

    def _misspelled(self, names: tuple[str, ...]) -> str | None:
        """What is wrong with the first name that is no parameter, if there is one."""
        known = [p.name for p in self.parameters.items]
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                return f"got an unexpected keyword argument {name!r}{hint}"
        return None

    def _refused(self, reason: str) -> SignatureError:
        return SignatureError(
            f"`{self.fun_name}`: the arguments do not fit its signature: "
            f"{reason.removesuffix('?')}{'?' if reason.endswith('?') else '.'}",
            fun_name=self.fun_name,
        )


_PLACEHOLDER = getattr(functools, "Placeholder", object())


def _resolve(pools: Any, source: Any) -> Any:
    kind = type_of(source)
    if kind is tuple:
        return pools[source[0]][source[1]]
    if kind is list:
        return tuple([pools[pool][index] for pool, index in source])
    return {name: pools[pool][index] for name, (pool, index) in source.items()}


def make_binder(
    fun_name: str, opened: Opened, is_static: Callable[[Any], bool]
) -> Binder:
    """The binder of an opened function.

    `is_static` tells whether a default may stand in a record as it is. Others, an array
    above all, are kept out of it: the function finds them by itself when it is traced.
    """
    items = tuple(signature_of(opened).parameters.values())
    static = [p.default is Parameter.empty or is_static(p.default) for p in items]
    defaults = [p.default if s else DEFAULT for p, s in zip(items, static, strict=True)]
    checked = tuple(index for index, s in enumerate(static) if not s)
    carried = tuple(v for v, _ in (*opened.values, *opened.keywords.values()))
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    simple = all(p.kind in by_position for p in items) and not checked and not carried
    return Binder(
        fun_name,
        opened,
        Parameters(items, tuple(defaults)),
        carried,
        checked,
        len(items) if simple else -1,
    )
