"""Explicit, typed, immutable compilation stages for a JAX function.

`staged.jit(f).trace(...).lower().compile()`: every stage carries one record of the call
that it was made for, and a compiled function refuses every other call.
"""

from ._abstract import Context, abstract
from ._analysis import CostAnalysis, MemoryAnalysis
from ._call import BoundCall
from ._diff import Difference
from ._errors import (
    AbstractArgumentError,
    ArgumentTypeError,
    CallMismatchError,
    ClosedOverTracerError,
    CompilerOptionError,
    DonationError,
    OptionError,
    PlatformMismatchError,
    SignatureError,
    StagedError,
    StaticLeafError,
    TopLevelOnlyError,
)
from ._guards import CapturedConstant
from ._jit import Jitted, jit
from ._stages import Compiled, Lowered, Traced


__all__ = [
    "AbstractArgumentError",
    "ArgumentTypeError",
    "BoundCall",
    "CallMismatchError",
    "CapturedConstant",
    "ClosedOverTracerError",
    "Compiled",
    "CompilerOptionError",
    "Context",
    "CostAnalysis",
    "Difference",
    "DonationError",
    "Jitted",
    "Lowered",
    "MemoryAnalysis",
    "OptionError",
    "PlatformMismatchError",
    "SignatureError",
    "StagedError",
    "StaticLeafError",
    "TopLevelOnlyError",
    "Traced",
    "abstract",
    "jit",
]

for _name in __all__:
    # As a user writes it, in every message, traceback and pickle. A function keeps its
    # own, by which its overloads are found.
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__
