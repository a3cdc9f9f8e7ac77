"""The types of what a stage, a record and an error show.

Checked by pyright and mypy, never run.
"""

from collections.abc import Callable, Mapping
from typing import Any, assert_type

import jax
from jax import Array

import staged


@staged.jit
def scale(x: Array, n: int) -> Array:
    return n * x


def check_stages(x: Array) -> None:
    """The read-only surface of the stages."""
    traced = scale.trace(x, 2)
    lowered = traced.lower()
    compiled = lowered.compile()
    for stage in (traced, lowered, compiled):
        assert_type(stage.call, staged.BoundCall)
        assert_type(stage.fun_name, str)
    assert_type(traced.captured, tuple[staged.CapturedConstant, ...])
    assert_type(traced.captured[0].name, str | None)
    assert_type(traced.captured[0].shape, tuple[int, ...])
    assert_type(traced.captured[0].nbytes, int)
    assert_type(lowered.platforms, tuple[str, ...])
    assert_type(lowered.as_text(), str)
    assert_type(lowered.as_text("hlo", platform="cpu", debug_info=True), str)
    assert_type(lowered.cost_analysis(), staged.CostAnalysis | None)
    assert_type(compiled.as_text(), str | None)
    assert_type(compiled.cost_analysis(), staged.CostAnalysis | None)
    assert_type(compiled.memory_analysis(), staged.MemoryAnalysis | None)
    assert_type(scale.clear_cache(), None)


def check_analyses(cost: staged.CostAnalysis, memory: staged.MemoryAnalysis) -> None:
    """Figures that may be missing, and figures that may not."""
    assert_type(cost.flops, float | None)
    assert_type(cost.transcendentals, float | None)
    assert_type(cost.bytes_accessed, float | None)
    assert_type(memory.argument_size_in_bytes, int)
    assert_type(memory.peak_memory_in_bytes, int | None)


def check_record(x: Array, call: staged.BoundCall) -> None:
    """A record, and the differences of two."""
    assert_type(call.args, tuple[Any, ...])
    assert_type(call.kwargs, dict[str, Any])
    assert_type(call.static, Mapping[str, Any])
    assert_type(call.dynamic, Mapping[str, jax.ShapeDtypeStruct])
    assert_type(call.donated, tuple[str, ...])
    assert_type(call.context, staged.Context)
    assert_type(call.context.enable_x64, bool)
    assert_type(call.diff(call), tuple[staged.Difference, ...])
    assert_type(call.diff(call)[0].path, str)
    executables = {call: scale.lower(x, 2).compile()}
    assert_type(executables[call](x, 2), Array)


def check_errors(call: Callable[[], None]) -> None:
    """The facts that errors carry."""
    try:
        call()
    except staged.CallMismatchError as error:
        assert_type(error.differences, tuple[staged.Difference, ...])
    except staged.TopLevelOnlyError as error:
        assert_type(error.path, str | None)
        assert_type(error.transformation, str)
    except staged.ClosedOverTracerError as error:
        assert_type(error.names, tuple[str, ...])
    except staged.DonationError as error:
        assert_type(error.paths, tuple[str, ...])
    except staged.PlatformMismatchError as error:
        assert_type(error.platforms, tuple[str, ...])
        assert_type(error.here, str)
    except staged.OptionError as error:
        assert_type(error.option, str)
    except staged.CompilerOptionError as error:
        assert_type(error.options, dict[str, Any])
    except staged.SignatureError as error:
        assert_type(error.fun_name, str)
    except (staged.StaticLeafError, staged.AbstractArgumentError) as error:
        assert_type(error.path, str)


def check_builtin_bases(message: str) -> None:
    """Each error is the builtin one that JAX would have raised, too."""
    errors: list[staged.StagedError] = []
    types: list[TypeError] = [staged.StaticLeafError(message, path="x")]
    values: list[ValueError] = [staged.OptionError(message, option="donate")]
    runtime: list[RuntimeError] = [staged.DonationError(message, paths=("x",))]
    errors.append(staged.TopLevelOnlyError(message, path=None, transformation="vmap"))
    assert errors
    assert types
    assert values
    assert runtime
