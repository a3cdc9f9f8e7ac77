"""What is freed, and when: without a garbage collection, by reference counts alone."""

import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import staged


pytestmark = pytest.mark.usefixtures("no_cycles")
X = jnp.arange(3.0)


class Model(eqx.Module):
    """A Module with a decorated method."""

    w: jax.Array

    def __call__(self, x):
        return self.w * x

    @staged.jit
    def scale(self, x):
        return self.w * x


def use(jitted, *args):
    """Call a function in every way there is, and keep the stages."""
    jitted(*args)
    traced = jitted.trace(*args)
    lowered = traced.lower()
    compiled = lowered.compile()
    compiled(*args)
    return traced, lowered, compiled


def test_no_stage_keeps_an_argument():
    """Arguments of every kind are freed while all stages and the function live."""
    model, x = Model(X + 0), X + 0
    jitted = staged.jit(lambda model, tree, n: model.w * tree["x"] * n)
    stages = use(jitted, model, {"x": x}, 2)
    freed = [weakref.ref(array) for array in (model.w, x)]
    del model, x
    assert [ref() for ref in freed] == [None, None]
    assert len(stages) == 3


def test_a_function_is_freed_with_what_it_captured():
    """A dropped function leaves nothing behind in any cache."""

    def make():
        captured = X + 0

        def fun(x, n):
            return x * captured.sum() * n

        return fun, weakref.ref(fun), weakref.ref(captured)

    fun, function, array = make()
    jitted = staged.jit(fun, donate="none")
    stages = use(jitted, X, 2)
    del fun, jitted, stages
    assert function() is None
    assert array() is None


@pytest.mark.parametrize("way", ["module", "method", "decorated", "partial"])
def test_the_arrays_of_a_function_are_freed_with_it(way):
    """A function that carries arrays is kept by its Jitted and its stages alone."""
    model = Model(X + 0)
    freed = weakref.ref(model.w)
    jitted = {
        "module": lambda: staged.jit(model),
        "method": lambda: staged.jit(model.__call__),
        "decorated": lambda: model.scale,
        "partial": lambda: staged.jit(jax.tree_util.Partial(jnp.multiply, model.w)),
    }[way]()
    stages = use(jitted, X)
    del model
    assert freed() is not None
    del jitted, stages
    assert freed() is None


def test_a_static_function_is_freed_with_what_it_captured():
    """A function that was a static argument is not kept by the function it went to."""
    apply = staged.jit(lambda f, x: f(x))
    captured = X + 0
    function = lambda x: x + captured  # noqa: E731  # it is to be dropped below
    freed = weakref.ref(function), weakref.ref(captured)
    apply(function, X)
    del function, captured
    assert freed[0]() is None
    assert freed[1]() is None


def test_nothing_leaks_under_the_leak_checker():
    """Functions that close over tracers leave no tracer behind, wherever they go."""
    apply = staged.jit(lambda f, x: f(x))

    @jax.jit
    def outer(x):
        inner = staged.jit(lambda y: y * x)
        total = inner(x) + jax.vmap(inner)(jnp.ones((2, 3))).sum(0)
        total = total + apply(lambda y: y * x, x)
        total = total + apply(jax.tree_util.Partial(lambda y: y * x), x)
        inner.eval_shape(x)
        staged.jit(jax.tree_util.Partial(lambda x, y: y * x, x)).lower(X)
        return total

    with jax.checking_leaks():
        result = outer(X)
    np.testing.assert_allclose(result, 3 * X * X + 2 * X)


def test_a_refusal_keeps_no_tracer():
    """The error for a function that closes over a tracer, kept, does not leak it."""
    kept = []

    @jax.jit
    def outer(x):
        try:
            staged.jit(lambda y: y * x).trace(X)
        except staged.ClosedOverTracerError as error:
            kept.append(error.with_traceback(None))
        return x

    with jax.checking_leaks():
        outer(X)
    assert kept[0].names == ("x",)


def test_caches_are_cleared():
    """`clear_cache` and `jax.clear_caches` both make the next call trace anew."""
    traced = []

    @staged.jit
    def fun(x):
        traced.append(x.shape)
        return x

    for clear in (lambda: None, fun.clear_cache, jax.clear_caches):
        clear()
        fun(X)
        fun(X)
    assert traced == [(3,)] * 3


def test_equal_functions_share_their_programs():
    """A function, method or Module that is jitted again is not traced again."""
    traced = []

    class Counted(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            traced.append("call")
            return self.w * x

    def fun(x):
        traced.append("fun")
        return x

    for i in range(3):
        np.testing.assert_array_equal(staged.jit(Counted(X + i))(X), (X + i) * X)
        np.testing.assert_array_equal(staged.jit(fun)(X), X)
        jax.vmap(staged.jit(fun))(jnp.ones((2, 3)))
    assert traced.count("call") == 1
    assert traced.count("fun") == 1
