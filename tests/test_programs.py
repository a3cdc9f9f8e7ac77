"""Which program an ordinary call runs, how long one is kept, and where NaNs arise."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import staged
from staged import _jax, _programs


X = jnp.arange(3.0)


def draw(seed):
    """A random number, of whatever settings are in force."""
    return jax.random.uniform(jax.random.key(seed))


SETTINGS = [
    (lambda: jax.default_prng_impl("rbg"), "default_prng_impl", "threefry2x32", "rbg"),
    (lambda: _jax.config.random_seed_offset(7), "random_seed_offset", 0, 7),
]


@pytest.mark.parametrize(("settings", "name", "usual", "value"), SETTINGS)
def test_a_compiled_call_refuses_other_random_settings(settings, name, usual, value):
    """JAX's own caches do not look at them: the numbers would be those of before."""
    compiled = staged.jit(draw).lower(3).compile()
    with settings(), pytest.raises(staged.CallMismatchError) as caught:
        compiled(3)
    assert str(caught.value) == (
        "`draw`: the call is not the one that it was compiled for.\n"
        f"  `jax.config.{name}`: compiled for {usual!r}, given {value!r} (context)\n"
        "Call it as it was traced, stage it anew for this call, or call the jitted "
        "function, which compiles whatever it is called with."
    )
    assert compiled(3) == draw(3)


def test_a_program_without_random_numbers_takes_every_setting():
    """Settings that decide nothing of a program are no reason to refuse a call."""
    compiled = staged.jit(lambda x: x * 2).lower(X).compile()
    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(compiled(X), X * 2)


@pytest.mark.parametrize("settings", [s[0] for s in SETTINGS])
@pytest.mark.parametrize("seed", [3, jnp.uint32(3)], ids=["static", "dynamic"])
def test_an_ordinary_call_follows_the_random_settings(settings, seed):
    """Each pair of settings has programs of its own, found again when it is back."""
    traced = []

    @staged.jit
    def fun(seed):
        traced.append(seed)
        return draw(seed)

    for _ in range(2):
        assert fun(seed) == draw(seed)
        with settings():
            assert fun(seed) == draw(seed)
            assert fun.trace(seed).lower().compile()(seed) == draw(seed)
            assert staged.jit(lambda: fun(seed))() == draw(seed)
    assert len(traced) == 2


def test_the_tables_of_random_settings_are_bounded(monkeypatch):
    """One setting too many forgets the programs of all, which are made again."""
    monkeypatch.setattr(_programs, "TABLES", 2)
    fun = staged.jit(lambda seed: draw(seed))
    offsets = [0, 1, 0, 1, 2, 0]
    for offset in offsets:
        with _jax.config.random_seed_offset(offset):
            assert fun(3) == draw(3)
    assert len(fun._entry.programs) == 2


def log(x, n):
    """A function with a NaN inside, away from its end."""
    return jnp.log(x - 1) * n


@pytest.fixture
def debug_nans():
    """Look for NaNs in every result."""
    jax.config.update("jax_debug_nans", True)
    yield
    jax.config.update("jax_debug_nans", False)


def error_of_a_nan(jitted, *, warm, static=()):
    """The error for a NaN in the first call, or in one that JAX's C++ part runs.

    Where `with jax.debug_nans` was used once, in any test, that part no longer sees
    the global option: so this is done in a new thread.
    """

    def fail():
        for _ in range(3 * warm):
            jitted(X + 5, *static)
        with pytest.raises(Exception) as caught:  # noqa: PT011  # whichever comes
            jitted(X - 1, *static)
        return caught.value

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fail).result()


@pytest.mark.usefixtures("debug_nans")
@pytest.mark.parametrize("warm", [False, True])
def test_debug_nans_finds_the_line(warm):
    """Under `jax.debug_nans` an ordinary call says which operation gave the NaN."""
    error = error_of_a_nan(staged.jit(log), warm=warm, static=(2,))
    assert isinstance(error, FloatingPointError)
    assert str(error) == "invalid value (nan) encountered in log"


def test_debug_nans_after_donation(request):
    """What was donated is gone, so that the function cannot be run line by line."""
    jitted = staged.jit(lambda x: jnp.log(x - 1), donate="all")
    jitted(X + 5)  # JAX donates nothing in what it compiles under `debug_nans`
    request.getfixturevalue("debug_nans")
    error = error_of_a_nan(jitted, warm=True)
    assert isinstance(error, FloatingPointError)
    assert str(error) == (
        "`<lambda>`: a result holds an invalid value (nan). Call the function itself "
        "to see where it arises."
    )


