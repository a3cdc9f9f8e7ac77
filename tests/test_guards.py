"""What is legal under a trace, for each of JAX's transformations."""

import contextlib
import functools
import gc
import inspect
import unittest.mock
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax import lax

import staged


X = jnp.arange(3.0)
JAXPR = "jit/make_jaxpr/eval_shape/scan/cond/while_loop"
GRAD = "grad/vjp/linearize"


def double(x):
    """A function of one array."""
    return x * 2.0


def _custom_vjp(forward, backward):
    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (forward(x), None), lambda _, ct: (backward(ct),))
    return f


def _custom_jvp(primal, tangent):
    @jax.custom_jvp
    def f(x):
        return primal(x)

    f.defjvp(lambda xs, ts: (primal(xs[0]), tangent(ts[0])))
    return f


def _shard_map(f):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    spec = jax.sharding.PartitionSpec()
    return jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)


def _total(f):
    return lambda x: f(x).sum()


# Each calls `f` with a traced array of shape (3,); the second is JAX's name for it.
TRANSFORMATIONS = {
    "jit": (lambda f: jax.jit(f)(X), JAXPR),
    "grad": (lambda f: jax.grad(_total(f))(X), GRAD),
    "value_and_grad": (lambda f: jax.value_and_grad(_total(f))(X), GRAD),
    "grad_of_jit": (lambda f: jax.grad(jax.jit(_total(f)))(X), JAXPR),
    "jvp": (lambda f: jax.jvp(f, (X,), (X,)), "jvp/grad"),
    "vjp": (lambda f: jax.vjp(f, X)[1](X), GRAD),
    "linearize": (lambda f: jax.linearize(f, X)[1](X), GRAD),
    "hessian": (lambda f: jax.hessian(_total(f))(X), GRAD),
    "vmap": (lambda f: jax.vmap(f)(jnp.ones((2, 3))), "vmap"),
    "vmap_of_jit": (lambda f: jax.vmap(jax.jit(f))(jnp.ones((2, 3))), JAXPR),
    "map": (lambda f: lax.map(f, jnp.ones((2, 3))), JAXPR),
    "scan": (lambda f: lax.scan(lambda c, _: (f(c), None), X, None, length=2), JAXPR),
    "cond": (lambda f: lax.cond(True, f, lambda x: x, X), JAXPR),
    "switch": (lambda f: lax.switch(jnp.array(0), [f, lambda x: x], X), JAXPR),
    "while_loop": (
        lambda f: lax.while_loop(
            lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1])), (0, X)
        ),
        JAXPR,
    ),
    "fori_loop": (lambda f: lax.fori_loop(0, 2, lambda _, x: f(x), X), JAXPR),
    "shard_map": (lambda f: _shard_map(f)(X), "shard_map"),
    "checkpoint": (lambda f: jax.grad(_total(jax.checkpoint(f)))(X), JAXPR),
    "custom_vjp_under_jit": (
        lambda f: jax.jit(jax.grad(_total(_custom_vjp(f, f))))(X),
        JAXPR,
    ),
    "custom_jvp_under_jit": (
        lambda f: jax.jit(lambda x: jax.jvp(_custom_jvp(f, f), (x,), (x,)))(X),
        JAXPR,
    ),
    "make_jaxpr": (lambda f: jax.make_jaxpr(f)(X), JAXPR),
    "eval_shape": (lambda f: jax.eval_shape(f, X), JAXPR),
}

# Rules that JAX runs at once, with arrays.
EAGER = {
    "custom_vjp": lambda f: _custom_vjp(f, f)(X),
    "custom_vjp_grad": lambda f: jax.grad(_total(_custom_vjp(f, f)))(X),
    "custom_jvp": lambda f: _custom_jvp(f, f)(X),
    "custom_jvp_jvp": lambda f: jax.jvp(_custom_jvp(f, f), (X,), (X,)),
}

transformations = pytest.mark.parametrize(
    ("transform", "where"), TRANSFORMATIONS.values(), ids=TRANSFORMATIONS
)
eager = pytest.mark.parametrize("transform", EAGER.values(), ids=EAGER)


@pytest.fixture(params=[False, True], ids=["", "checking_leaks"], autouse=True)
def leaks(request):
    """Every test of this module runs with and without JAX's leak checker."""
    with jax.checking_leaks() if request.param else contextlib.nullcontext():
        yield request.param


