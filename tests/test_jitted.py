"""`Jitted`: its looks, and what it does as a pytree and under transformations."""

import abc
import copy
import functools
import inspect
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

import staged


X = jnp.arange(3.0)
ONES = jnp.ones(3)


@staged.jit
def annotated(x: jax.Array, n: int = 2, *, shift: float = 0.0) -> jax.Array:
    """Scale and shift."""
    return x * n + shift


class Layer(eqx.Module):
    """A callable Module."""

    weight: jax.Array
    times: int

    def __call__(self, x):
        """Call it."""
        return self.weight * x * self.times

    @staged.jit
    def bound(self, x):
        """Multiply."""
        return self.weight * x * self.times


class Plain:
    """An object that is no pytree."""

    @staged.jit
    def method(self, x):
        """Return it."""
        return x


LAYER = Layer(2 * jnp.ones(3), 2)


def scale(weight, x, *, times):
    """Multiply."""
    return weight * x * times


PARTIAL = functools.partial(scale, LAYER.weight, times=2)

FORMS = {
    "module": staged.jit(LAYER),
    "method": staged.jit(LAYER.__call__),
    "decorated": LAYER.bound,
    "partial": staged.jit(PARTIAL),
    "nested partial": staged.jit(functools.partial(PARTIAL, times=2)),
    "jax partial": staged.jit(jtu.Partial(scale, LAYER.weight, times=2)),
    "equinox partial": staged.jit(eqx.Partial(scale, LAYER.weight, times=2)),
    "twice": staged.jit(staged.jit(LAYER)),
}
every_form = pytest.mark.parametrize("jitted", FORMS.values(), ids=FORMS)


def test_a_jitted_function_looks_like_its_function():
    """Names, documentation, annotations and signature are those of the function."""
    fun = annotated.__wrapped__
    assert inspect.isfunction(fun)
    assert annotated.__name__ == "annotated"
    assert annotated.__qualname__ == "annotated"
    assert annotated.__module__ == fun.__module__ == __name__
    assert annotated.__doc__ == "Scale and shift."
    assert annotated.__annotations__ == fun.__annotations__
    assert inspect.signature(annotated) == inspect.signature(fun)
    assert inspect.unwrap(annotated) is fun
    assert callable(annotated)


def test_a_jitted_method_looks_like_its_method():
    """A bound form tells the method's name, and a signature without the instance."""
    bound = LAYER.bound
    assert bound.__name__ == "bound"
    assert bound.__qualname__ == "Layer.bound"
    assert bound.__doc__ == "Multiply."
    assert str(inspect.signature(bound)) == "(x)"
    assert str(inspect.signature(Layer.bound)) == "(self, x)"
    assert bound.__wrapped__.__self__ == LAYER


def test_a_jitted_module_is_named_after_its_class():
    """A callable object without a name bears that of its class."""
    jitted = staged.jit(LAYER)
    assert jitted.__name__ == "Layer"
    assert str(inspect.signature(jitted)) == "(x)"


@pytest.mark.parametrize(
    ("jitted", "text"),
    [
        (annotated, "staged.jit(<function annotated>)"),
        (staged.jit(LAYER), "staged.jit(Layer(weight=f32[3], times=2))"),
        (
            LAYER.bound,
            "staged.jit(<bound method Layer.bound of Layer(weight=f32[3], times=2)>)",
        ),
        (staged.jit(annotated), "staged.jit(staged.jit(<function annotated>))"),
        (staged.jit(max), "staged.jit(<built-in function max>)"),
    ],
)
def test_its_text(jitted, text):
    """The text of a jitted function shows what was jitted, without an address."""
    assert repr(jitted) == text


def test_an_abstract_method_stays_abstract():
    """A jitted abstract method is abstract: its class cannot be instantiated."""

    class Base(abc.ABC):
        @staged.jit
        @abc.abstractmethod
        def method(self, x):
            """To be overridden."""

    class Sub(Base):
        @staged.jit
        def method(self, x):
            return x

    assert Base.method.__isabstractmethod__
    with pytest.raises(TypeError, match="abstract"):
        Base()
    assert Sub().method(X).tolist() == [0, 1, 2]
    assert not getattr(Sub.method, "__isabstractmethod__", False)


