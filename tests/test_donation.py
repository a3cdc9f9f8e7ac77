"""What is donated, by which words, and what happens where it cannot be."""

import functools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import staged


WORDS = ("all", "all-except-first", "warn", "warn-except-first", "none")


def ones(n=3):
    """A new array."""
    return jnp.ones(n)


def three(x, y, *, k):
    """A function of three arrays, one by keyword."""
    return x + 1.0, y + 1.0, k + 1.0


class Model(eqx.Module):
    w: jax.Array

    def __call__(self, x, y):
        return self.w + x, self.w * y, x * y

    def method(self, x, y):
        return self.w + x, self.w * y, x * y


def _function(jit):
    x, y, k = ones(), ones(), ones()
    jit(three)(x, y, k=k)
    return x, y, k


def _keywords_only(jit):
    def f(*, a, b):
        return a + 1.0, b + 1.0

    a, b = ones(), ones()
    jit(f)(a=a, b=b)
    return a, b


def _positional_given_by_keyword(jit):
    x, y, k = ones(), ones(), ones()
    jit(three)(k=k, y=y, x=x)
    return x, y, k


def _variadic(jit):
    def f(*args, **kwargs):
        return args, kwargs

    x, y, k = ones(), ones(), ones()
    jit(f)(x, y, k=k)
    return x, y, k


def _no_parameters(jit):
    jit(lambda: ones())()
    return ()


def _first_is_static(jit):
    y, k = ones(), ones()
    jit(three)(1.0, y, k=k)
    return y, k


def _first_is_a_tree(jit):
    tree, y = {"a": ones(), "b": [ones(), 2]}, ones()
    jit(lambda tree, y: (tree["a"] + 1.0, tree["b"][0] + 1.0, y + 1.0))(tree, y)
    return tree["a"], tree["b"][0], y


def _module(jit):
    model, x, y = Model(ones()), ones(), ones()
    jit(model)(x, y)
    return model.w, x, y


def _bound_method(jit):
    model, x, y = Model(ones()), ones(), ones()
    jit(model.method)(x, y)
    return model.w, x, y


def _decorated_method(jit):
    class Decorated(eqx.Module):
        w: jax.Array

        @jit
        def method(self, x, y):
            return self.w + x, self.w * y, x * y

    model, x, y = Decorated(ones()), ones(), ones()
    model.method(x, y)
    return model.w, x, y


def _method_from_the_class(jit):
    model, x, y = Model(ones()), ones(), ones()
    jit(Model.method)(model, x, y)
    return model.w, x, y


def _functools_partial(jit):
    p, x, k = ones(), ones(), ones()
    jit(functools.partial(three, p, k=k))(x)
    return p, x, k


def _pytree_partial(jit):
    p, x, k = ones(), ones(), ones()
    jit(jtu.Partial(three, p, k=k))(x)
    return p, x, k


CALLS = {
    f.__name__.strip("_"): f
    for f in (
        _function,
        _keywords_only,
        _positional_given_by_keyword,
        _variadic,
        _no_parameters,
        _first_is_static,
        _first_is_a_tree,
        _module,
        _bound_method,
        _decorated_method,
        _method_from_the_class,
        _functools_partial,
        _pytree_partial,
    )
}


def _deleted(make, jit):
    # Whether a buffer is usable is another question here.
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Some donated buffers were not usable"
        )
        return tuple(x.is_deleted() for x in make(jit))


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("make", CALLS.values(), ids=CALLS)
def test_words_mean_what_they_mean_in_equinox(make, word):
    """Each of Equinox's five words donates just what Equinox donates."""
    expected = _deleted(make, functools.partial(eqx.filter_jit, donate=word))
    assert _deleted(make, staged.jit(donate=word)) == expected


