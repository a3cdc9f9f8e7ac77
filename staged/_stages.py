"""The stages `Traced -> Lowered -> Compiled`: immutable values with the one record.

A transition is a method that makes a new value from an old one. It does without
`from __future__ import annotations`: `beartype` takes no `ParamSpec` from a string.
This module uses `_analysis`, `_call`, `_calling`, `_donation`, `_equinox`, `_errors`,
`_guards`, `_jax`, `_options`, `_output`, `_reprs` and `_staging`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar, final

import attrs
import jax
import jax.tree_util as jtu

from . import _jax
from ._analysis import (
    CostAnalysis,
    MemoryAnalysis,
    cost_analysis_of,
    memory_analysis_of,
)
from ._call import BoundCall
from ._calling import Caller, make_caller, refuse
from ._donation import check_compiled, check_lowered, lower_quietly
from ._equinox import holds_error_check
from ._errors import OptionError, PlatformMismatchError, checked
from ._guards import CapturedConstant, captured, refuse_captured_tracers
from ._options import compiler_options_of, refused_by_xla
from ._output import unpack
from ._reprs import tree_text
from ._staging import Staging, code_roots


P = ParamSpec("P")
R = TypeVar("R", covariant=True)

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def _out_info(stage: Any, traced: Any) -> Any:
    """The result's abstract values, from one of JAX's stages.

    A compiled one of JAX's has forgotten the weak types that were `traced`.
    """

    def plain(info: Any, known: Any) -> Any:
        weak_type = bool(getattr(known, "weak_type", False))
        return jax.ShapeDtypeStruct(
            info.shape, info.dtype, sharding=info.sharding, weak_type=weak_type
        )

    return unpack(jtu.tree_map(plain, stage.out_info, traced))


def _show(stage: "Traced[P, R] | Lowered[P, R] | Compiled[P, R]") -> str:
    """The record of a stage under the stage's own title, and the result."""
    title, _, lines = repr(stage.call).removeprefix("BoundCall").partition("\n")
    if isinstance(stage, Lowered):
        title = f"{title.removesuffix(':')} for {', '.join(stage.platforms)}:"
    result = tree_text(stage.out_info).replace("\n", "\n     ")
    shown = (type(stage).__name__ + title, lines, f"  -> {result}")
    return "\n".join(filter(None, shown))


@final
@checked
@attrs.frozen(kw_only=True, eq=False, repr=False)
class Traced(Generic[P, R]):
    """A function as a jaxpr, for the one call that `call` records."""

    call: BoundCall
    """The record of the call that this stage was made for."""

    _staging: Staging = attrs.field(alias="staging")
    _traced: Any = attrs.field(alias="traced")

    @property
    def fun(self) -> Callable[P, R]:
        """The function; its own arrays are abstract if it was traced under a trace."""
        return self._staging.fun

    @property
    def fun_name(self) -> str:
        """The function's name."""
        return self.call.fun_name

    @property
    def jaxpr(self) -> Any:
        """The program, a `jax.extend.core.ClosedJaxpr` over the flat dynamic leaves."""
        return self._traced.jaxpr

    @property
    def out_info(self) -> Any:
        """The result, with a `jax.ShapeDtypeStruct` in place of each array."""
        return _out_info(self._traced, self._traced.out_info)

    @property
    def captured(self) -> tuple[CapturedConstant, ...]:
        """The arrays that the function closed over, which the program holds."""
        return captured(self._traced, code_roots(self._staging, self.call))

    def lower(
        self, *, lowering_platforms: tuple[str, ...] | None = None
    ) -> "Lowered[P, R]":
        """Lower to the compiler's input language.

        **Arguments:**

        - `lowering_platforms`: for which platforms: `"cpu"`, `"cuda"`, `"rocm"`,
          `"tpu"`. By default for the one that the function would run on here.

        **Returns:** a [`staged.Lowered`][], with one lowering for each platform.

        **Raises:** [`staged.OptionError`][] for an unknown platform;
        [`staged.DonationError`][] if a donated buffer cannot be used and
        `unused_donation="error"`.

        ```python
        import jax.numpy as jnp, staged

        traced = staged.jit(jnp.sin).trace(jnp.ones(3))
        lowered = traced.lower(lowering_platforms=("cpu", "tpu"))
        assert lowered.platforms == ("cpu", "tpu")
        ```
        """
        call, unused = self.call, self._staging.options.donation.unused
        if lowering_platforms is None:
            first = lower_quietly(self._traced)
            lowered = {_jax.platform(first): first}
        else:
            _check_platforms(lowering_platforms, call.fun_name)
            lowered = {
                name: lower_quietly(self._traced, lowering_platforms=(name,))
                for name in lowering_platforms
            }
            first = lowered[lowering_platforms[0]]
        jaxpr = self._traced.jaxpr
        return Lowered(
            call=call,
            staging=self._staging,
            lowered=tuple(lowered.items()),
            out=self._traced.out_info,
            waits=holds_error_check(jaxpr),
            reads_random=_jax.reads_random_settings(jaxpr),
            undecided=check_lowered(
                first, call.dynamic_paths, call.donated_mask, unused, call.fun_name
            ),
        )

    def __repr__(self) -> str:
        return _show(self)


