"""Explicit, typed, immutable compilation stages for a JAX function.

`staged.jit(f).trace(...).lower().compile()`: every stage carries one record of the call
that it was made for, and a compiled function refuses every other call.
"""

from ._abstract import Context as Context
from ._abstract import abstract as abstract
from ._analysis import CostAnalysis as CostAnalysis
from ._analysis import MemoryAnalysis as MemoryAnalysis
from ._call import BoundCall as BoundCall
from ._diff import Difference as Difference
from ._errors import AbstractArgumentError as AbstractArgumentError
from ._errors import CallMismatchError as CallMismatchError
from ._errors import ClosedOverTracerError as ClosedOverTracerError
from ._errors import CompilerOptionError as CompilerOptionError
from ._errors import DonationError as DonationError
from ._errors import OptionError as OptionError
from ._errors import PlatformMismatchError as PlatformMismatchError
from ._errors import SignatureError as SignatureError
from ._errors import StagedError as StagedError
from ._errors import StaticLeafError as StaticLeafError
from ._errors import TopLevelOnlyError as TopLevelOnlyError
from ._guards import CapturedConstant as CapturedConstant
from ._jit import Jitted as Jitted
from ._jit import jit as jit
from ._stages import Compiled as Compiled
from ._stages import Lowered as Lowered
from ._stages import Traced as Traced