@pytest.fixture
def compiled():
    """`double`, compiled."""
    return staged.jit(double).lower(X).compile()


@transformations
def test_compiled_refuses_a_tracer(transform, where, compiled):
    """A compiled function names the traced argument and the transformation."""
    with pytest.raises(staged.TopLevelOnlyError) as info:
        transform(compiled)
    assert str(info.value) == (
        "`double` is compiled, and was called inside a JAX transformation.\n"
        f"  `x` is a tracer of {where}.\n"
        "A compiled program is for the top level only. Inside a transformation call "
        "the jitted function that it was made from, or use its `eval_shape` if only "
        "shapes are wanted."
    )
    assert (info.value.path, info.value.transformation) == ("x", where)


@transformations
def test_compiled_refuses_concrete_arguments_under_a_trace(transform, where, compiled):
    """A compiled function refuses to become a constant of a surrounding program."""

    def f(x):
        return x + compiled(X)

    compiled(X)  # a call that is known already is refused as well
    with pytest.raises(staged.TopLevelOnlyError) as info:
        transform(f)
    assert str(info.value) == (
        "`double` is compiled, and was called inside a JAX transformation.\n"
        f"  No argument is a tracer, but {where} is running: the result would become a "
        "constant of its program.\n"
        "Call it outside and pass the result in, call the jitted function that it was "
        "made from, or wrap the call in `jax.ensure_compile_time_eval()` if a constant "
        "is wanted."
    )
    assert (info.value.path, info.value.transformation) == (None, where)
    assert compiled(X).tolist() == [0, 2, 4]


@transformations
def test_ensure_compile_time_eval_lifts_it_for_concrete_arguments(
    transform, where, compiled
):
    """Under `jax.ensure_compile_time_eval()` a compiled call computes a constant."""
    seen = []

    def f(x):
        with jax.ensure_compile_time_eval():
            seen.append(compiled(X))
        return x + seen[0]

    transform(f)
    assert not isinstance(seen[0], jax.core.Tracer)
    assert seen[0].tolist() == [0, 2, 4]
    with pytest.raises(staged.TopLevelOnlyError):
        transform(lambda x: x + compiled(X))


@transformations
def test_ensure_compile_time_eval_does_not_lift_it_for_tracers(
    transform, where, compiled
):
    """A tracer has no value at compile time either."""

    def f(x):
        with jax.ensure_compile_time_eval():
            return compiled(x)

    with pytest.raises(staged.TopLevelOnlyError) as info:
        transform(f)
    assert (info.value.path, info.value.transformation) == ("x", where)


def test_ensure_compile_time_eval_at_the_top_level(compiled):
    """At the top level, `jax.ensure_compile_time_eval()` changes nothing."""
    with jax.ensure_compile_time_eval():
        assert compiled(X).tolist() == [0, 2, 4]
        assert staged.jit(double).lower(X).compile()(X).tolist() == [0, 2, 4]


def test_jit_inside_ensure_compile_time_eval(compiled):
    """A trace begun under `jax.ensure_compile_time_eval()` still computes eagerly."""

    @jax.jit
    def f(x):
        with jax.ensure_compile_time_eval():
            return jax.jit(lambda: compiled(X))() + x

    assert f(X).tolist() == [0, 3, 6]


@eager
def test_eager_rules_count_as_top_level(transform, compiled):
    """Derivative rules that JAX runs with arrays may call a compiled function."""
    jax.block_until_ready(transform(compiled))
    jax.block_until_ready(transform(lambda x: x + compiled(X)))
    jax.block_until_ready(transform(lambda x: staged.jit(double).lower(x).compile()(x)))


def test_custom_jvp_rule_under_grad_is_no_top_level(compiled):
    """`jax.grad` linearizes the rule of a `custom_jvp`, and so traces it."""
    with pytest.raises(staged.TopLevelOnlyError) as info:
        jax.grad(_total(_custom_jvp(double, compiled)))(X)
    assert info.value.transformation == GRAD


def test_eager_forward_rule_under_grad_gives_the_gradient(compiled):
    """An eager `custom_vjp` with compiled rules differentiates."""
    gradient = jax.grad(_total(_custom_vjp(compiled, compiled)))(X)
    assert gradient.tolist() == [2, 2, 2]


