"""What can be jitted, and how the arguments of a call are bound to its signature."""

import functools
import inspect
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import staged
from staged import _signature


X = jnp.arange(3.0)
ONES = jnp.ones(3)
TWO = np.float32(2)


def scale(x, n=2, *, shift=0.0):
    """A function with defaults."""
    return x * n + shift


class Layer(eqx.Module):
    """A callable Module."""

    weight: jax.Array
    times: int

    def __call__(self, x):
        return self.weight * x * self.times

    def apply(self, x):
        return self.weight + x

    @staged.jit
    def decorated(self, x):
        return self.weight - x


class Plain:
    """An object that is no pytree."""

    times = 3

    def __call__(self, x):
        return x * self.times

    def method(self, x):
        return x - self.times

    @staged.jit
    def decorated(self, x):
        return x + self.times

    @staged.jit
    @classmethod
    def of_class(cls, x):
        return x * cls.times

    @staged.jit
    @staticmethod
    def static(x):
        return x + 1

    @staticmethod
    @staged.jit
    def static_outside(x):
        return x + 2


class Slotted:
    """A class whose instances have no `__dict__`."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


@functools.wraps(scale)
def wrapper(*args, **kwargs):
    """A wrapper, which has the signature of what it wraps."""
    return scale(*args, **kwargs)


LAYER = Layer(jnp.full(3, 2.0), 2)
PLAIN = Plain()


def by_leaf(call):
    """The dynamic paths of a record, and its static values by path."""
    return list(call.dynamic), dict(call.static)


@pytest.mark.parametrize(
    ("fun", "name", "dynamic", "static"),
    [
        (scale, "scale", ["x"], {"n": 2, "shift": 0.0}),
        (lambda x: -x, "<lambda>", ["x"], {}),
        (PLAIN, "Plain", ["x"], {}),
        (PLAIN.method, "method", ["x"], {"self": PLAIN}),
        (PLAIN.decorated.__wrapped__, "decorated", ["x"], {"self": PLAIN}),
        (Plain.of_class.__wrapped__, "of_class", ["x"], {"cls": Plain}),
        (Plain.static, "static", ["x"], {}),
        (LAYER, "Layer", ["self.weight", "x"], {"self.times": 2}),
        (LAYER.apply, "apply", ["self.weight", "x"], {"self.times": 2}),
        (functools.partial(scale, n=3), "scale", ["x"], {"n": 3, "shift": 0.0}),
        (functools.partial(scale, n=X), "scale", ["x", "n"], {"shift": 0.0}),
        (jtu.Partial(scale, n=X), "scale", ["x", "n"], {"shift": 0.0}),
        (eqx.Partial(scale, n=X), "scale", ["x", "n"], {"shift": 0.0}),
        (
            functools.partial(functools.partial(scale, n=4), n=X, shift=1.0),
            "scale",
            ["x", "n"],
            {"shift": 1.0},
        ),
        (
            functools.partial(LAYER.apply),
            "apply",
            ["self.weight", "x"],
            {"self.times": 2},
        ),
        (wrapper, "scale", ["x"], {"n": 2, "shift": 0.0}),
        (jax.jit(scale), "scale", ["x"], {"n": 2, "shift": 0.0}),
        (staged.jit(scale), "scale", ["x"], {"n": 2, "shift": 0.0}),
        (jax.checkpoint(scale), "scale", ["x"], {"n": 2, "shift": 0.0}),
        (operator.neg, "neg", ["a"], {}),
        (jnp.negative, "negative", ["args[0]"], {}),
        (jnp.sin, "sin", ["x"], {}),
        (jax.nn.relu, "relu", ["x"], {}),
    ],
    ids=lambda value: None if isinstance(value, (dict, list, str)) else type(value),
)
def test_callables_of_every_kind(fun, name, dynamic, static):
    """Each kind of callable is opened and named, and gives its result at each stage."""
    jitted = staged.jit(fun)
    compiled = jitted.trace(X).lower().compile()
    expected = fun(X)
    assert jnp.array_equal(jitted(X), expected)
    assert jnp.array_equal(compiled(X), expected)
    assert by_leaf(compiled.call) == (dynamic, static)
    assert compiled.fun_name == jitted.__name__ == name


@pytest.mark.parametrize(
    "fun",
    [
        eqx.filter_jit(scale),
        eqx.filter_vmap(scale),
        eqx.filter_checkpoint(scale),
        eqx.filter_grad(lambda x: jnp.sum(x * x)),
        eqx.filter_value_and_grad(lambda x: jnp.sum(x * x)),
        jax.grad(lambda x: jnp.sum(x * x)),
        jax.vmap(scale),
        jnp.add.reduce,
    ],
    ids=repr,
)
def test_functions_that_jax_and_equinox_wrapped(fun):
    """A wrapper of JAX or Equinox can be jitted, though it copies annotations."""
    compiled = staged.jit(fun).trace(X).lower().compile()
    expected = fun(X)
    assert jtu.tree_all(jtu.tree_map(jnp.array_equal, compiled(X), expected))
    assert jtu.tree_all(jtu.tree_map(jnp.array_equal, staged.jit(fun)(X), expected))


def test_wrappers_of_different_functions_are_different():
    """What an Equinox wrapper wraps is part of the record, though its name is not."""

    def annotated(x: jax.Array) -> jax.Array:
        return jnp.sum(x)

    def other(x: jax.Array) -> jax.Array:
        return jnp.sum(2 * x)

    run = staged.jit(lambda fun, x: fun(x))
    first, second = eqx.filter_grad(annotated), eqx.filter_grad(other)
    assert run.trace(first, X).call == run.trace(eqx.filter_grad(annotated), X).call
    assert run.trace(first, X).call != run.trace(second, X).call
    assert run(first, X).tolist() == [1, 1, 1]
    assert run(second, X).tolist() == [2, 2, 2]


def test_a_class_makes_its_object():
    """A class is a callable too: its object is a static part of the result."""
    compiled = staged.jit(Slotted).trace(3).lower().compile()
    assert compiled(3).value == 3
    assert staged.jit(tuple)([X, 1])[1] == 1


def test_a_builtin_without_a_signature():
    """A callable that tells no signature takes any arguments: `args` and `kwargs`."""
    with pytest.raises(ValueError, match="no signature found"):
        inspect.signature(max)
    compiled = staged.jit(max).trace(1, 5, 3).lower().compile()
    assert compiled(1, 5, 3) == 5
    assert dict(compiled.call.static) == {"args[0]": 1, "args[1]": 5, "args[2]": 3}


def test_a_ufunc_without_a_signature():
    """A ufunc of JAX can be jitted, whether it tells a signature or not."""
    double = jnp.frompyfunc(lambda x, y: x + y, nin=2, nout=1, identity=0)
    compiled = staged.jit(double).trace(X, X).lower().compile()
    assert compiled(X, X).tolist() == [0, 2, 4]


def test_methods_bind_their_instance():
    """A decorated method finds its instance, which stands in the record as `self`."""
    assert LAYER.decorated(X).tolist() == [2, 1, 0]
    assert Layer.decorated(LAYER, X).tolist() == [2, 1, 0]
    assert by_leaf(LAYER.decorated.trace(X).call) == (
        ["self.weight", "x"],
        {"self.times": 2},
    )
    assert LAYER.decorated.trace(X).call == Layer.decorated.trace(LAYER, X).call
    assert PLAIN.decorated(X).tolist() == [3, 4, 5]
    assert by_leaf(PLAIN.decorated.trace(X).call) == (["x"], {"self": PLAIN})


@pytest.mark.parametrize("owner", [Plain, PLAIN])
def test_class_and_static_methods(owner):
    """`jit` may stand around `classmethod`, and on either side of `staticmethod`."""
    assert owner.of_class(X).tolist() == [0, 3, 6]
    assert by_leaf(owner.of_class.trace(X).call) == (["x"], {"cls": Plain})
    assert owner.static(X).tolist() == [1, 2, 3]
    assert owner.static_outside(X).tolist() == [2, 3, 4]
    assert by_leaf(owner.static.trace(X).call) == (["x"], {})


def test_a_subclass_binds_itself():
    """A jitted class method gets the class that it is called on."""

    class Sub(Plain):
        times = 5

    assert Sub.of_class(X).tolist() == [0, 5, 10]


@pytest.mark.parametrize("make", [functools.partial, jtu.Partial, eqx.Partial])
def test_the_arrays_of_partials_are_inputs(make):
    """New arrays in a partial need no new trace, whichever kind of partial it is."""
    traces = []

    def add(x, y, z):
        traces.append(None)
        return x + y + z

    for value in (1.0, 2.0):
        partial = make(add, jnp.full(3, value), z=jnp.full(3, value))
        assert staged.jit(partial)(X).tolist() == (X + 2 * value).tolist()
    assert len(traces) == 1


def test_keywords_of_a_call_replace_those_of_a_partial():
    """A keyword given to a call counts more than that of a partial, as in Python."""
    partial = functools.partial(scale, n=X, shift=1.0)
    compiled = staged.jit(partial).trace(X, n=5).lower().compile()
    assert compiled(X, n=5).tolist() == partial(X, n=5).tolist() == [1, 6, 11]
    assert by_leaf(compiled.call) == (["x"], {"n": 5, "shift": 1.0})


def test_a_partial_takes_a_place():
    """What a partial gave by keyword cannot be given again by position."""
    with pytest.raises(staged.SignatureError) as caught:
        staged.jit(functools.partial(scale, n=X))(X, 3)
    assert str(caught.value) == (
        "`scale`: the arguments do not fit its signature: multiple values for "
        "argument 'n'."
    )


def test_placeholders_are_filled():
    """The first arguments of a call fill the placeholders of a partial."""
    # Before Python 3.14 a mark of our own, which no partial can hold, stands for it.
    hole = getattr(functools, "Placeholder", _signature._PLACEHOLDER)
    partial = functools.partial(scale, hole, 4)
    compiled = staged.jit(partial).trace(X).lower().compile()
    assert compiled(X).tolist() == [0, 4, 8]
    with pytest.raises(staged.SignatureError) as caught:
        staged.jit(partial)()
    assert str(caught.value) == (
        "`scale`: the arguments do not fit its signature: a placeholder of the partial "
        "is not filled."
    )


def any_names(self, fun, /, *args, cls=0, **kwargs):
    """A function whose parameters have the names that a library likes to use."""
    return self, fun, args, cls, kwargs


def test_names_that_a_library_likes():
    """Names such as `self`, `fun`, `args` are like all others, in all places."""
    named = {"self": 1, "fun": 2, "args": 3, "kwargs": 4, "instance": 5, "leaves": X}
    jitted = staged.jit(any_names)
    compiled = jitted.trace(0, 1, 2, **named).lower().compile()
    for result in (jitted(0, 1, 2, **named), compiled(0, 1, 2, **named)):
        assert result[:4] == (0, 1, (2,), 0)
        assert result[4].pop("leaves").tolist() == X.tolist()
        assert result[4] == {"self": 1, "fun": 2, "args": 3, "kwargs": 4, "instance": 5}
    assert compiled.call.args == (0, 1, 2)
    assert dict(compiled.call.static) == {
        "self": 0,
        "fun": 1,
        "args[0]": 2,
        "cls": 0,
        "**kwargs['self']": 1,
        "**kwargs['fun']": 2,
        "**kwargs['args']": 3,
        "kwargs": 4,
        "instance": 5,
    }


def test_a_keyword_that_bears_the_name_of_a_parameter():
    """Two arguments of one name have two paths; neither hides a change of the other."""
    trace = staged.jit(any_names).trace
    record = trace(0, 1, self=2, args=[3]).call
    assert list(map(str, record.diff(trace(7, 1, self=2, args=[3]).call))) == [
        "`self`: compiled for 0, given 7 (static value)"
    ]
    assert list(map(str, record.diff(trace(0, 1, self=7, args=[4]).call))) == [
        "`**kwargs['args'][0]`: compiled for 3, given 4 (static value)",
        "`**kwargs['self']`: compiled for 2, given 7 (static value)",
    ]


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((X, 1, 2), {}, "too many positional arguments"),
        ((X,), {"scale": 1}, "got an unexpected keyword argument 'scale'"),
        ((X,), {"x": X}, "multiple values for argument 'x'"),
    ],
)
def test_arguments_that_do_not_fit(args, kwargs, reason):
    """Arguments that do not fit are refused alike by every stage, with the reason."""
    jitted = staged.jit(scale)
    compiled = jitted.trace(X).lower().compile()
    for call in (jitted, jitted.trace, jitted.lower, jitted.eval_shape, compiled):
        with pytest.raises(staged.SignatureError) as caught:
            call(*args, **kwargs)
        assert str(caught.value) == (
            f"`scale`: the arguments do not fit its signature: {reason}."
        )
        assert caught.value.fun_name == "scale"
        assert isinstance(caught.value, TypeError)


def test_positional_only_parameters_are_not_given_by_name():
    """A positional-only parameter is refused as a keyword, and named."""

    def only(x, /):
        return x

    with pytest.raises(staged.SignatureError) as caught:
        staged.jit(only)(x=X)
    assert str(caught.value) == (
        "`only`: the arguments do not fit its signature: 'x' can only be given by "
        "position."
    )


def test_positional_only_parameters_that_are_left_out():
    """A keyword of the same name is one of `**kwargs`, also if they have defaults."""

    def both(x=0, fun=1, /, **kwargs):
        return x, fun, kwargs

    expected = both(fun=3)
    assert expected == (0, 1, {"fun": 3})
    jitted = staged.jit(both)
    assert jitted(fun=3) == expected
    assert jitted.trace(fun=3).lower().compile()(fun=3) == expected
    assert jitted.trace(0, 1, fun=3).call == jitted.trace(fun=3).call
    with pytest.raises(staged.SignatureError) as caught:
        staged.jit(lambda x=0, fun=1, /: x)(fun=3, x=4)
    assert str(caught.value) == (
        "`<lambda>`: the arguments do not fit its signature: 'fun', 'x' can only be "
        "given by position."
    )


def test_what_is_not_callable():
    """`jit` says what it was given if that is no function."""
    with pytest.raises(staged.OptionError) as caught:
        staged.jit(3)
    assert str(caught.value) == (
        "`jit` needs a callable, given 3 of type `int`.\n"
        "Options are given by keyword: `jit(fun, donate='all')`."
    )
    assert caught.value.option == "fun"


def counted(x, *rest, n=(), w=X, m={1}, **named):  # noqa: B006  # the point of the test
    """A function that tells whether it got its own defaults."""
    return x + w, m, n, rest, named


def test_a_default_is_left_out():
    """The function is called without the arguments that are their default."""
    given = []

    class Recorder:
        __signature__ = inspect.signature(scale)

        def __call__(self, *args, **kwargs):
            given.append((len(args), set(kwargs)))
            return X

    jitted = staged.jit(Recorder())
    jitted.trace(X)
    jitted.trace(X, 2, shift=0.0)
    jitted.trace(X, 3)
    jitted.trace(X, shift=1.0)
    jitted.trace(X, 2, shift=1.0)
    assert given == [(1, set()), (2, set()), (1, {"shift"})]


def test_a_default_is_compared_strictly():
    """A value that is merely `==` to a default is no default."""
    jitted = staged.jit(lambda x, n=1: (x, n))
    record = jitted.trace(X).call
    assert jitted.trace(X, 1).call == record
    assert jitted.trace(X, True).call != record
    assert type(jitted(X, True)[1]) is bool
    assert type(jitted(X, 1.0)[1]) is float


def test_defaults_that_no_record_can_hold():
    """An array or a set may be a default: the record says so, and holds neither."""
    jitted = staged.jit(counted)
    compiled = jitted.trace(X).lower().compile()
    for result in (jitted(X), compiled(X), compiled(X, w=X)):
        assert result[0].tolist() == [0, 2, 4]
        assert result[1] is counted.__kwdefaults__["m"]
        assert result[2:] == ((), (), {})
    assert list(compiled.call.dynamic) == ["x"]
    assert {path: repr(value) for path, value in compiled.call.static.items()} == {
        "w": "its default",
        "m": "its default",
    }
    assert jitted.trace(X, w=X).call == compiled.call
    other = jitted.trace(X, w=X + 1).call
    assert list(map(str, compiled.call.diff(other))) == [
        "`w`: compiled for its default, given float32[3] (structure)"
    ]


def test_an_array_default_is_never_donated():
    """A donated function with an array default can be called again and again."""
    jitted = staged.jit(lambda x, w=ONES: x + w, donate="all")
    compiled = jitted.trace(X).lower().compile()
    for call in (jitted, compiled):
        for _ in range(3):
            assert call(jnp.copy(X)).tolist() == [1, 2, 3]
    assert compiled.call.donated == ("x",)


def test_a_default_before_arguments_that_have_to_follow():
    """A default stays where later arguments can be passed by position alone."""
    jitted = staged.jit(lambda x, w=X, *rest: (x + w, rest))
    compiled = jitted.trace(X, X, 1).lower().compile()
    for result in (jitted(X, X, 1), compiled(X, X, 1)):
        assert result[0].tolist() == [0, 2, 4]
        assert result[1] == (1,)


def test_the_default_of_a_numpy_type():
    """A NumPy scalar as a default is an array default, found by the function itself."""
    jitted = staged.jit(lambda x, n=TWO: x * n)
    assert jitted(X).tolist() == [0, 2, 4]
    assert list(jitted.trace(X, np.float32(3)).call.dynamic) == ["x", "n"]


def times(x, n=2):
    """Multiply a matrix."""
    return x / jnp.sum(x) * n


MATRIX = jnp.arange(1.0, 7.0).reshape(2, 3)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jitted"])
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((MATRIX,), {}),
        ((), {"x": MATRIX}),
        ((MATRIX,), {"n": jnp.arange(3.0)}),
        ((), {"n": jnp.arange(2.0), "x": MATRIX}),
    ],
)
def test_a_keyword_of_a_mapped_function_keeps_its_meaning(wrap, args, kwargs):
    """`jax.vmap` maps keywords over their first axis, whatever `in_axes` says."""
    fun = wrap(jax.vmap(times, in_axes=1))
    expected = fun(*args, **kwargs)
    jitted = staged.jit(fun)
    traced = jitted.trace(*args, **kwargs)
    compiled = traced.lower().compile()
    for call in (jitted, compiled):
        np.testing.assert_allclose(call(*args, **kwargs), expected, rtol=1e-6)
    assert jitted.eval_shape(*args, **kwargs).shape == expected.shape
    assert jitted.trace(*args, **kwargs).call == traced.call


def test_another_spelling_of_a_mapped_function_is_another_call():
    """So a compiled one refuses the spelling that it was not made for."""
    jitted = staged.jit(jax.vmap(times, in_axes=1), donate="x")
    by_position, by_name = jitted.trace(MATRIX), jitted.trace(x=MATRIX)
    assert by_position.call != by_name.call
    assert by_position.call.donated == ("x",)
    assert by_name.call.donated == ("**kwargs['x']",)
    assert [str(d) for d in by_position.call.diff(by_name.call)] == [
        "`x`: compiled for float32[2,3], given nothing (structure)",
        "`**kwargs['x']`: compiled for nothing, given float32[2,3] (structure)",
    ]
    compiled = by_name.lower().compile()
    with pytest.raises(staged.CallMismatchError) as caught:
        compiled(MATRIX)
    assert str(caught.value) == (
        "`times`: the call is not the one that it was compiled for.\n"
        "  `**kwargs['x']`: compiled for float32[2,3], given nothing (structure)\n"
        "  `x`: compiled for nothing, given float32[2,3] (structure)\n"
        "Call it as it was traced, stage it anew for this call, or call the jitted "
        "function, which compiles whatever it is called with."
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            {"donate": "y"},
            "`times`: `donate` names 'y', which is no parameter of it.\n"
            "  expected one of ['x', 'n'], or one of Equinox's words: 'all', "
            "'all-except-first', 'warn', 'warn-except-first', 'none'.",
        ),
        (
            {"in_shardings": {"y": None}},
            "`times`: `in_shardings` names 'y', which is no parameter of it.\n"
            "  expected one of ['x', 'n'].",
        ),
    ],
)
def test_options_of_a_mapped_function_name_its_parameters(option, message):
    """The names are those of the function that is mapped, and no others."""
    with pytest.raises(staged.OptionError) as caught:
        staged.jit(jax.vmap(times, in_axes=1), **option)
    assert str(caught.value) == message


def test_shardings_of_a_keyword_of_a_mapped_function(devices):
    """A name in `in_shardings` means the argument, however it is spelled."""
    there = jax.device_put(0, devices[1]).sharding
    jitted = staged.jit(jax.vmap(times, in_axes=1), in_shardings={"x": there})
    by_position = jitted.trace(MATRIX).lower().compile().input_shardings
    by_name = jitted.trace(x=MATRIX).lower().compile().input_shardings
    assert (by_position, by_name) == (((there,), {}), ((), {"x": there}))


def test_a_mapped_function_with_keywords_of_its_own():
    """`**kwargs` stays what it is, and a parameter may have that name too."""
    fun = jax.vmap(lambda x, **others: x * others["y"], in_axes=1)
    jitted = staged.jit(fun, donate="anything")
    expected = fun(MATRIX, y=jnp.arange(3.0))
    np.testing.assert_array_equal(jitted(MATRIX, y=jnp.arange(3.0)), expected)
    named = jax.vmap(lambda x, kwargs: x * kwargs, in_axes=(1, None))
    record = staged.jit(named).trace(MATRIX, 2.0).call
    assert (*record.dynamic, *record.static) == ("x", "kwargs")


@pytest.mark.parametrize("in_axes", [0, (0, 0), [0, 0]])
def test_a_function_that_is_mapped_over_first_axes_takes_every_spelling(in_axes):
    """There a keyword means what the position means, so that the calls are equal."""
    jitted = staged.jit(jax.vmap(scale, in_axes=in_axes))
    assert jitted.trace(X, X).call == jitted.trace(n=X, x=X).call


def other_default(fun):
    """A decorator that changes a default."""

    @functools.wraps(fun)
    def wrapped(x, n=3):
        return fun(x, n)

    return wrapped


def same_default(fun):
    """A decorator that names a parameter and hands on the others."""

    @functools.wraps(fun)
    def wrapped(x, *args, **kwargs):
        return fun(x, *args, **kwargs)

    return wrapped


def one_more(fun):
    """A decorator that takes one argument more."""

    @functools.wraps(fun)
    def wrapped(*args, by=1, **kwargs):
        return fun(*args, **kwargs) * by

    return wrapped


def one_fewer(fun):
    """A decorator that gives an argument by itself."""

    @functools.wraps(fun)
    def wrapped(x):
        return fun(x, 5)

    return wrapped


def renamed(fun):
    """A decorator that has another name for the first parameter."""

    @functools.wraps(fun)
    def wrapped(y, *args, **kwargs):
        return fun(y, *args, **kwargs)

    return wrapped


def hands_on(fun):
    """A decorator that hands on whatever it is given."""

    @functools.wraps(fun)
    def wrapped(*args, **kwargs):
        return fun(*args, **kwargs)

    return wrapped


def own_keyword(fun):
    """A decorator that has a parameter of the function by keyword alone."""

    @functools.wraps(fun)
    def wrapped(*args, n=4, **kwargs):
        return fun(*args, n=n, **kwargs)

    return wrapped


def too_many(fun):
    """A decorator with more positions than the function has."""

    @functools.wraps(fun)
    def wrapped(a, b, c, /, *args, **kwargs):
        return fun(a + b + c, *args, **kwargs)

    return wrapped


@pytest.mark.parametrize(
    ("decorator", "args", "kwargs", "names"),
    [
        (other_default, (X,), {}, ["x", "n"]),
        (same_default, (X,), {}, ["x", "n"]),
        (hands_on, (X,), {}, ["x", "n"]),
        (hands_on, (), {"n": 4, "x": X}, ["x", "n"]),
        (one_more, (X,), {"by": 7}, ["args[0]", "by"]),
        (one_more, (X, 3), {}, ["args[0]", "args[1]", "by"]),
        (one_fewer, (X,), {}, ["x"]),
        (renamed, (), {"y": X}, ["y"]),
        (own_keyword, (X,), {}, ["args[0]", "n"]),
        (too_many, (X, X, X), {}, ["a", "b", "c"]),
        (functools.cache, (3,), {}, ["x", "n"]),
    ],
)
def test_a_decorator_has_a_signature_of_its_own(decorator, args, kwargs, names):
    """It is not that of the function inside where a call would mean another thing."""

    def fun(x, n=2):
        return x * jnp.float32(n)

    decorated = decorator(fun)
    expected = decorated(*args, **kwargs)
    jitted = staged.jit(decorated)
    compiled = jitted.trace(*args, **kwargs).lower().compile()
    for call in (jitted, compiled):
        np.testing.assert_array_equal(call(*args, **kwargs), expected)
    record = compiled.call
    assert sorted((*record.dynamic, *record.static)) == sorted(names)
