"""Calls on which systems in use today fail, each with the right answer."""

import functools
import time
import warnings
import weakref
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import staged


X = jnp.ones(3)
S = jax.ShapeDtypeStruct
F32 = jnp.float32
ADVICE = (
    "Call it as it was traced, stage it anew for this call, or call the jitted "
    "function, which compiles whatever it is called with."
)


def same(result, expected):
    """Assert that two trees have one structure, and equal leaves of equal dtypes."""
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for ours, theirs in zip(
        jax.tree.leaves(result), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
        if eqx.is_array(theirs):
            assert (ours.dtype, ours.weak_type) == (theirs.dtype, theirs.weak_type)
        else:
            assert type(ours) is type(theirs)


def compiled(fun, *args, **kwargs):
    """A function, compiled for a call."""
    return staged.jit(fun).lower(*args, **kwargs).compile()


def scale(x, n):
    """A function of an array and a static number."""
    return x * n


def negative(x):
    """A function of one array."""
    return -x


def test_a_wrong_static_value_is_refused():
    """Compiled for 4 and called with 5, it does not compute with 4."""
    call = compiled(scale, X, 4)
    with pytest.raises(staged.CallMismatchError) as caught:
        call(X, 5)
    assert str(caught.value) == (
        "`scale`: the call is not the one that it was compiled for.\n"
        "  `n`: compiled for 4, given 5 (static value)\n"
        f"{ADVICE}"
    )


def test_static_values_are_passed_again_and_verified():
    """The compiled function takes what the function takes, static values included."""
    same(compiled(scale, X, 4)(X, 4), X * 4)


def test_keywords_without_a_name_in_the_signature():
    """Keywords that only `**kwargs` takes survive lowering and the compiled call."""

    def fun(x, y, **kwargs):
        return 2 * x + y, kwargs

    same(compiled(fun, X, 4, test=123)(X, 4, test=123), (X * 2 + 4, {"test": 123}))


def test_spellings_of_a_default_are_one_call():
    """Omitted, by keyword and by position: the same call."""

    def fun(x, a=2):
        return x * a

    call = compiled(fun, X)
    for result in (call(X), call(X, a=2), call(X, 2), call(x=X)):
        same(result, X * 2)


def test_keywords_named_like_the_machinery():
    """`self`, `fun` and `args` are names like any others."""

    def fun(self, fun, /, *args, **kwargs):
        return self + fun, args, kwargs

    jitted = staged.jit(fun)
    given: dict[str, Any] = {"self": X, "fun": 1, "args": "a", "kwargs": None}
    expected = fun(X, X, X, **given)
    same(jitted(X, X, X, **given), expected)
    same(jitted.lower(X, X, X, **given).compile()(X, X, X, **given), expected)


def test_abstract_inputs_are_dynamic():
    """A shape and dtype stands for an array in `trace` and `lower`."""
    same(compiled(negative, S((3,), F32))(X), -X)


def test_an_abstract_value_given_to_a_call():
    """A compiled function needs arrays, and says so."""
    with pytest.raises(staged.AbstractArgumentError) as caught:
        compiled(scale, S((3,), F32), 2)(S((3,), F32), 2)
    assert str(caught.value) == (
        "`scale` was called with an abstract value.\n"
        "  `x`: expected an array, given a ShapeDtypeStruct of float32[3].\n"
        "Abstract values are for `trace`, `lower` and `eval_shape`; pass an array."
    )


class Configured(eqx.Module):
    """A Module with anything in a static field."""

    x: jax.Array
    options: Any = eqx.field(static=True)


@pytest.mark.parametrize(
    ("argument", "path"),
    [
        ({1, 2}, "n"),
        ({"a": {3}}, "n['a']"),
        (Configured(X, [1]), "n.options"),
        (Configured(X, {"a": 1}), "n.options"),
        ((Configured(X, {1}),), "n[0].options"),
    ],
)
def test_static_values_without_a_hash_are_refused_by_path(argument, path):
    """A set, or a list or dict in a static field, is refused where it stands."""
    for way in (staged.jit(scale), staged.jit(scale).trace):
        with pytest.raises(staged.StaticLeafError) as caught:
            way(X, argument)
        assert caught.value.path == path


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_an_array_in_a_static_field_is_refused_at_once():
    """The first of two instances is refused, not the second."""

    class Fixed(eqx.Module):
        a: jax.Array = eqx.field(static=True)

    with pytest.raises(staged.StaticLeafError) as caught:
        staged.jit(lambda m, x: m.a * x)(Fixed(X), X)
    assert caught.value.path == "m.a"


def test_methods_are_traced_once():
    """A bound method, and a decorated one, are traced once for any number of calls."""
    traced = []

    class Model(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            traced.append("call")
            return self.w * x

        @staged.jit
        def method(self, x):
            traced.append("method")
            return self.w + x

    for w in (X, X * 2):
        model = Model(w)
        for _ in range(2):
            jitted = staged.jit(model.__call__)
            same(jitted(X), w)
            same(jitted.trace(X).lower().compile()(X), w)
            same(model.method(X), w + X)
            same(model.method.lower(X).compile()(X), w + X)
    assert traced == ["call", "method"]


@pytest.mark.parametrize("partial", [functools.partial, jax.tree_util.Partial])
def test_arrays_of_a_partial_are_inputs(partial):
    """New values of a stored array need no new program."""
    traced = []

    def fun(a, b):
        traced.append(b)
        return a + b

    for value in (1.0, 2.0, 3.0):
        same(staged.jit(partial(fun, b=X * value))(X), X + value)
    assert len(traced) == 1
    record = staged.jit(partial(fun, b=X)).trace(X).call
    assert list(record.dynamic) == ["a", "b"]


def test_another_shape_is_refused():
    """Traced for four elements, it is not called with seven."""
    traced = staged.jit(negative).trace(jnp.ones(4))
    assert not callable(traced)
    assert not callable(traced.lower())
    with pytest.raises(staged.CallMismatchError) as caught:
        traced.lower().compile()(jnp.ones(7))
    assert [(d.path, d.kind) for d in caught.value.differences] == [("x", "shape")]


def test_weak_and_strong_types_are_told_apart():
    """A weak input is another call than a strong one, and the difference says so."""
    jitted = staged.jit(negative)
    weak, strong = (jitted.trace(x).call for x in (jnp.asarray(1.0), F32(1.0)))
    assert weak != strong
    (difference,) = weak.diff(strong)
    assert str(difference) == (
        "`x`: compiled for a weak type, given a strong type (weak type)"
    )


def test_lowering_a_function_that_closes_over_a_tracer():
    """It is refused when it is traced, and the variable is named."""

    def outer(a, b):
        return staged.jit(lambda a: a + b).lower(a)

    with pytest.raises(staged.ClosedOverTracerError) as caught:
        jax.jit(outer)(X, X)
    assert caught.value.names == ("b",)


def test_lowering_a_partial_that_holds_a_tracer():
    """What a Partial holds is an input, a tracer too."""

    def outer(a, b):
        partial = jax.tree_util.Partial(lambda a, b: a + b, b=b)
        lowered = staged.jit(partial).lower(a)
        assert list(lowered.call.dynamic) == ["a", "b"]
        return a

    same(jax.jit(outer)(X, X), X)


def test_shapes_of_any_closure():
    """`eval_shape` is the way to shapes inside a transformation."""

    def outer(a, b):
        info = staged.jit(lambda a: (a + b, "static")).eval_shape(a)
        assert (info[0].shape, info[0].dtype, info[1]) == ((3,), F32, "static")
        return a

    same(jax.jit(outer)(X, X), X)


def test_no_result_becomes_a_constant():
    """A compiled call on concrete arrays is refused inside a trace."""
    call = compiled(negative, X)
    with pytest.raises(staged.TopLevelOnlyError) as caught:
        jax.make_jaxpr(lambda y: y + call(X))(X)
    assert caught.value.path is None


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (lambda f: jax.grad(lambda x: f(x).sum())(X), "grad/vjp/linearize"),
        (lambda f: jax.vmap(f)(jnp.ones((2, 3))), "vmap"),
        (
            lambda f: jax.lax.scan(lambda c, x: (f(c), x), X, X),
            "jit/make_jaxpr/eval_shape/scan/cond/while_loop",
        ),
    ],
)
def test_transformations_of_a_compiled_call(transform, name):
    """The argument and the transformation are named."""
    call = compiled(negative, X)
    with pytest.raises(staged.TopLevelOnlyError) as caught:
        transform(call)
    assert (caught.value.path, caught.value.transformation) == ("x", name)