def test_disable_jit_counts_as_top_level(compiled):
    """Under `jax.disable_jit()` a `jax.jit` is no trace."""
    with jax.disable_jit():
        assert compiled(X).tolist() == [0, 2, 4]
        assert jax.jit(compiled)(X).tolist() == [0, 2, 4]
        with pytest.raises(staged.TopLevelOnlyError):
            jax.grad(_total(compiled))(X)


@pytest.mark.parametrize("outer", [jax.jit, jax.grad, jax.vmap])
def test_the_argument_is_named_deep_inside(outer):
    """The traced argument is named by its path, among concrete ones."""

    def loss(scale, model, *, extra):
        return scale * model["layers"][1].sum() + extra

    one, model = jnp.ones(()), {"layers": [X, X]}
    compiled = staged.jit(loss).lower(one, model, extra=one).compile()

    def f(x):
        layers = [X, jnp.stack([x, x, x])]
        return compiled(one, {"layers": layers}, extra=one)

    with pytest.raises(staged.TopLevelOnlyError) as info:
        outer(f)(jnp.ones(2) if outer is jax.vmap else jnp.ones(()))
    assert info.value.path == "model['layers'][1]"


def test_a_tracer_of_the_function_itself_is_named():
    """A compiled function with traced arrays of its own names them."""
    compiled = staged.jit(LINEAR).lower(X).compile()
    with pytest.raises(staged.TopLevelOnlyError) as info:
        jax.jit(
            lambda w: compiled.with_fun(eqx.tree_at(lambda m: m.weight, LINEAR, w))(X)
        )(LINEAR.weight)
    assert info.value.path == "self.weight"


def test_compiled_without_arrays_is_refused_too():
    """A compiled function of static arguments alone would become a constant as well."""
    compiled = staged.jit(lambda n: jnp.ones(n)).lower(3).compile()
    assert compiled(3).tolist() == [1, 1, 1]
    with pytest.raises(staged.TopLevelOnlyError):
        jax.jit(lambda: compiled(3))()
    assert compiled(3).tolist() == [1, 1, 1]


def test_a_wrong_call_under_a_trace_is_refused_for_the_trace(compiled):
    """Under a trace, that it is one is said before anything else."""
    with pytest.raises(staged.TopLevelOnlyError) as info:
        jax.jit(compiled)(jnp.ones((2, 2)))
    assert info.value.path == "x"


def test_refusal_leaves_no_trace_behind(compiled):
    """A refused call, caught inside, changes neither the program nor later calls."""

    @jax.jit
    def f(x):
        with pytest.raises(staged.TopLevelOnlyError):
            compiled(x)
        return x + 1.0

    assert f(X).tolist() == [1, 2, 3]
    assert compiled(X).tolist() == [0, 2, 4]


@transformations
def test_jitted_is_transparent(transform, where):
    """A jitted function gives under a transformation what the function itself gives."""
    jitted = staged.jit(double)
    expected, given = transform(double), transform(jitted)
    if isinstance(expected, jax.extend.core.ClosedJaxpr):
        run = jax.extend.core.jaxpr_as_fun
        expected, given = run(expected)(X), run(given)(X)
    assert eqx.tree_equal(expected, given)


@eager
def test_jitted_is_transparent_in_rules(transform):
    """A jitted function works in the rules of custom derivatives."""
    assert eqx.tree_equal(transform(double), transform(staged.jit(double)))


def test_wrappers_of_jax_do_not_stage_the_function_inside():
    """What JAX makes of a jitted function has JAX's stages or none, not ours."""
    jitted = staged.jit(_total(double))
    assert isinstance(jax.jit(jitted).lower(X), jax.stages.Lowered)
    assert jax.jit(jitted).trace(X).lower().compile()(X) == 6
    for wrap in (jax.grad, jax.vmap, jax.checkpoint, jax.custom_vjp, functools.wraps):
        assert not hasattr(wrap(jitted), "lower")
    assert jax.jit(jax.grad(jitted)).lower(X).compile()(X).tolist() == [2, 2, 2]