@pytest.mark.parametrize(
    ("word", "paths"),
    [
        ("all", ("x", "y", "k")),
        ("warn", ("x", "y", "k")),
        ("all-except-first", ("y", "k")),
        ("warn-except-first", ("y", "k")),
        ("none", ()),
        ("y", ("y",)),
        (("x", "k"), ("x", "k")),
        (["k", "x"], ("x", "k")),
        ((), ()),
    ],
)
def test_the_record_says_what_is_donated(word, paths):
    """Every stage's record names the donated leaves, for words and for names."""
    traced = staged.jit(three, donate=word).trace(ones(), ones(), k=ones())
    lowered = traced.lower()
    compiled = lowered.compile()
    for stage in (traced, lowered, compiled):
        assert stage.call.donated == paths
    x, y, k = ones(), ones(), ones()
    compiled(x, y, k=k)
    given = {"x": x, "y": y, "k": k}
    assert {n for n, a in given.items() if a.is_deleted()} == set(paths)


def test_names_of_trees_and_of_variadic_parameters():
    """A name donates all arrays below it; for `**kwargs`, a keyword is a name too."""

    def f(tree, *args, **kwargs):
        return tree, args, kwargs

    def donated(*names):
        jitted = staged.jit(f, donate=names)
        return jitted.trace(
            {"a": ones(), "n": 1}, ones(), ones(), k=ones(), l=ones()
        ).call.donated

    assert donated("tree") == ("tree['a']",)
    assert donated("args") == ("args[0]", "args[1]")
    assert donated("kwargs") == ("k", "l")
    assert donated("k") == ("k",)
    assert donated("tree", "l") == ("tree['a']", "l")


def test_a_name_donates_what_the_parameter_is_bound_to():
    """A name means the parameter, whether it is passed by position or by keyword."""
    jitted = staged.jit(three, donate="y")
    x, y, k = ones(), ones(), ones()
    jitted(x, y, k=k)
    assert (x.is_deleted(), y.is_deleted(), k.is_deleted()) == (False, True, False)
    y = ones()
    jitted(k=k, y=y, x=x)
    assert (x.is_deleted(), y.is_deleted(), k.is_deleted()) == (False, True, False)


def test_self_is_a_name_for_the_instance():
    """The arrays of a Module's own are donated by the name of its first parameter."""
    model, x, y = Model(ones()), ones(), ones()
    staged.jit(Model.method, donate="self")(model, x, y)
    assert (model.w.is_deleted(), x.is_deleted()) == (True, False)
    model = Model(ones())
    staged.jit(model.method, donate="self")(x, y)
    assert (model.w.is_deleted(), x.is_deleted()) == (True, False)


def test_an_unknown_name_is_refused():
    """A name that is no parameter is refused where it is given, with the nearest."""
    with pytest.raises(staged.OptionError) as info:
        staged.jit(three, donate=("xs", "k"))
    assert str(info.value) == (
        "`three`: `donate` names 'xs', which is no parameter of it.\n"
        "  expected one of ['x', 'y', 'k'], or one of Equinox's words: 'all', "
        "'all-except-first', 'warn', 'warn-except-first', 'none'. Did you mean 'x'?"
    )
    assert info.value.option == "donate"


@pytest.mark.parametrize("donate", [0, (0, 1), None, b"x", {"x": 1}])
def test_what_is_no_name_is_refused(donate):
    """Anything else than words and names is refused."""
    with pytest.raises(staged.OptionError) as info:
        staged.jit(three, donate=donate)
    assert str(info.value) == (
        "`jit(donate=...)` must be one of 'all', 'all-except-first', 'warn', "
        f"'warn-except-first', 'none', or names of parameters, given {donate!r}."
    )


def test_unused_donation_is_checked():
    """`unused_donation` takes its three words alone."""
    with pytest.raises(staged.OptionError) as info:
        staged.jit(three, unused_donation="raise")
    assert str(info.value) == (
        "`jit(unused_donation=...)` must be 'ignore', 'warn' or 'error', given 'raise'."
    )
    assert info.value.option == "unused_donation"