def _check_platforms(platforms: tuple[str, ...], name: str) -> None:
    for platform in platforms:
        if platform not in _PLATFORMS:
            hint = " Say `'cuda'` or `'rocm'`." if platform == "gpu" else ""
            raise OptionError(
                f"`{name}`: `lowering_platforms` names {platform!r}.\n"
                f"  expected some of {', '.join(map(repr, _PLATFORMS))}.{hint}",
                option="lowering_platforms",
            )
    if not platforms:
        raise OptionError(
            f"`{name}`: `lowering_platforms` is empty.\n"
            f"  expected some of {', '.join(map(repr, _PLATFORMS))}.",
            option="lowering_platforms",
        )


@final
@checked
@attrs.frozen(kw_only=True, eq=False, repr=False)
class Lowered(Generic[P, R]):
    """A function in the compiler's input language, for one or more platforms."""

    call: BoundCall
    """The record of the call that this stage was made for."""

    _staging: Staging = attrs.field(alias="staging")
    _lowered: tuple[tuple[str, Any], ...] = attrs.field(alias="lowered")
    _out: Any = attrs.field(alias="out")
    _waits: bool = attrs.field(alias="waits")
    _reads_random: bool = attrs.field(alias="reads_random")
    _undecided: bool = attrs.field(alias="undecided")

    @property
    def fun(self) -> Callable[P, R]:
        """The function; its own arrays are abstract if it was traced under a trace."""
        return self._staging.fun

    @property
    def fun_name(self) -> str:
        """The function's name."""
        return self.call.fun_name

    @property
    def out_info(self) -> Any:
        """The result, with a `jax.ShapeDtypeStruct` in place of each array."""
        return unpack(self._out)

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms that this is a lowering for."""
        return tuple(name for name, _ in self._lowered)

    def as_text(
        self,
        dialect: Literal["stablehlo", "hlo"] = "stablehlo",
        *,
        platform: str | None = None,
        debug_info: bool = False,
    ) -> str:
        """The program as text.

        **Arguments:**

        - `dialect`: the language, `"stablehlo"` or `"hlo"`.
        - `platform`: one of `platforms`; by default the first.
        - `debug_info`: whether to show the source lines.

        **Raises:** [`staged.PlatformMismatchError`][] if there is no such lowering.
        """
        if platform is None:
            platform = self.platforms[0]
        return self._for(platform).as_text(dialect, debug_info=debug_info)

    def cost_analysis(self) -> CostAnalysis | None:
        """XLA's estimate of the work, before optimization; `None` if it is not here."""
        here = self._here
        return cost_analysis_of(self._for(here)) if here in self.platforms else None

    def compile(
        self, *, compiler_options: Mapping[str, Any] | None = None
    ) -> "Compiled[P, R]":
        """Compile for this machine.

        **Arguments:**

        - `compiler_options`: options of XLA, by name.

        **Returns:** a [`staged.Compiled`][], for the call that `call` records.

        **Raises:** [`staged.PlatformMismatchError`][] if this is no lowering for this
        machine's platform; [`staged.OptionError`][] and
        [`staged.CompilerOptionError`][] for an option that XLA cannot take or refuses;
        [`staged.DonationError`][] if XLA cannot use a donated buffer and
        `unused_donation="error"`.
        """
        call = self.call
        given = compiler_options_of(compiler_options or {})
        lowered = self._for(self._here)
        try:
            compiled = lowered.compile(compiler_options=given)
        except _jax.JaxRuntimeError as error:
            options = self._staging.options.compiler_options | given
            refused = refused_by_xla(error, options, call.fun_name)
            if refused is None:
                raise
            raise refused from None
        if self._undecided:
            unused = self._staging.options.donation.unused
            check_compiled(
                compiled, call.dynamic_paths, call.donated_mask, unused, call.fun_name
            )
        caller = make_caller(
            self._staging,
            call,
            compiled,
            waits=self._waits,
            reads_random=self._reads_random,
        )
        return Compiled(call=call, compiled=compiled, out=self._out, caller=caller)

    @property
    def _here(self) -> str:
        return _jax.platform_here(self._lowered[0][1])

    def _for(self, platform: str) -> Any:
        for name, lowered in self._lowered:
            if name == platform:
                return lowered
        raise PlatformMismatchError(
            f"`{self.fun_name}` is lowered for other devices.\n"
            f"  expected {platform}, given a lowering for "
            f"{', '.join(self.platforms)}.\n"
            f"Lower it with `lowering_platforms=({platform!r},)`, or with several "
            "platforms at once.",
            platforms=self.platforms,
            here=platform,
        )

    def __repr__(self) -> str:
        return _show(self)