def test_it_is_a_descriptor():
    """From an instance comes a bound form, and from the class the function itself."""
    plain = Plain()
    assert isinstance(plain.method, staged.Jitted)
    assert plain.method(X).tolist() == Plain.method(plain, X).tolist() == [0, 1, 2]
    assert Plain.method is Plain.__dict__["method"]
    for name in ("trace", "lower", "eval_shape"):
        assert callable(getattr(plain.method, name))


def test_one_trace_for_one_method():
    """A method that is looked up anew each time is traced once for each structure."""
    traces = []

    class Counter(eqx.Module):
        weight: jax.Array

        @staged.jit
        def method(self, x):
            traces.append(None)
            return self.weight * x

        def __call__(self, x):
            traces.append(None)
            return self.weight * x

    for value in (1.0, 2.0):
        counter = Counter(jnp.full(3, value))
        assert counter.method(X).tolist() == [0, value, 2 * value]
        counter.method.trace(X)
    assert len(traces) == 1
    for value in (1.0, 2.0):
        counter = Counter(jnp.full(3, value))
        assert staged.jit(counter.__call__)(X).tolist() == [0, value, 2 * value]
    assert len(traces) == 2


def test_clear_cache_forgets_every_program():
    """After `clear_cache` the next call traces anew."""
    traces = []

    @staged.jit
    def counted(x, n=1):
        traces.append(None)
        return x * n

    for _ in range(2):
        counted(X)
        counted(X, 2)
    assert len(traces) == 2
    counted.clear_cache()
    counted(X)
    assert len(traces) == 3


def test_it_can_be_copied_and_pickled():
    """A jitted function of a module goes through `copy` and `pickle`."""
    for other in (copy.copy(annotated), copy.deepcopy(annotated)):
        assert isinstance(other, staged.Jitted)
        assert other(X, 3).tolist() == [0, 3, 6]
        assert other.__wrapped__ is annotated.__wrapped__
    for jitted in (staged.jit(scale), staged.jit(scale, donate="weight")):
        loaded = pickle.loads(pickle.dumps(jitted))
        assert loaded(X + 0, ONES, times=2).tolist() == [0, 2, 4]
        record = loaded.trace(X, ONES, times=2).call
        assert record == jitted.trace(X, ONES, times=2).call
    assert pickle.loads(pickle.dumps(FORMS["module"]))(X).tolist() == [0, 4, 8]
    for jitted in (FORMS["module"], FORMS["decorated"], FORMS["partial"]):
        assert copy.deepcopy(jitted)(X).tolist() == [0, 4, 8]


def arrays(tree):
    """The arrays of a tree, as lists."""
    return [leaf.tolist() for leaf in jtu.tree_leaves(tree) if eqx.is_array(leaf)]


def the_array(tree):
    """The array in one of the forms: a number comes after it."""
    return jtu.tree_leaves(tree)[-2]


def test_a_function_without_values_has_no_leaves():
    """A plain function is a pytree of nothing, so that `tree_map` leaves it alone."""
    assert jtu.tree_leaves(annotated) == []
    again = jtu.tree_map(lambda leaf: leaf, annotated)
    assert again(X).tolist() == [0, 2, 4]
    assert again.__wrapped__ is annotated.__wrapped__
    assert jtu.tree_structure(annotated) == jtu.tree_structure(again)


@every_form
def test_its_leaves_are_those_of_its_function(jitted):
    """The values that a function carries are the leaves of the jitted one."""
    assert arrays(jitted) == [[2, 2, 2]]
    assert jtu.tree_leaves(jitted)[-1] == 2


def test_the_paths_of_its_leaves():
    """The leaves bear the names that a user of the function knows."""

    def paths(jitted):
        keyed, _ = jtu.tree_flatten_with_path(jitted)
        return [jtu.keystr(keys) for keys, _ in keyed]

    assert paths(FORMS["module"]) == [".__wrapped__.weight", ".__wrapped__.times"]
    assert paths(FORMS["decorated"]) == [".__self__.weight", ".__self__.times"]
    assert paths(FORMS["partial"]) == [".args_0", ".times"]
    assert paths(FORMS["nested partial"]) == [".args_0", ".times"]


