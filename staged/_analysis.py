"""What the compiler says of a program: work and memory, as frozen records.

This module uses `_errors` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, final

import attrs

from ._errors import checked


@final
@checked
@attrs.frozen(kw_only=True)
class CostAnalysis:
    """XLA's estimate of a program's work; a figure that it does not give is `None`.

    `flops` counts floating-point operations, `transcendentals` those such as `exp`,
    `bytes_accessed` the bytes read and written. XLA counts the body of a loop once.
    """

    flops: float | None
    transcendentals: float | None
    bytes_accessed: float | None


@final
@checked
@attrs.frozen(kw_only=True)
class MemoryAnalysis:
    """XLA's account of a program's memory on one device, in bytes.

    `alias_size_in_bytes` is the part of the outputs that reuses donated arguments;
    `peak_memory_in_bytes` is the most that is held at once, or `None` if XLA does not
    say.
    """

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int
    peak_memory_in_bytes: int | None


def cost_analysis_of(stage: Any) -> CostAnalysis | None:
    """The cost analysis of one of JAX's stages; `None` where the backend has none."""
    try:
        raw: Any = stage.cost_analysis()
    except Exception:  # noqa: BLE001  # any error means that there is none
        return None
    if isinstance(raw, (list, tuple)):
        raw = cast("Sequence[Any]", raw)[0] if raw else None
    if not isinstance(raw, Mapping):
        return None
    found = cast("Mapping[str, Any]", raw)
    figures = {name: found.get(name) for name in ("flops", "transcendentals")}
    figures["bytes_accessed"] = found.get("bytes accessed")
    return CostAnalysis(
        **{
            # XLA marks what it does not know with a negative number.
            name: None if value is None or value < 0 else float(value)
            for name, value in figures.items()
        }
    )


def memory_analysis_of(compiled: Any) -> MemoryAnalysis | None:
    """The memory analysis of an executable; `None` where the backend has none."""
    try:
        raw: Any = compiled.memory_analysis()
    except Exception:  # noqa: BLE001  # any error means that there is none
        return None
    if raw is None:
        return None
    peak = getattr(raw, "peak_memory_in_bytes", None)
    return MemoryAnalysis(
        argument_size_in_bytes=raw.argument_size_in_bytes,
        output_size_in_bytes=raw.output_size_in_bytes,
        alias_size_in_bytes=raw.alias_size_in_bytes,
        temp_size_in_bytes=raw.temp_size_in_bytes,
        generated_code_size_in_bytes=raw.generated_code_size_in_bytes,
        peak_memory_in_bytes=peak,
    )
