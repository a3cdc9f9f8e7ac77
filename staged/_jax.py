"""The one module that touches `jax._src`: everything that JAX does not say in public.

Supported are JAX 0.9 to 0.12. Each function says which private fact it stands on. It
imports nothing of the package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import jax
from jax._src import (
    api,
    api_util,
    config,
    core,
    layout,
    lib,
    source_info_util,
    traceback_util,
    tree_util,
)
from jax._src.interpreters import pxla


_HERE = Path(__file__).parent
for _file in _HERE.glob("_*.py"):
    # Our frames are as uninteresting in a user's traceback as JAX's own.
    traceback_util.register_exclusion(str(_file))
    source_info_util.register_exclusion(str(_file))

_Flatten = Callable[[Any], tuple[Any, Any]]
_Unflatten = Callable[[Any, Any], Any]
_Keyed = tuple[list[tuple[Any, Any]], Any]


# What comes from JAX's C++ part has no type, and what mentions it but half of one. All
# that the package uses of it passes through here; the public names keep their names.
_any_jax: Any = jax
_any_api: Any = api
_any_api_util: Any = api_util
_any_config: Any = config
_any_core: Any = core
_any_lib: Any = lib
_any_pxla: Any = pxla
_any_tree: Any = tree_util

GetAttrKey: type[Any] = _any_tree.GetAttrKey
PyTreeDef: type[Any] = _any_tree.PyTreeDef
Tracer: type[Any] = _any_core.Tracer
FloatingPointFailure: type[Exception] = _any_api_util.InternalFloatingPointError
"""What a program raises under `jax.debug_nans`, for `jax.jit` to find the line."""
JaxRuntimeError: type[Exception] = _any_jax.errors.JaxRuntimeError
LAYOUTS: tuple[type[Any], ...] = (layout.Format, layout.Layout)
"""What may stand for a sharding and say how the data are laid out, too."""
block_until_ready: Callable[[Any], Any] = _any_jax.block_until_ready
device_put: Callable[[Any, Any], Any] = _any_jax.device_put
devices: Callable[[str], Any] = _any_jax.devices
eval_shape: Callable[[Callable[[Any], Any], Any], Any] = _any_jax.eval_shape
keystr: Callable[[Sequence[Any]], str] = _any_tree.keystr
register_pytree_node: Callable[[type[Any], _Flatten, _Unflatten], None]
register_pytree_node = _any_tree.register_pytree_node
register_pytree_with_keys: Callable[[type[Any], _Flatten, _Unflatten, _Flatten], None]
register_pytree_with_keys = _any_tree.register_pytree_with_keys
tree_flatten_with_path: Callable[..., _Keyed] = _any_tree.tree_flatten_with_path

flatten: Callable[[Any], tuple[list[Any], Any]] = _any_tree.default_registry.flatten
"""`jax.tree_util.tree_flatten` without its Python frame."""

jit: Callable[..., Any] = _any_api.jit
"""`jax.jit` itself: Equinox replaces the public name when `EQX_ON_ERROR=breakpoint`."""

Miss = Callable[..., tuple[Any, Any, Any]]
"""`(*leaves) -> (outputs, data for the fast path or None, flag)`, as JAX's C++ asks."""