@every_form
def test_it_can_be_taken_apart_and_put_together(jitted):
    """`tree_map`, `partition`, `combine` and `filter` work on it."""
    doubled = jtu.tree_map(lambda leaf: leaf if callable(leaf) else 2 * leaf, jitted)
    assert doubled(X).tolist() == [0, 16, 32]
    dynamic, static = eqx.partition(jitted, eqx.is_array)
    assert isinstance(dynamic, staged.Jitted)
    assert arrays(static) == []
    assert repr(dynamic).startswith("staged.jit(")
    assert eqx.combine(dynamic, static)(X).tolist() == [0, 4, 8]
    assert arrays(eqx.filter(jitted, eqx.is_array)) == [[2, 2, 2]]
    assert jtu.tree_leaves(jtu.tree_map(lambda _: None, jitted)) == []


@every_form
def test_an_array_in_it_can_be_replaced(jitted):
    """`tree_at` reaches into it, and what comes out is a jitted function."""
    other = eqx.tree_at(the_array, jitted, ONES)
    assert isinstance(other, staged.Jitted)
    assert other(X).tolist() == [0, 2, 4]
    assert jitted(X).tolist() == [0, 4, 8]


@every_form
def test_it_can_be_differentiated(jitted):
    """`filter_grad` over it gives gradients in its own structure."""
    gradient = eqx.filter_grad(lambda fun: jnp.sum(fun(X)))(jitted)
    assert isinstance(gradient, staged.Jitted)
    assert arrays(gradient) == [[0, 2, 4]]
    updated = eqx.apply_updates(jitted, gradient)
    assert updated(ONES).tolist() == [4, 8, 12]


@every_form
def test_it_can_be_an_argument(jitted):
    """It is an argument like any other: its arrays are inputs, the rest is static."""

    def call(fun, x):
        return fun(x)

    assert eqx.filter_jit(call)(jitted, X).tolist() == [0, 4, 8]
    assert staged.jit(call)(jitted, X).tolist() == [0, 4, 8]
    compiled = staged.jit(call).trace(jitted, X).lower().compile()
    assert compiled(jitted, X).tolist() == [0, 4, 8]
    assert len(compiled.call.dynamic) == 2
    assert list(compiled.call.static.values())[-1] == 2
    other = eqx.tree_at(the_array, jitted, 3 * ONES)
    assert compiled(other, X).tolist() == [0, 6, 12]
    batch = jnp.stack([X, X])
    over = eqx.filter_vmap(call, in_axes=(None, 0))
    assert over(jitted, batch).tolist() == [[0, 4, 8]] * 2


def test_an_ensemble():
    """A jitted function with batched arrays can be mapped over."""
    ensemble = staged.jit(Layer(jnp.stack([ONES, 2 * ONES]), 2))
    call = eqx.filter_vmap(lambda fun, x: fun(x), in_axes=(eqx.if_array(0), None))
    assert call(ensemble, X).tolist() == [[0, 2, 4], [0, 4, 8]]


def test_a_jitted_argument_counts_by_its_function_and_options():
    """Two jitted functions as arguments are the same if function and options are."""
    trace = staged.jit(lambda fun, x: fun(x)).trace
    record = trace(annotated, X).call
    assert trace(staged.jit(annotated.__wrapped__), X).call == record
    for other in (
        staged.jit(lambda x: x),
        staged.jit(annotated.__wrapped__, keep_unused=True),
    ):
        assert trace(other, X).call != record
        assert record.diff(trace(other, X).call) != ()


def test_the_arrays_of_a_jitted_argument_of_jax():
    """`jax.jit` takes one whose leaves are all arrays."""
    jitted = staged.jit(jtu.Partial(lambda weight, x: weight * x, ONES))
    assert jax.jit(lambda fun, x: fun(x))(jitted, X).tolist() == [0, 1, 2]
    batch = jtu.tree_map(lambda leaf: jnp.stack([leaf, 2 * leaf]), jitted)
    assert jax.vmap(lambda fun: fun(X))(batch).tolist() == [[0, 1, 2], [0, 2, 4]]