@transformations
def test_eval_shape_works_over_any_closure(transform, where):
    """`eval_shape` answers under a transformation, for closures over tracers too."""
    seen = []

    def f(x):
        seen.append(staged.jit(double).eval_shape(x))
        seen.append(staged.jit(lambda a: a + x).eval_shape(x))
        seen.append(staged.jit(lambda a: a + x).eval_shape(X))
        return x

    transform(f)
    assert {(s.shape, s.dtype) for s in seen} == {((3,), np.dtype("float32"))}


@transformations
def test_stages_under_a_trace(transform, where):
    """A function is traced, lowered and compiled under a trace, from tracers."""
    made = []

    def f(x):
        traced = staged.jit(double).trace(x)
        made.append(traced.lower().compile())
        made.append(staged.jit(double).lower(x).compile())
        return x

    transform(f)
    for compiled in made:
        assert compiled.call.args[0] == jax.ShapeDtypeStruct((3,), jnp.float32)
        assert compiled(X).tolist() == [0, 2, 4]


@transformations
def test_stages_refuse_a_closed_over_tracer(transform, where):
    """A function that closes over a tracer is refused at `trace`, but can be called."""

    def f(x):
        def add(a):
            return a + x

        jitted = staged.jit(add)
        with pytest.raises(staged.ClosedOverTracerError) as info:
            jitted.trace(X)
        assert str(info.value) == (
            "`add` closes over a tracer, and cannot be staged ahead of time.\n"
            f"  `x` is a tracer of {where}, float32[3]\n"
            "Pass it as an argument (or in a `jax.tree_util.Partial`), use "
            "`eval_shape` if only shapes are wanted, or call the jitted function."
        )
        assert info.value.names == ("x",)
        with pytest.raises(staged.ClosedOverTracerError):
            jitted.lower(X)
        return jitted(X)

    transform(f)


@transformations
def test_stages_over_a_partial(transform, where):
    """A tracer in a partial is an input, and no obstacle to the stages."""
    made = []

    def f(x):
        made.extend(
            staged.jit(partial(jnp.add, x)).lower(x).compile()
            for partial in (jtu.Partial, functools.partial, eqx.Partial)
        )
        return x

    transform(f)
    for compiled in made:
        fun = compiled.fun
        assert compiled.with_fun(type(fun)(jnp.add, X))(X).tolist() == [0, 2, 4]
        with pytest.raises(staged.AbstractArgumentError):
            compiled(X)


def test_jaxpr_of_an_outer_trace_holds_the_inner_call():
    """Under `jax.make_jaxpr`, a jitted function is one call in the program."""
    jaxpr = jax.make_jaxpr(staged.jit(double))(X)
    assert [eqn.params["name"] for eqn in jaxpr.eqns] == ["double"]


GLOBAL = None


class Box:
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def add(self, a):
        return a + self.b

    def __call__(self, a):
        return a + self.b


class Slotted:
    __slots__ = ("b",)


def _closure(y):
    return lambda a: a + y


def _global(y):
    def f(a):
        return a + GLOBAL

    globals()["GLOBAL"] = y
    return f


def _attribute(y):
    o = Box(b=y)
    return lambda a: a + o.b


def _slot(y):
    o = Slotted()
    o.b = y
    return lambda a: a + o.b


def _deep(y):
    o = Box(inner=Box(items=[0, {"k": y}]))
    return lambda a: a + o.inner.items[1]["k"]


def _item(y):
    items = [0, y]
    return lambda a: a + items[1]


def _key(y):
    table = {"k": (y,)}
    return lambda a: a + table["k"][0]


LINEAR = eqx.nn.Linear(3, 3, key=jax.random.key(0))


def _field(y):
    linear = eqx.tree_at(lambda m: m.bias, LINEAR, y)
    return lambda a: linear(a)


def _default(y):
    return lambda a, w=y: a + w


def _keyword_default(y):
    def f(a, *, w=y):
        return a + w

    return f


def _nested(y):
    def outer(a):
        def inner(b):
            return b + y

        return inner(a)

    return outer


def _helper(y):
    def helper(b):
        return b + y

    return lambda a: helper(a)


def _jitted_helper(y):
    helper = staged.jit(lambda b: b + y)
    return lambda a: helper(a)


def _jax_jitted_helper(y):
    helper = jax.jit(lambda b: b + y)
    return lambda a: helper(a)