@final
@checked
@attrs.frozen(kw_only=True, eq=False, repr=False)
class Compiled(Generic[P, R]):
    """An executable for the one call that `call` records. Calling it never traces.

    It takes what the function takes, static arguments included, in any spelling, and
    refuses every other call. It is for the top level only.
    """

    call: BoundCall
    """The record of the call that this stage was made for."""

    _compiled: Any = attrs.field(alias="compiled")
    _out: Any = attrs.field(alias="out")
    _caller: Caller = attrs.field(alias="caller")

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the program.

        **Raises:** [`staged.CallMismatchError`][] for another call than the recorded
        one; [`staged.AbstractArgumentError`][] for a shape and dtype instead of an
        array; [`staged.DonationError`][] for an array whose buffer is gone, or donated
        and given twice; [`staged.TopLevelOnlyError`][] inside a transformation.
        """
        return self._caller.run(args, kwargs)

    @property
    def fun(self) -> Callable[P, R]:
        """The function, whose own arrays are inputs of each call."""
        return self._caller.staging.fun

    @property
    def fun_name(self) -> str:
        """The function's name."""
        return self.call.fun_name

    @property
    def out_info(self) -> Any:
        """The result, with a `jax.ShapeDtypeStruct` in place of each array."""
        return _out_info(self._compiled, self._out)

    @property
    def input_shardings(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Where the program wants its arguments: `(args, kwargs)`, a sharding each.

        For an array that the program does not read it is `None`.
        """
        return self.call.arguments(self._caller.wanted)

    @property
    def output_shardings(self) -> Any:
        """Where the result is: a sharding in place of each array."""
        return unpack(_jax.output_shardings(self._compiled))

    def as_text(self) -> str | None:
        """The optimized program as text, or `None` if the backend has none."""
        return self._compiled.as_text()

    def cost_analysis(self) -> CostAnalysis | None:
        """XLA's estimate of the work, after optimization; `None` if it gives none."""
        return cost_analysis_of(self._compiled)

    def memory_analysis(self) -> MemoryAnalysis | None:
        """XLA's account of the memory on one device; `None` if it gives none."""
        return memory_analysis_of(self._compiled)

    def with_fun(self, fun: Callable[P, R]) -> "Compiled[P, R]":
        """The same program for another function of the same structure.

        A function with arrays of its own, such as a Module, a bound method or a
        `jax.tree_util.Partial`, gives them to the program as inputs: new values need no
        compilation.

        **Arguments:**

        - `fun`: the function; a `Jitted` stands for the function that it holds.

        **Raises:** [`staged.CallMismatchError`][] if it differs in more than the values
        of its arrays.
        """
        staging = self._caller.staging.with_fun(fun)
        given, _ = staging.bind(self.call.args, self.call.kwargs)
        given = attrs.evolve(given, context=self.call.context)
        found = tuple(filter(self._caller.counts, self.call.diff(given)))
        if found:
            refuse(found, self.fun_name)
        return attrs.evolve(self, caller=self._caller.with_staging(staging))

    def __repr__(self) -> str:
        return _show(self)


def make_traced(staging: Staging, call: BoundCall, traced: Any) -> Traced[Any, Any]:
    """The first stage; refuses a function that closes over tracers."""
    refuse_captured_tracers(traced, code_roots(staging, call), call.fun_name)
    return Traced(call=call, staging=staging.without_tracers(), traced=traced)