def dispatcher(
    name: str, miss: Miss, fun: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A C++ function that calls `miss` for each new signature.

    A signature is the arguments' structure, by its `==`, their leaves' shapes, dtypes,
    weak types and shardings, and what of JAX's configuration is in its own key, a
    surrounding trace included: so what `miss` checks of these holds for every later
    call that does not reach it. Under `jax.disable_jit`, `fun` runs instead, or `miss`
    each time.
    """

    def run_miss(*args: Any) -> Any:
        return miss(*args)[0]

    return _any_lib._jax.pjit(
        name,
        fun or run_miss,
        miss,
        [],
        [],
        _any_pxla.JitGlobalCppCacheKeys(),
        _any_tree.dispatch_registry,
        _any_pxla.cc_shard_arg,
    )


def jit_miss(jitted: Any) -> Miss:
    """What the C++ part of a `jax.jit` function calls when its cache misses."""
    return jitted._cache_miss


def compiled_miss(compiled: jax.stages.Compiled) -> Miss:
    """The same for an executable: a fast path, unless it calls back to Python."""
    raw: Any = compiled
    fast = raw._executable.create_cpp_call(raw._params)
    if fast is not None:
        return fast._cache_miss

    def miss(*leaves: Any) -> tuple[Any, Any, Any]:
        return compiled(*leaves), None, False

    return miss


def buffers(array: Any) -> list[tuple[Any, int]]:
    """Where the data of an array are: the device and the address of each shard."""
    return [
        (shard.device, shard.data.unsafe_buffer_pointer())
        for shard in array.addressable_shards
        if shard.data.size
    ]


_TRANSFORMATIONS = {
    "DynamicJaxprTrace": "jit/make_jaxpr/eval_shape/scan/cond/while_loop",
    "LinearizeTrace": "grad/vjp/linearize",
    "JaxprTrace": "grad/vjp/linearize",
    "JVPTrace": "jvp/grad",
    "BatchTrace": "vmap",
    "ShardMapTrace": "shard_map",
}


def _closed_over(fun: Any) -> dict[str, Any]:
    names = zip(fun.__code__.co_freevars, fun.__closure__, strict=True)
    return {name: cell.cell_contents for name, cell in names}


# A filter of tracebacks stands before the function that `jax.vmap` makes.
_any_vmap: Any = _any_api.vmap(len)
_FILTER, _VMAP = _any_vmap.__code__, _closed_over(_any_vmap)["fun"].__code__


def maps_by_position(fun: Any) -> bool:
    """Whether a function is one of `jax.vmap` to which a keyword means another thing.

    It maps keyword arguments over their first axis, whatever `in_axes` says.
    """
    if getattr(fun, "__code__", None) is not _FILTER:
        return False
    inner = _closed_over(fun)["fun"]
    if getattr(inner, "__code__", None) is not _VMAP:
        return False
    in_axes = _closed_over(inner)["in_axes"]
    return any(axis != 0 for axis in _any_tree.tree_leaves(in_axes, is_leaf=_is_none))


def _is_none(item: Any) -> bool:
    return item is None


def may_compute() -> bool:
    """Whether concrete arrays are computed with at once, here and now.

    So it is at the top level, and under `jax.ensure_compile_time_eval()`, which only
    its private flag shows: the surrounding trace stays the current one.
    """
    at_top_level: bool = _any_core.trace_ctx.is_top_level()
    return at_top_level or bool(_any_config.eager_constant_folding.value)


def transformation(tracer: Any = None) -> str:
    """The transformation that made `tracer`, or the current one, by JAX's account."""
    trace: Any = _any_core.trace_ctx.trace if tracer is None else tracer._trace
    name = type(trace).__name__
    return _TRANSFORMATIONS.get(name, name.removesuffix("Trace"))


def captured_constants(traced: jax.stages.Traced) -> list[Any]:
    """What a traced function closed over: arrays, and tracers from outside."""
    raw: Any = traced
    return [*raw._consts, *raw.jaxpr.consts]


def line_that_uses(traced: jax.stages.Traced, tracer: Any) -> str | None:
    """`file:line` of the first use of a captured tracer, where JAX still knows it."""
    raw: Any = traced
    jaxpr = getattr(raw.jaxpr, "jaxpr", raw.jaxpr)
    variables = [*jaxpr.invars[: len(raw._consts)], *jaxpr.constvars]
    values = captured_constants(traced)
    wanted = [v for v, value in zip(variables, values, strict=False) if value is tracer]
    for eqn in jaxpr.eqns:
        if any(v is w for v in eqn.invars for w in wanted):
            return source_info_util.summarize(eqn.source_info)
    return None


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr, those of the jaxprs in their parameters included."""
    seen: set[int] = set()
    pending: list[Any] = [jaxpr]
    while pending:
        item = pending.pop()
        if isinstance(item, (tuple, list)):
            pending.extend(cast("Sequence[Any]", item))
        elif hasattr(item, "eqns") and id(item) not in seen:
            seen.add(id(item))
            for eqn in item.eqns:
                yield eqn
                pending.extend(eqn.params.values())


def platform(lowered: jax.stages.Lowered) -> str:
    """The platform of a lowering for one, by its name in `lowering_platforms`."""
    raw: Any = lowered
    return raw._lowering._platforms[0]


def platform_here(lowered: jax.stages.Lowered) -> str:
    """The platform that a lowering would run on here, by the same kind of name.

    It is that of the default devices, or of those that the function asks for.
    """
    raw: Any = lowered
    client = raw._lowering.compile_args["backend"]
    return getattr(client, "_raw_platform", client.platform)


def donation_of_arguments(lowered: jax.stages.Lowered, count: int) -> list[bool | None]:
    """Whether a donated buffer of each of `count` flat arguments will be used.

    `None` means that JAX leaves the decision to XLA. An argument that the program does
    not read is dropped before it, so that its buffer cannot be used.
    """
    raw: Any = lowered
    offset = len(raw._lowering.const_args)
    kept = sorted(i for i in raw._lowering.compile_args["kept_var_idx"] if i >= offset)
    module: Any = lowered.compiler_ir("stablehlo")
    # The module may hold meshes too, which have no name of this kind.
    operations = module.body.operations
    functions = (op for op in operations if op.operation.name == "func.func")
    (main,) = (op for op in functions if op.name.value == "main")
    attributes = list(main.arg_attrs) if kept else []
    usable: list[bool | None] = [False] * count
    # Tokens and hoisted constants stand in front of the arguments.
    for index, entry in zip(reversed(kept), reversed(attributes), strict=False):
        if "tf.aliasing_output" in entry:
            usable[index - offset] = True
        elif "jax.buffer_donor" in entry:
            usable[index - offset] = None
    return usable


def aliased_arguments(
    compiled: jax.stages.Compiled, count: int
) -> Sequence[bool | None]:
    """Whether the executable reuses the buffer of each of `count` flat arguments.

    The executable's text says it, in its first line. All `None` if there is no text.
    """
    raw: Any = compiled
    text = compiled.as_text()
    if text is None:
        return [None] * count
    header = text.split("\n", 1)[0]
    found = re.search(r"input_output_alias=\{(.*?)\}, \w+=", header)
    numbers = re.findall(r": \((\d+),", found.group(1)) if found else ()
    offset = len(raw._params.const_args)
    kept = sorted(raw._executable._kept_var_idx)
    aliased = {kept[int(n)] - offset for n in numbers}
    return [i in aliased for i in range(count)]


def input_shardings(compiled: jax.stages.Compiled, count: int) -> list[Any]:
    """The sharding that the executable wants of each of `count` flat arguments.

    It is `None` if the argument is dropped. References that the function closes over
    stand in front of them, which JAX's own property does not know.
    """
    raw: Any = compiled
    found = list(raw._input_shardings_flat())
    return found[len(found) - count :]


def output_shardings(compiled: jax.stages.Compiled) -> Any:
    """The shardings of an executable's results, in their structure."""
    raw: Any = compiled
    return raw.out_tree.unflatten(
        raw._executable._out_shardings[: raw.out_tree.num_leaves]
    )


prng_impl: Any = config.default_prng_impl
seed_offset: Any = config.random_seed_offset
"""The kind of random keys and the offset of seeds, which no key of JAX's holds.

Their `value` costs less than the public way to them.
"""


def random_settings() -> tuple[str, int]:
    """Both of these."""
    return prng_impl.value, seed_offset.value


def reads_random_settings(jaxpr: Any) -> bool:
    """Whether a program was made with these settings: it makes a key, or wraps one."""
    return any(eqn.primitive.name in _KEYS for eqn in equations(jaxpr))


_KEYS = ("random_seed", "random_wrap")