@pytest.mark.parametrize("donate", ["all", "all-except-first", ("a", "w")])
def test_a_default_array_is_never_donated(donate):
    """The default of a parameter survives every call, also when it is passed itself."""
    w = ones()

    def f(a, w=w):
        return a + w, w * 2.0

    jitted = staged.jit(f, donate=donate, unused_donation="ignore")
    compiled = jitted.lower(ones()).compile()
    for _ in range(3):
        assert jitted(ones())[0].tolist() == [2, 2, 2]
        assert jitted(ones(), w)[0].tolist() == [2, 2, 2]
        assert compiled(ones())[0].tolist() == [2, 2, 2]
    assert not w.is_deleted()
    given = ones()
    jitted(ones(), given)
    assert given.is_deleted()


@pytest.mark.parametrize("donate", ["all", "all-except-first", ("a", "k")])
def test_the_arrays_of_a_functools_partial_are_never_donated(donate):
    """What a `functools.partial` holds survives every call, positional and keyword."""

    def f(w, a, *, k):
        return a + w, k + 1.0, w * 2.0

    w, k = ones(), ones()
    jitted = staged.jit(functools.partial(f, w, k=k), donate=donate)
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert jitted(ones())[0].tolist() == [2, 2, 2]
    assert not w.is_deleted()
    assert not k.is_deleted()


def test_a_name_that_a_functools_partial_fills_is_refused():
    """No call can donate it, so that the name would say nothing."""

    def f(w, a):
        return a + w

    with pytest.raises(staged.OptionError) as info:
        staged.jit(functools.partial(f, ones()), donate="w")
    assert str(info.value) == (
        "`f`: `donate` names 'w', which is filled by a functools.partial: what it "
        "holds is never donated.\n"
        "Pass the value in each call, or use a `jax.tree_util.Partial`."
    )
    jitted = staged.jit(jax.tree_util.Partial(f, w := ones()), donate="w")
    jitted(ones())
    assert w.is_deleted()


def test_keyword_that_replaces_one_of_a_partial_is_donated():
    """A keyword that takes the place of a partial's is an argument like others."""

    def f(a, *, k):
        return a + 1.0, k + 1.0

    stored, given = ones(), ones()
    staged.jit(functools.partial(f, k=stored), donate="all")(ones(), k=given)
    assert not stored.is_deleted()
    assert given.is_deleted()


def test_numpy_arrays_and_numbers_are_not_harmed():
    """Donating what is no JAX array leaves it as it is."""
    x = np.ones(3, np.float32)
    jitted = staged.jit(lambda x, n: x * n, donate="all", dynamic=eqx.is_array_like)
    for _ in range(2):
        assert jitted(x, 2.0).tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]


def wasteful(**options):
    """A new function, whose `y` no output can replace, though it is read."""

    @staged.jit(**options)
    def drops(x, y):
        return x + y.sum()

    return drops


WASTED = (
    "Some donated buffers were not usable: `drops` donates `y`, but no output has the "
    "same shape, dtype and sharding, or the function does not use it.\n"
    "Donate only what an output can replace, by the names of parameters, or pass "
    "`unused_donation='ignore'`."
)


def _ordinary(jitted):
    return jitted(ones(), ones(5))


def _lower(jitted):
    return jitted.trace(ones(), ones(5)).lower()


def _compiled_call(jitted):
    return jitted.lower(ones(), ones(5)).compile()(ones(), ones(5))


uses = pytest.mark.parametrize("use", [_ordinary, _lower, _compiled_call])


@uses
def test_unusable_buffer_is_an_error_if_asked(use):
    """`unused_donation="error"` refuses at `lower`, and at the ordinary call."""
    jitted = wasteful(donate="all", unused_donation="error")
    with pytest.raises(staged.DonationError) as info:
        use(jitted)
    assert str(info.value) == WASTED
    assert info.value.paths == ("y",)