def test_donation_by_name():
    """Only the leaves of the named parameter are donated, and the record says which."""

    @staged.jit(donate="opt_state")
    def step(model, opt_state):
        return model, jax.tree.map(lambda s: s + 1, opt_state)

    model, state = {"w": X + 0}, {"m": X + 0, "v": X + 0}
    call = step.lower(model, state).compile()
    assert call.call.donated == ("opt_state['m']", "opt_state['v']")
    same(call(model, state)[1], {"m": X + 1, "v": X + 1})
    assert not model["w"].is_deleted()
    assert state["m"].is_deleted()


def test_a_buffer_that_no_output_can_use():
    """It is an error at `lower`, a warning or nothing, as was asked."""

    def total(x):
        return x.sum()

    strict = staged.jit(total, donate="x", unused_donation="error")
    for way in (strict.lower, strict):
        with pytest.raises(staged.DonationError) as caught:
            way(jnp.ones(3))
        assert caught.value.paths == ("x",)
    with pytest.warns(UserWarning, match="Some donated buffers were not usable"):
        staged.jit(total, donate="x", unused_donation="warn").lower(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        staged.jit(total, donate="x", unused_donation="ignore").lower(X)


def test_donated_twice_and_used_again():
    """A deleted array, and one array given twice, are named by their paths."""
    call = staged.jit(lambda x, y: (x + 1, y + 1), donate="all").lower(X, X).compile()
    x, y = X + 0, X + 0
    call(x, y)
    for arguments, paths in (((x, X + 0), ("x",)), ((X + 0, y), ("y",))):
        with pytest.raises(staged.DonationError) as caught:
            call(*arguments)
        assert caught.value.paths == paths
    once = X + 0
    with pytest.raises(staged.DonationError) as caught:
        call(once, once)
    assert caught.value.paths == ("x", "y")
    assert not once.is_deleted()


def test_a_call_does_not_wait_for_its_result():
    """The array is returned before it is computed."""
    a = jnp.ones((1500, 1500))
    jitted = staged.jit(lambda a: a @ a @ a @ a)
    call = jitted.lower(a).compile()
    for way in (jitted, call):
        jax.block_until_ready(way(a))
        seen = []
        for _ in range(5):
            result = way(a)
            seen.append(result.is_ready())
            jax.block_until_ready(result)
            time.sleep(0)
        assert not all(seen)


@pytest.mark.usefixtures("no_cycles")
def test_stages_pin_no_arguments():
    """Arguments are freed while the stages live, the function when they are gone."""
    captured = X * 2

    def fun(x):
        return x + captured

    x = X + 0
    freed = weakref.ref(x), weakref.ref(fun), weakref.ref(captured)
    jitted = staged.jit(fun)
    traced = jitted.trace(x)
    lowered = traced.lower()
    call = lowered.compile()
    call(x)
    jitted(x)
    del x
    assert freed[0]() is None
    del fun, captured, jitted, traced, lowered, call
    assert freed[1]() is None
    assert freed[2]() is None


def test_static_numbers_are_told_apart():
    """`1`, `1.0` and `True`, and the two zeros, are different programs."""
    v = jnp.arange(1, 4, dtype=jnp.int32)
    times = staged.jit(lambda v, s: v * s)
    with jax.numpy_dtype_promotion("standard"):
        for number in (1, 1.0, True, 1):
            same(times(v, number), v * number)
    divide = staged.jit(lambda v, s: v / s)
    for zero in (0.0, -0.0, 0.0):
        same(divide(X, zero), X / zero)


def test_defaults_and_partials_are_never_donated():
    """What the next call needs again is not given away."""

    def fun(a, w=X * 3):
        return a + w

    for jitted in (
        staged.jit(fun, donate="all"),
        staged.jit(functools.partial(fun, w=X * 3), donate="all"),
    ):
        for _ in range(3):
            same(jitted(X + 0), X * 4)


def test_a_thousand_variants_of_one_structure():
    """Modules that differ in one static field are all found, each its own program."""

    class Variant(eqx.Module):
        x: jax.Array
        n: int = eqx.field(static=True)

    traced = []

    @staged.jit
    def fun(variant):
        traced.append(variant.n)
        return variant.n

    variants = [Variant(X, n) for n in range(1000)]
    for _ in range(2):
        assert [fun(variant) for variant in variants] == list(range(1000))
    assert traced == list(range(1000))


def test_another_device_is_a_difference_or_a_copy(devices):
    """An array on another device is refused as such, or copied if that was asked."""
    there = jax.device_put(X, devices[1])
    with pytest.raises(staged.CallMismatchError) as caught:
        compiled(negative, X)(there)
    assert [d.kind for d in caught.value.differences] == ["sharding"]
    copying = staged.jit(negative, reshard=True).lower(X).compile()
    same(copying(there), -X)


def test_a_lowering_for_cuda_is_not_compiled_on_a_cpu():
    """The platforms differ, and the message names both."""
    lowered = staged.jit(negative).trace(X).lower(lowering_platforms=("cuda",))
    with pytest.raises(staged.PlatformMismatchError) as caught:
        lowered.compile()
    assert (caught.value.platforms, caught.value.here) == (("cuda",), "cpu")


def test_equinox_error_in_a_compiled_call():
    """The error is Equinox's own, with its message."""

    def positive(x):
        return eqx.error_if(x, x < 0, "x must be positive")

    call = compiled(positive, X)
    same(call(X), X)
    with pytest.raises(eqx.EquinoxRuntimeError, match="x must be positive"):
        call(-X)


def test_every_property_of_every_stage_answers():
    """No property and no analysis of a stage raises."""
    jitted = staged.jit(scale, donate="x")
    traced = jitted.trace(X, 2)
    lowered = traced.lower(lowering_platforms=("tpu", "cuda"))
    here = traced.lower()
    for stage in (jitted, traced, lowered, here, here.compile(), traced.call):
        for name in dir(type(stage)):
            if isinstance(getattr(type(stage), name), property):
                getattr(stage, name)
        assert repr(stage)
    for stage in (lowered, here, here.compile()):
        stage.cost_analysis()
        stage.as_text()
    here.compile().memory_analysis()