@pytest.mark.usefixtures("debug_nans")
def test_debug_nans_of_a_nan_that_only_the_program_has():
    """Where the function alone gives none, the message is about the result."""

    def differs(x):
        return jnp.log(x - 1) if isinstance(x, jax.core.Tracer) else x

    error = error_of_a_nan(staged.jit(differs), warm=True)
    assert isinstance(error, FloatingPointError)
    assert str(error) == (
        "`differs`: a result holds an invalid value (nan). Call the function itself to "
        "see where it arises."
    )


@pytest.mark.usefixtures("debug_nans")
def test_debug_nans_passes_on_other_errors():
    """A function that fails when it is run line by line raises its own error."""

    def fails(x):
        if not isinstance(x, jax.core.Tracer):
            raise RuntimeError("of the function")
        return jnp.log(x - 1)

    error = error_of_a_nan(staged.jit(fails), warm=True)
    assert isinstance(error, RuntimeError)
    assert str(error) == "of the function"


class Node(eqx.Module):
    """A Module with a static field."""

    x: jax.Array
    tag: object = eqx.field(static=True)


def test_a_static_field_that_is_nan_finds_its_program():
    """NaN is NaN, so that the function is traced once."""
    traced = []

    @staged.jit
    def fun(node):
        traced.append(node.tag)
        return node.x * 2

    for _ in range(3):
        np.testing.assert_array_equal(fun(Node(X, float("nan"))), X * 2)
    assert len(traced) == 1


class Scaler:
    """A plain object with a method."""

    def __init__(self, factor):
        self.factor = factor

    def scale(self, x):
        """Multiply."""
        return x * self.factor


@pytest.mark.usefixtures("no_cycles")
@pytest.mark.parametrize("make", [lambda: lambda x: x * 2, lambda: Scaler(2).scale])
def test_a_dropped_program_takes_no_other_with_it(make):
    """When a static value is gone its program goes, and the others stay known."""
    traced = []

    @staged.jit
    def apply(f, x):
        traced.append(f)
        return f(x)

    stays = make()
    for _ in range(3):
        goes = make()
        np.testing.assert_array_equal(apply(goes, X), X * 2)
        np.testing.assert_array_equal(apply(stays, X), X * 2)
        traced.clear()
        del goes
        assert len(apply._entry.programs) == 1
        np.testing.assert_array_equal(apply(stays, X), X * 2)
        assert traced == []


@pytest.mark.usefixtures("no_cycles")
@pytest.mark.parametrize("tags", [(1, 2), (1, True)], ids=["apart", "equal"])
def test_a_dropped_program_of_one_of_several_structures(tags):
    """What differs in static fields alone is told apart, and forgotten apart."""
    apply = staged.jit(lambda f, node: (f(node.x), node.tag))
    functions = [lambda x: x + 1, lambda x: x + 2]
    for _ in range(2):
        for f, tag in zip(functions, tags, strict=True):
            result, given = apply(f, Node(X, tag))
            np.testing.assert_array_equal(result, f(X))
            assert (given, type(given)) == (tag, type(tag))
    assert len(apply._entry.programs) == 2
    del functions[0]
    del f
    assert len(apply._entry.programs) == 1
    result, given = apply(functions[0], Node(X, tags[1]))
    np.testing.assert_array_equal(result, X + 2)
    assert given is tags[1]


@pytest.mark.usefixtures("no_cycles")
@pytest.mark.parametrize("options", [{}, {"out_shardings": None}], ids=["", "placed"])
def test_a_static_value_that_is_returned_is_not_kept(options):
    """A function that goes in and comes out again is freed like one that does not."""
    jitted = staged.jit(lambda f, x: (f, f(x)), **options)
    function = lambda x: x * 2  # noqa: E731  # it is to be dropped below
    for call in (jitted, jitted.lower(function, X).compile()):
        same, result = call(function, X)
        assert same is function
        np.testing.assert_array_equal(result, X * 2)
    freed = weakref.ref(function)
    del function, same, call
    assert freed() is None
    assert len(jitted._entry.programs) == 0


def test_the_kinds_of_one_function_are_bounded(monkeypatch):
    """Beyond a number of kinds of `jit` the oldest one's programs are no longer shared.

    A function that is jitted anew with ever new options does not grow without end.
    """
    monkeypatch.setattr(_programs, "SHARED", 2)

    def fun(x):
        return x * 2

    def jitted(kind):
        return staged.jit(fun, compiler_options={"xla_cpu_enable_fast_math": kind})

    first = jitted(False)._entry.programs
    staged.jit(fun)
    assert jitted(False)._entry.programs is first
    staged.jit(fun, keep_unused=True)
    assert jitted(False)._entry.programs is not first


def test_a_program_is_found_again_after_a_collection():
    """What the garbage collector removes are objects, never live programs."""
    traced = []

    @staged.jit
    def fun(f, x):
        traced.append(x)
        return f(x)

    fun(jnp.negative, X)
    gc.collect()
    fun(jnp.negative, X)
    assert len(traced) == 1