class Layer(eqx.Module):
    weight: jax.Array
    act: object = eqx.field(static=True)


def _static_field(y):
    layer = Layer(X, lambda a: a + y)
    return lambda a: layer.act(a)


class Unfriendly:
    def __getattr__(self, name):
        raise RuntimeError("no attributes")


class Unflattenable:
    pass


def _flatten_unflattenable(_):
    raise RuntimeError("no leaves")


jtu.register_pytree_node(
    Unflattenable, _flatten_unflattenable, lambda *_: Unflattenable()
)


def _behind_strange_objects(y):
    a1, a2, a3, a4 = Unfriendly(), Unflattenable(), iter([1]), {}.values()
    a5, a6 = unittest.mock.MagicMock(), (i for i in ())
    o = Box(a1=a1, b=y)
    return lambda a: (a1, a2, a3, a4, a5, a6) and a + o.b


def _partial_of_a_closure(y):
    return functools.partial(lambda n, a: a + y, 2)


NAMES = {
    "closure": (_closure, "y"),
    "global": (_global, "GLOBAL"),
    "attribute": (_attribute, "o.b"),
    "slot": (_slot, "o.b"),
    "deep": (_deep, "o.inner.items[1]['k']"),
    "item": (_item, "items[1]"),
    "key": (_key, "table['k'][0]"),
    "field": (_field, "linear.bias"),
    "default": (_default, "w"),
    "keyword_default": (_keyword_default, "w"),
    "nested": (_nested, "y"),
    "helper": (_helper, "y"),
    "jitted_helper": (_jitted_helper, "y"),
    "jax_jitted_helper": (_jax_jitted_helper, "y"),
    "static_field": (_static_field, "y"),
    "behind_strange_objects": (_behind_strange_objects, "o.b"),
    "partial_of_a_closure": (_partial_of_a_closure, "y"),
}
named = pytest.mark.parametrize(("make", "name"), NAMES.values(), ids=NAMES)


def _names_found(make, transform=lambda f: jax.jit(f)(X)):
    """The names that are found for a tracer that `make` hides in a function."""
    found = []

    def f(y):
        try:
            staged.jit(make(y)).trace(jnp.ones((3,)))
        except staged.ClosedOverTracerError as error:
            found.append(error.names)
        globals()["GLOBAL"] = None
        return y

    transform(f)
    (names,) = set(found)
    return names


@named
@pytest.mark.parametrize("where", ["jit", "grad", "vmap"])
def test_the_tracer_is_named(make, name, where):
    """A closed-over tracer is named by the deepest name that reaches it."""
    assert _names_found(make, TRANSFORMATIONS[where][0]) == (name,)


def _static_function(y):
    return staged.jit(lambda a, f: f(a)), lambda a: a + y


@pytest.mark.parametrize("where", ["jit", "grad", "vmap"])
def test_a_static_function_that_closes_over_a_tracer(where):
    """A function as an argument is looked into as well."""
    found = []

    def f(y):
        jitted, static = _static_function(y)
        with pytest.raises(staged.ClosedOverTracerError) as info:
            jitted.trace(X, static)
        found.append(info.value.names)
        assert jitted.eval_shape(X, static).shape == (3,)
        return jitted(X, static)

    TRANSFORMATIONS[where][0](f)
    assert set(found) == {("y",)}


def test_a_static_field_that_closes_over_a_tracer():
    """A function in a static field of an argument is looked into as well."""

    class Layer(eqx.Module):
        activation: object = eqx.field(static=True)

    @jax.jit
    def f(y):
        layer = Layer(lambda a: a + y)
        with pytest.raises(staged.ClosedOverTracerError) as info:
            staged.jit(lambda layer, a: layer.activation(a)).trace(layer, X)
        assert info.value.names == ("y",)
        return y

    f(X)


def test_several_tracers_are_all_named():
    """Each closed-over tracer has a line of its own."""

    @jax.jit
    def f(y, z):
        @jax.grad
        def g(w):
            with pytest.raises(staged.ClosedOverTracerError) as info:
                staged.jit(lambda a: (a + y + w).sum() * z).trace(X)
            assert sorted(str(info.value).splitlines()[1:-1]) == [
                f"  `w` is a tracer of {GRAD}, float32[3]",
                f"  `y` is a tracer of {JAXPR}, float32[3]",
                f"  `z` is a tracer of {JAXPR}, float32[]",
            ]
            assert sorted(info.value.names) == ["w", "y", "z"]
            return w.sum()

        return g(y)

    f(X, jnp.ones(()))