@uses
@pytest.mark.parametrize(
    "options",
    [
        {"donate": "warn"},
        {"donate": ("x", "y")},
        {"donate": "all", "unused_donation": "warn"},
    ],
)
def test_unusable_buffer_is_a_warning_if_asked(use, options):
    """The words with `warn`, and names, warn once, naming the argument at our line."""
    jitted = wasteful(**options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use(jitted)
    (warning,) = caught
    assert str(warning.message) == WASTED
    assert warning.category is UserWarning
    assert warning.filename == __file__


@uses
@pytest.mark.parametrize(
    "options",
    [
        {"donate": "all"},
        {"donate": "all-except-first"},
        {"donate": "warn", "unused_donation": "ignore"},
        {"donate": ("x", "y"), "unused_donation": "ignore"},
    ],
)
def test_unusable_buffer_is_silent_if_asked(use, options):
    """The words with `all` say nothing, whatever JAX would say."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use(wasteful(**options))
    assert caught == []


def test_a_second_ordinary_call_does_not_warn_again():
    """The warning comes where the program is made, not at each call of it."""
    jitted = wasteful(donate="warn")
    with pytest.warns(UserWarning, match="Some donated buffers were not usable"):
        _ordinary(jitted)
    _ordinary(jitted)


def test_a_refused_ordinary_call_is_refused_again_and_donates_nothing():
    """After the error no buffer is gone, and the next call fails likewise."""
    jitted = wasteful(donate="all", unused_donation="error")
    x, y = ones(), ones(5)
    for _ in range(2):
        with pytest.raises(staged.DonationError):
            jitted(x, y)
    assert not x.is_deleted()
    assert not y.is_deleted()


@pytest.mark.parametrize("keep", [False, True])
def test_an_argument_that_is_not_read_counts_as_unusable(keep):
    """A donated argument that is not read is named, though JAX is silent."""
    jitted = staged.jit(
        lambda x, y: x + 1.0, donate="all", unused_donation="error", keep_unused=keep
    )
    with pytest.raises(staged.DonationError) as info:
        jitted.trace(ones(), ones(5)).lower()
    assert info.value.paths == ("y",)


def test_all_arguments_unread():
    """Every donated argument is named if the program reads none."""
    jitted = staged.jit(lambda x, y: 1, donate="all", unused_donation="error")
    with pytest.raises(staged.DonationError) as info:
        jitted.trace(ones(), ones(5)).lower()
    assert info.value.paths == ("x", "y")


def test_captured_constants_do_not_shift_the_arguments():
    """With captured arrays in the program, the right argument is still named."""
    c1, c2 = ones(3), ones(7)
    jitted = staged.jit(
        lambda a, x, y: x + y.sum() + c1 + c2.sum(),
        donate=("x", "y"),
        unused_donation="error",
    )
    with pytest.raises(staged.DonationError) as info:
        jitted.trace(ones(2), ones(), ones(5)).lower()
    assert info.value.paths == ("y",)


def test_usable_buffers_are_reused():
    """Donated buffers that fit are aliased in the executable, without a word."""
    jitted = staged.jit(three, donate="all", unused_donation="error")
    compiled = jitted.lower(ones(), ones(), k=ones()).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == 3 * 3 * 4


def _sharded(mesh, n=4):
    spec = jax.sharding.PartitionSpec("x")
    return jax.device_put(jnp.ones(n), jax.sharding.NamedSharding(mesh, spec))


def test_sharded_inputs_are_decided_when_compiled(mesh):
    """Where XLA places the outputs, it decides on a buffer, and `compile` says so."""

    def total(x):
        return x.sum() + jnp.zeros(4)

    def grow(x):
        return x + 1.0

    jitted = staged.jit(total, donate="all", unused_donation="error")
    lowered = jitted.trace(_sharded(mesh)).lower()
    with pytest.raises(staged.DonationError) as info:
        lowered.compile()
    assert str(info.value) == WASTED.replace("`drops`", "`total`").replace("`y`", "`x`")
    assert info.value.paths == ("x",)
    with pytest.raises(staged.DonationError):
        jitted(_sharded(mesh))

    jitted = staged.jit(grow, donate="all", unused_donation="error")
    compiled = jitted.lower(_sharded(mesh)).compile()
    x = _sharded(mesh)
    assert compiled(x).tolist() == [2, 2, 2, 2]
    assert x.is_deleted()


def test_sharded_inputs_warn_and_are_silent_as_asked(mesh):
    """The same as a warning, and not at all with `"all"`."""

    def total(x):
        return x.sum() + jnp.zeros(4)

    message = WASTED.replace("`drops`", "`total`").replace("`y`", "`x`")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        staged.jit(total, donate="warn").lower(_sharded(mesh)).compile()
        staged.jit(total, donate="warn")(_sharded(mesh))
    assert [str(w.message) for w in caught] == [message, message]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        staged.jit(total, donate="all").lower(_sharded(mesh)).compile()
        staged.jit(total, donate="all")(_sharded(mesh))
    assert caught == []


def test_given_output_shardings_are_decided_at_lower(mesh):
    """With `out_shardings`, JAX decides on the buffer, and `lower` says so."""
    spec = jax.sharding.PartitionSpec()
    jitted = staged.jit(
        lambda x: x + 1.0,
        donate="all",
        unused_donation="error",
        out_shardings=jax.sharding.NamedSharding(mesh, spec),
    )
    with pytest.raises(staged.DonationError) as info:
        jitted.trace(_sharded(mesh)).lower().compile()
    assert info.value.paths == ("x",)


@uses
def test_the_warnings_filters_are_left_as_they_were(use):
    """Neither the list of Python's warning filters nor its contents change."""
    before, contents = warnings.filters, list(warnings.filters)
    use(wasteful(donate="all"))
    with pytest.raises(staged.DonationError):
        use(wasteful(donate="all", unused_donation="error"))
    assert warnings.filters is before
    assert list(warnings.filters) == contents


def test_nothing_is_donated_under_a_trace():
    """Inside another program a donated array keeps its buffer, with every word."""
    jitted = staged.jit(three, donate="all", unused_donation="error")
    x, y, k = ones(), ones(), ones()
    for _ in range(2):
        jax.jit(lambda x: jitted(x, y, k=k))(x)
    assert not any(a.is_deleted() for a in (x, y, k))
    assert staged.jit(three, donate="all").eval_shape(x, y, k=k)[0].shape == (3,)
    assert not any(a.is_deleted() for a in (x, y, k))


def _both(fun, *args, **options):
    jitted = staged.jit(fun, **options)
    return {"jitted": jitted, "compiled": jitted.lower(*args).compile()}


@pytest.mark.parametrize("kind", ["jitted", "compiled"])
def test_a_deleted_array_is_named(kind):
    """A call with an array whose buffer was donated before names its path."""

    def update(state, batch):
        return {"params": state["params"] + batch.sum()}

    call = _both(update, {"params": ones()}, ones(5), donate="state")[kind]
    state = {"params": ones()}
    call(state, ones(5))
    with pytest.raises(staged.DonationError) as info:
        call(state, ones(5))
    assert str(info.value) == (
        "`update`: `state['params']` is a deleted array: its buffer was donated to an "
        "earlier call, or deleted.\n"
        "Use the array that the earlier call returned, or do not donate it."
    )
    assert info.value.paths == ("state['params']",)
    assert call({"params": ones()}, ones(5))["params"].tolist() == [6, 6, 6]


@pytest.mark.parametrize("kind", ["jitted", "compiled"])
def test_several_deleted_arrays_are_all_named(kind):
    """All deleted arrays are named, donated by this function or not."""
    call = _both(three_positional, ones(), ones(), ones())[kind]
    x, y, z = ones(), ones(), ones()
    x.delete()
    z.delete()
    with pytest.raises(staged.DonationError) as info:
        call(x, y, z)
    assert str(info.value) == (
        "`three_positional`: `x`, `z` are deleted arrays: their buffers were donated "
        "to an earlier call, or deleted.\n"
        "Use the arrays that the earlier call returned, or do not donate them."
    )
    assert info.value.paths == ("x", "z")


def three_positional(x, y, z):
    """The same, all by position."""
    return x + 1.0, y + 1.0, z + 1.0


@pytest.mark.parametrize("kind", ["jitted", "compiled"])
@pytest.mark.parametrize("donate", ["all", "x", "z"])
def test_an_array_given_twice_is_named(kind, donate):
    """One array at two places of which one is donated is refused, both places named."""
    call = _both(three_positional, ones(), ones(), ones(), donate=donate)[kind]
    x = ones()
    with pytest.raises(staged.DonationError) as info:
        call(x, ones(), x)
    assert str(info.value) == (
        "`three_positional`: `x`, `z` share one buffer, which is donated: it can "
        "be given only once.\n"
        "Pass a copy (`jnp.copy`), or do not donate it."
    )
    assert info.value.paths == ("x", "z")
    assert not x.is_deleted()
    call(x, ones(), ones())


@pytest.mark.parametrize("kind", ["jitted", "compiled"])
def test_an_array_given_twice_beside_one_of_numpy(kind):
    """Arrays of NumPy have no buffer to donate, and are no reason to fail."""
    call = _both(three_positional, np.ones(3, "f4"), ones(), ones(), donate="all")[kind]
    x = ones()
    with pytest.raises(staged.DonationError) as info:
        call(np.ones(3, "f4"), x, x)
    assert info.value.paths == ("y", "z")


@pytest.mark.parametrize("kind", ["jitted", "compiled"])
def test_two_views_of_one_buffer_are_named(kind):
    """Two arrays that share a buffer of which one is donated are refused alike."""
    call = _both(three_positional, ones(), ones(), ones(), donate="x")[kind]
    x = ones()
    with pytest.raises(staged.DonationError) as info:
        call(x, ones(), x.addressable_data(0))
    assert str(info.value) == (
        "`three_positional`: `x`, `z` share one buffer, which is donated: it can "
        "be given only once.\n"
        "Pass a copy (`jnp.copy`), or do not donate it."
    )


def test_donation_beside_a_mesh_in_the_program(mesh):
    """A program that holds a mesh, as one with random keys may, tells its donations."""
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def noisy(x, key):
        noise = jax.random.normal(key, x.shape)
        return jax.lax.with_sharding_constraint(x + noise, spec)

    jitted = staged.jit(noisy, donate=("x", "key"), unused_donation="error")
    x, key = jax.device_put((ones(4), jax.random.key(0)), spec)
    lowered_key = staged.jit(noisy, donate="x", unused_donation="error").lower(x, key)
    assert "sdy.mesh" in lowered_key.as_text()
    with pytest.raises(staged.DonationError) as info:
        jitted.lower(x, key).compile()
    assert info.value.paths == ("key",)


@pytest.mark.parametrize("kind", ["jitted", "compiled"])
def test_an_array_may_be_given_twice_where_it_is_not_donated(kind):
    """Only donated places count."""
    call = _both(three_positional, ones(), ones(), ones(), donate="y")[kind]
    x = ones()
    for _ in range(2):
        call(x, ones(), x)
    assert not x.is_deleted()


def test_a_method_with_deleted_arrays_of_its_own_is_named():
    """The path of an array that the function itself carries begins with `self`."""
    model = Model(ones())
    compiled = staged.jit(model, donate="all").lower(ones(), ones()).compile()
    compiled(ones(), ones())
    with pytest.raises(staged.DonationError) as info:
        compiled(ones(), ones())
    assert info.value.paths == ("self.w",)
    assert compiled.with_fun(Model(ones()))(ones(), ones())[0].tolist() == [2, 2, 2]


def test_a_captured_array_that_was_deleted_is_no_argument():
    """A deleted array that the function closed over is blamed on no argument."""
    captured = ones()
    jitted = staged.jit(lambda x: x + captured)
    captured.delete()
    with pytest.raises(RuntimeError, match="Array has been deleted") as info:
        jitted(ones())
    assert not isinstance(info.value, staged.StagedError)
