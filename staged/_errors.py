"""The errors of `staged`, each with its facts as data.

```
StagedError
├── OptionError (ValueError)              an option of `jit` or of a stage is wrong
├── ArgumentTypeError (TypeError)         a method of a stage got a wrong type
├── CompilerOptionError (JaxRuntimeError) XLA refuses an option
├── SignatureError (TypeError)            the arguments do not fit the signature
├── StaticLeafError (TypeError)           a static value may change, or has no equality
├── CallMismatchError (TypeError)         a call differs from the one that was compiled
├── AbstractArgumentError (TypeError)     an abstract value where an array is due
├── TopLevelOnlyError (TypeError)         a compiled function called under a trace
├── ClosedOverTracerError (TypeError)     a function to be traced closes over a tracer
├── DonationError (RuntimeError)          a donated buffer is gone, twice, or unusable
└── PlatformMismatchError (ValueError)    a lowering is for devices that are not here
```

Each message reads: what failed, with the function's name; where; what was expected and
what was given; what to do. This module imports nothing of the package.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, final

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeCallHintParamViolation


if TYPE_CHECKING:
    import staged

    JaxRuntimeError = RuntimeError  # JAX's own has no type, but that base
else:
    from jax.errors import JaxRuntimeError


class StagedError(Exception):
    """The root of every error that `staged` raises itself."""


@final
class OptionError(StagedError, ValueError):
    """An option of `staged.jit` or of a stage is unknown, or has a wrong value.

    `option` is its name.
    """

    def __init__(self, message: str, *, option: str) -> None:
        super().__init__(message)
        self.option = option


@final
class ArgumentTypeError(StagedError, BeartypeCallHintParamViolation, TypeError):
    """An argument of a method of a stage or record is of the wrong type.

    It is `beartype`'s error too, whose text it has.
    """

    def __init__(self, message: str, culprits: tuple[Any, ...]) -> None:
        message = re.sub(r"staged\._\w+\.", "staged.", message)
        super().__init__(message, culprits)  # pyright: ignore[reportUnknownMemberType]  # beartype's
        type(self).__module__ = "staged"  # `beartype` has put its own there


@final
class CompilerOptionError(StagedError, JaxRuntimeError):
    """XLA refuses one of the `compiler_options`, which `options` holds."""

    def __init__(self, message: str, *, options: dict[str, Any]) -> None:
        super().__init__(message)
        self.options = options


@final
class SignatureError(StagedError, TypeError):
    """The arguments of a call do not fit the signature of the function `fun_name`."""

    def __init__(self, message: str, *, fun_name: str) -> None:
        super().__init__(message)
        self.fun_name = fun_name


@final
class StaticLeafError(StagedError, TypeError):
    """A static value cannot be hashed and compared, or hides arrays that may change.

    `path` says where it stands, in terms of the function's parameters.
    """

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


@final
class CallMismatchError(StagedError, TypeError):
    """A call differs from the one that a stage was made for.

    `differences` holds every `staged.Difference`, in the order of the parameters.
    """

    def __init__(
        self, message: str, *, differences: tuple[staged.Difference, ...]
    ) -> None:
        super().__init__(message)
        self.differences = differences


@final
class AbstractArgumentError(StagedError, TypeError):
    """A call that computes was given a shape and dtype at `path`, not an array."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


@final
class TopLevelOnlyError(StagedError, TypeError):
    """A compiled function was called inside a JAX transformation.

    `path` names the traced argument, or is `None` when every argument is concrete;
    `transformation` names the transformation as far as JAX tells them apart.
    """

    def __init__(self, message: str, *, path: str | None, transformation: str) -> None:
        super().__init__(message)
        self.path = path
        self.transformation = transformation


@final
class ClosedOverTracerError(StagedError, TypeError):
    """A function that is to be traced ahead of time closes over tracers.

    `names` holds, for each of them, the variable that refers to it, or its type when
    no variable could be found. The tracers themselves are not kept.
    """

    def __init__(self, message: str, *, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


@final
class DonationError(StagedError, RuntimeError):
    """A donated buffer was used again, was given twice, or no output can use it.

    `paths` holds the tree path of every leaf that is concerned.
    """

    def __init__(self, message: str, *, paths: tuple[str, ...]) -> None:
        super().__init__(message)
        self.paths = paths


@final
class PlatformMismatchError(StagedError, ValueError):
    """A lowering is for `platforms`, none of which is `here`."""

    def __init__(self, message: str, *, platforms: tuple[str, ...], here: str) -> None:
        super().__init__(message)
        self.platforms = platforms
        self.here = here


checked = beartype(conf=BeartypeConf(violation_param_type=ArgumentTypeError))
"""`beartype` for the classes of the package, with an error of ours."""