def test_a_tracer_without_a_name_has_its_line():
    """Where no name is found, the message has type, shape and the line that uses it."""

    @jax.jit
    def f(y):
        hidden = iter([y])

        def add(a):
            return a + next(hidden)

        line = inspect.getsourcelines(add)[1] + 1
        with pytest.raises(staged.ClosedOverTracerError) as info:
            staged.jit(add).trace(X)
        (start, where, end) = str(info.value).splitlines()
        assert (
            start == "`add` closes over a tracer, and cannot be staged ahead of time."
        )
        prefix = f"  a tracer of {JAXPR}, float32[3], used at "
        assert where.startswith(f"{prefix}{__file__}:{line}")
        assert where.endswith(
            " (test_a_tracer_without_a_name_has_its_line.<locals>.f.<locals>.add)"
        )
        assert end == (
            "Pass it as an argument (or in a `jax.tree_util.Partial`), use "
            "`eval_shape` if only shapes are wanted, or call the jitted function."
        )
        assert info.value.names == ("DynamicJaxprTracer of float32[3]",)
        return y

    f(X)


def test_a_tracer_that_is_only_returned():
    """A tracer that the function returns as it is needs no line to be refused."""

    @jax.jit
    def f(y):
        with pytest.raises(staged.ClosedOverTracerError) as info:
            staged.jit(lambda a: (a, y)).trace(X)
        assert info.value.names == ("y",)
        hidden = iter([y])
        with pytest.raises(staged.ClosedOverTracerError) as info:
            staged.jit(lambda a: (a, next(hidden))).trace(X)
        assert info.value.names == ("DynamicJaxprTracer of float32[3]",)
        return y

    f(X)


def test_a_tracer_that_is_not_used_is_no_obstacle():
    """A closure over a tracer that the function does not use is staged."""

    @jax.jit
    def f(y):
        def shape_only(a):
            return a * y.shape[0]

        assert staged.jit(shape_only).lower(X).compile() is not None
        return y

    f(X)


def test_the_arguments_alone_decide_under_a_trace():
    """A tracer passed as an argument as well as closed over is refused still."""

    @jax.jit
    def f(y):
        with pytest.raises(staged.ClosedOverTracerError):
            staged.jit(lambda a: a + y).trace(y)
        return y

    f(X)


def test_the_error_keeps_no_tracer_alive(no_cycles):
    """The error, kept for later, refers to no tracer, itself or by its frames."""
    errors, tracers = [], []

    def f(y):
        tracers.append(weakref.ref(y))
        try:
            staged.jit(lambda a: a + y).trace(y)
        except staged.ClosedOverTracerError as error:
            errors.append(error.with_traceback(None))
        return y + 1.0

    jax.make_jaxpr(f)(X)
    jax.clear_caches()
    gc.collect()
    (error,), (tracer,) = errors, tracers
    assert error.__cause__ is None
    assert error.__context__ is None
    assert tracer() is None


@named
def test_the_error_is_no_leak(make, name):
    """JAX's leak checker is content with a caught error that outlives the trace."""
    errors = []

    @jax.jit
    def f(y):
        try:
            staged.jit(make(y)).trace(jnp.ones((3,)))
        except staged.ClosedOverTracerError as error:
            errors.append(error.with_traceback(None))
        globals()["GLOBAL"] = None
        return y + 1.0

    with jax.checking_leaks():
        assert f(X).tolist() == [1, 2, 3]
    assert errors[0].names == (name,)


def test_after_the_refusal_the_function_can_be_called_and_staged_outside():
    """A refusal under a trace leaves nothing in the caches that others would meet."""
    box = Box(b=None)

    @staged.jit
    def f(a):
        return a + box.b

    @jax.jit
    def outer(y):
        box.b = y
        with pytest.raises(staged.ClosedOverTracerError):
            f.trace(X)
        box.b = None
        return y

    outer(X)
    box.b = 10.0
    assert f.lower(X).compile()(X).tolist() == [10, 11, 12]
    assert f(X).tolist() == [10, 11, 12]