def test_under_every_transformation():
    """It is inlined, differentiated, batched and scanned, with static arguments."""

    def call(x):
        return annotated(x, 3, shift=1.0)

    assert jax.jit(call)(X).tolist() == [1, 4, 7]
    assert jax.vmap(call)(X).tolist() == [1, 4, 7]
    assert jax.grad(lambda x: call(x).sum())(X).tolist() == [3, 3, 3]
    assert jax.jit(jax.vmap(jax.grad(call)))(X).tolist() == [3, 3, 3]
    primal, tangent = jax.jvp(call, (X,), (ONES,))
    assert (primal.tolist(), tangent.tolist()) == ([1, 4, 7], [3, 3, 3])
    last, _ = jax.lax.scan(lambda carry, _: (call(carry), None), X, None, length=2)
    assert last.tolist() == [4, 13, 22]
    assert jax.lax.cond(True, call, lambda x: x, X).tolist() == [1, 4, 7]
    assert jax.hessian(lambda x: (call(x) ** 2).sum())(X)[0, 0] == 18
    assert staged.jit(call)(X).tolist() == [1, 4, 7]


def test_static_results_come_out_of_transformations():
    """Static parts of a result are there inside a transformation, with their types."""
    seen = []

    @staged.jit
    def both(x):
        return x, "text", True, 1

    def inside(x):
        array, *rest = both(x)
        seen.append(rest)
        return array

    jax.jit(inside)(X)
    jax.vmap(inside)(X)
    jax.grad(lambda x: inside(x).sum())(X)
    assert [list(map(type, rest)) for rest in seen] == [[str, bool, int]] * 3


def test_static_results_need_not_compare():
    """A static part of a result may be anything, also under transformations."""

    class Odd:
        __hash__ = None

        def __eq__(self, other):
            raise RuntimeError("no equality here")

    odd = [Odd(), {1}, float("nan"), jax.devices()]

    @staged.jit
    def both(x):
        return x * 2, odd

    for call in (both, both.trace(X).lower().compile(), both, both.eval_shape):
        assert call(X)[1][0] is odd[0]
        assert call(X)[1][1] is odd[1]
    assert both(jnp.ones(3, int))[1][0] is odd[0]
    assert jax.jit(lambda x: both(x)[0] + both(x)[0])(X).tolist() == [0, 4, 8]
    assert jax.grad(lambda x: both(x)[0].sum())(X).tolist() == [2, 2, 2]
    assert jax.vmap(lambda x: both(x)[0])(X).tolist() == [0, 2, 4]


def test_a_call_under_a_trace_does_not_spoil_later_ones():
    """A function that is first called under a trace works at the top level after it."""

    @staged.jit
    def fresh(x, n):
        return x * n

    assert jax.jit(lambda x: fresh(x, 2))(X).tolist() == [0, 2, 4]
    assert fresh(X, 2).tolist() == [0, 2, 4]
    assert fresh.trace(X, 2).lower().compile()(X, 2).tolist() == [0, 2, 4]


def test_an_abstract_value_in_an_ordinary_call():
    """A shape and dtype in an ordinary call is refused by its path."""
    with pytest.raises(staged.AbstractArgumentError) as caught:
        annotated(staged.abstract((3,), jnp.float32))
    assert str(caught.value) == (
        "`annotated` was called with an abstract value.\n"
        "  `x`: expected an array, given a ShapeDtypeStruct of float32[3].\n"
        "Abstract values are for `trace`, `lower` and `eval_shape`; pass an array."
    )
    assert caught.value.path == "x"


def test_eval_shape_gives_what_jax_gives():
    """`eval_shape` is `jax.eval_shape`, with static values as they are."""
    struct = jax.ShapeDtypeStruct((3,), jnp.float32)
    assert annotated.eval_shape(X, 3) == struct
    assert annotated.eval_shape(struct) == jax.eval_shape(annotated, X)
    assert staged.jit(lambda x: (x, 1)).eval_shape(X) == (struct, 1)
