"""What a stage knows of an array: its abstract value, and the context it is used in.

This module uses `_errors` and `_jax`.
"""

from __future__ import annotations

import operator
from typing import Any, cast, final

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from . import _jax
from ._errors import OptionError, checked


@final
@attrs.frozen(eq=False)
class ArraySharding:
    """Where a committed array lives; equal if JAX's dispatch takes one for another."""

    sharding: jax.sharding.Sharding
    ndim: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArraySharding):
            return NotImplemented
        if self._is_abstract or other._is_abstract:
            return self.ndim == other.ndim and self.sharding == other.sharding
        return self.ndim == other.ndim and self.sharding.is_equivalent_to(
            other.sharding, self.ndim
        )

    def __hash__(self) -> int:
        sharding: Any = cast("Any", self.sharding)
        places = sharding.mesh if self._is_abstract else frozenset(sharding.device_set)
        return hash((places, sharding.memory_kind, self.ndim))

    @property
    def _is_abstract(self) -> bool:
        """Whether the devices are not known yet."""
        mesh = getattr(self.sharding, "mesh", None)
        return isinstance(mesh, jax.sharding.AbstractMesh)

    def __str__(self) -> str:
        sharding = cast("Any", self.sharding)
        if self._is_abstract:
            return f"{sharding.spec} over {dict(sharding.mesh.shape)}"
        text = ", ".join(sorted(map(str, sharding.device_set)))
        if isinstance(self.sharding, jax.sharding.NamedSharding):
            text = f"{sharding.spec} over {dict(sharding.mesh.shape)}"
            ids = sharding.mesh.device_ids.flatten().tolist()
            if ids != list(range(len(ids))):
                text = f"{text} of the devices {ids}"
        kind, device = sharding.memory_kind, next(iter(sharding.device_set))
        usual = kind is None or kind == device.default_memory().kind
        return text if usual else f"{text} in {kind}"


@final
@attrs.frozen
class Aval:
    """The abstract value of one dynamic leaf."""

    shape: tuple[Any, ...]
    dtype: Any
    weak_type: bool
    sharding: ArraySharding | None

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape))
        return f"{getattr(self.dtype, 'name', self.dtype)}[{shape}]"

    def struct(self) -> jax.ShapeDtypeStruct:
        """The same as JAX's own type."""
        sharding = None if self.sharding is None else self.sharding.sharding
        return jax.ShapeDtypeStruct(
            self.shape, self.dtype, sharding=sharding, weak_type=self.weak_type
        )


def aval_of(leaf: Any) -> Aval:
    """The abstract value of an array, tracer, number or `jax.ShapeDtypeStruct`."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        dtype, sharding = leaf.dtype, leaf.sharding
        if not jnp.issubdtype(dtype, jax.dtypes.extended):  # that of a key is
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        shape, weak_type = leaf.shape, bool(leaf.weak_type)
    else:
        typed: Any = jax.typeof(leaf)
        shape, dtype, weak_type = typed.shape, typed.dtype, typed.weak_type
        sharding = None
        if isinstance(leaf, jax.Array) and not isinstance(leaf, _jax.Tracer):
            sharding = leaf.sharding if leaf.committed else None
    sharding = getattr(sharding, "sharding", sharding)  # a `Format` has a layout too
    placed = (
        ArraySharding(sharding, len(shape))
        if isinstance(sharding, jax.sharding.Sharding)
        else None
    )
    return Aval(tuple(shape), dtype, weak_type, placed)


RANDOM = ("default_prng_impl", "random_seed_offset")


@final
@checked
@attrs.frozen(kw_only=True)
class Context:
    """What of JAX's configuration shapes a program.

    The names are those of JAX's own options, without `jax_`; `mesh` is the mesh that is
    set by `jax.set_mesh`, or `None`.
    """

    enable_x64: bool
    default_matmul_precision: str | None
    numpy_dtype_promotion: str
    numpy_rank_promotion: str
    default_prng_impl: str
    threefry_partitionable: bool
    random_seed_offset: int
    mesh: Any = None

    def numerics(self) -> tuple[Any, ...]:
        """What decides the numbers that come out; JAX's dispatch looks at it."""
        return tuple(
            getattr(self, field.name)
            for field in attrs.fields(Context)
            if field.name not in ("mesh", *RANDOM)
        )

    def random(self) -> tuple[str, int]:
        """What decides them only where a program makes its own random keys."""
        return self.default_prng_impl, self.random_seed_offset


def current_context() -> Context:
    """The context in force here and now."""
    config: Any = jax.config
    mesh: Any = jax.sharding.get_abstract_mesh()
    promotion = config.jax_numpy_dtype_promotion  # a string, or an enum of strings
    return Context(
        enable_x64=config.jax_enable_x64,
        default_matmul_precision=config.jax_default_matmul_precision,
        numpy_dtype_promotion=getattr(promotion, "value", promotion),
        numpy_rank_promotion=config.jax_numpy_rank_promotion,
        default_prng_impl=config.jax_default_prng_impl,
        threefry_partitionable=config.jax_threefry_partitionable,
        random_seed_offset=config.jax_random_seed_offset,
        mesh=None if mesh.empty else mesh,
    )


def abstract(
    shape: tuple[int, ...],
    dtype: Any,
    *,
    sharding: jax.sharding.Sharding | None = None,
    weak_type: bool = False,
) -> Any:
    """A `jax.ShapeDtypeStruct`, typed `Any` so that it may stand for an array.

    Type checkers refuse a `ShapeDtypeStruct` where a parameter is an `Array`.

    **Arguments:**

    - `shape`: the shape, a tuple of sizes.
    - `dtype`: the dtype, or anything that `jax.numpy.dtype` takes.
    - `sharding`: where the array will live; `None` for wherever it is.
    - `weak_type`: whether the dtype gives way to others, as that of `jnp.asarray(1.0)`.

    **Returns:** a `jax.ShapeDtypeStruct`.

    **Raises:** [`staged.OptionError`][] if `shape` is no tuple of sizes; `TypeError` if
    JAX has no such dtype.

    ```python
    import jax, jax.numpy as jnp, staged

    traced = staged.jit(jnp.sin).trace(staged.abstract((3,), jnp.float32))
    ```
    """
    given: Any = shape
    if not isinstance(given, (tuple, list)) or not all(map(_is_size, shape)):
        raise OptionError(
            f"`staged.abstract` takes a tuple of sizes as `shape`, given {given!r}.",
            option="shape",
        )
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, weak_type=weak_type)


def _is_size(item: Any) -> bool:
    if export.is_symbolic_dim(item):
        return True
    if isinstance(item, bool) or not isinstance(item, (int, np.integer)):
        return False
    return operator.index(cast("int", item)) >= 0
