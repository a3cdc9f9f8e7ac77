"""The options of `jit`: those that work, and those that are refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import staged


X = jnp.ones(3)
Y = jnp.arange(4.0)
P = jax.sharding.PartitionSpec
NamedSharding = jax.sharding.NamedSharding


def scale(x, n=2, bias=None):
    """A function of an array, a number and a tree."""
    return x * n if bias is None else x * n + bias["b"]


def refused(error, call, *args, **kwargs):
    """The message of the error that a call raises, without JAX's note of the line."""
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def on(device):
    """The sharding of one device."""
    return jax.device_put(0, device).sharding


STATIC = "every leaf that is no array is static already; see `dynamic`"
DONATE = "name the parameters: `donate=('state',)`"


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("static_argnums", STATIC),
        ("static_argnames", STATIC),
        ("donate_argnums", DONATE),
        ("donate_argnames", DONATE),
        ("abstracted_axes", "JAX itself no longer supports it"),
        ("axis_resources", "use `in_shardings` and `out_shardings`"),
        ("filter_spec", "use `dynamic`, a predicate on leaves"),
    ],
)
def test_options_of_jax_that_make_no_sense_here(option, advice):
    """An option of JAX or Equinox that has no meaning here says what to do instead."""
    with pytest.raises(staged.OptionError) as caught:
        staged.jit(scale, **{option: 1})
    assert str(caught.value) == f"`jit` has no option `{option}`: {advice}."
    assert caught.value.option == option
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("options", "option", "message"),
    [
        ({"donat": 1}, "donat", "`jit` has no option `donat`. Did you mean `donate`?"),
        ({"zzz": 1}, "zzz", "`jit` has no option `zzz`."),
        (
            {"dynamic": 3},
            "dynamic",
            "`jit(dynamic=...)` must be a predicate on leaves, such as "
            "`equinox.is_array`, given 3.",
        ),
        (
            {"in_shardings": (None,)},
            "in_shardings",
            "`jit(in_shardings=...)` must map names of parameters to shardings, given "
            "(None,).",
        ),
        (
            {"in_shardings": {"y": None}},
            "in_shardings",
            "`scale`: `in_shardings` names 'y', which is no parameter of it.\n"
            "  expected one of ['x', 'n', 'bias'].",
        ),
        (
            {"reshard": "yes"},
            "reshard",
            "`jit(reshard=...)` must be True or False, given 'yes'.",
        ),
        (
            {"device": jax.devices()[0], "backend": "cpu"},
            "device",
            "`jit` takes `device` or `backend`, not both.",
        ),
        (
            {"keep_unused": 1},
            "keep_unused",
            "`jit(keep_unused=...)` must be True or False, given 1.",
        ),
        (
            {"inline": None},
            "inline",
            "`jit(inline=...)` must be True or False, given None.",
        ),
        (
            {"out_shardings": {"y": 3}},
            "out_shardings",
            "`jit(out_shardings=...)` must be a sharding, or a prefix of the result's "
            "tree with shardings as leaves, given 3.",
        ),
    ],
)
def test_wrong_options(options, option, message):
    """A wrong option is refused where it is given, and the message says what is due."""
    with pytest.raises(staged.OptionError) as caught:
        staged.jit(**options)(scale)
    assert str(caught.value) == message
    assert caught.value.option == option


def test_a_decorator_checks_its_options_at_once():
    """`jit(**options)` refuses an unknown option before it sees a function."""
    message = refused(staged.OptionError, staged.jit, dynamic=None)
    assert message.endswith("given None.")


def test_keep_unused():
    """`keep_unused` keeps arguments that the program does not read."""

    def first(x, y):
        return x

    def wanted(jitted):
        args, kwargs = jitted.trace(X, Y).lower().compile().input_shardings
        assert kwargs == {}
        return [sharding is not None for sharding in args]

    assert wanted(staged.jit(first)) == [True, False]
    assert wanted(staged.jit(first, keep_unused=True)) == [True, True]


@pytest.mark.filterwarnings("ignore:backend and device argument:DeprecationWarning")
def test_device_and_backend(devices):
    """`device` and `backend` say where a function runs, as in JAX."""
    for jitted, device in (
        (staged.jit(scale, device=devices[1]), devices[1]),
        (staged.jit(scale, backend="cpu"), devices[0]),
    ):
        assert jitted(X).devices() == {device}
        assert jitted.trace(X).lower().compile()(X).devices() == {device}


@pytest.mark.parametrize("inline", [False, True])
def test_inline(inline):
    """`inline` leaves the same in a surrounding program as that of `jax.jit`."""

    def names(jit):
        jitted = jit(scale, inline=inline)
        jaxpr = jax.make_jaxpr(lambda x: jitted(x))(X)
        return [eqn.primitive.name for eqn in jaxpr.eqns]

    assert names(staged.jit) == names(jax.jit)


def test_compiler_options():
    """XLA's options reach it from `jit` and from `compile`, which refuses others."""
    good, bad = {"xla_embed_ir_in_executable": True}, {"no_such_option": True}
    assert staged.jit(scale, compiler_options=good)(X).tolist() == [2, 2, 2]
    lowered = staged.jit(scale).trace(X).lower()
    assert lowered.compile(compiler_options=good)(X).tolist() == [2, 2, 2]
    with pytest.raises(staged.CompilerOptionError) as caught:
        lowered.compile(compiler_options=bad)
    assert str(caught.value).splitlines()[0] == (
        f"`scale`: XLA refuses the `compiler_options` {bad!r}."
    )
    for fails in (
        staged.jit(scale, compiler_options=bad),
        staged.jit(scale, compiler_options=bad).lower(X).compile,
    ):
        with pytest.raises(staged.CompilerOptionError) as caught:
            fails(X) if isinstance(fails, staged.Jitted) else fails()
        assert str(caught.value) == (
            f"`scale`: XLA refuses the `compiler_options` {bad!r}.\n"
            "  INVALID_ARGUMENT: No such compile option: 'no_such_option'"
        )
        assert caught.value.options == bad


@pytest.mark.parametrize("value", [[1], object(), None])
def test_compiler_options_that_xla_cannot_take(value):
    """A value of a type that XLA has no option of is refused before it is asked."""
    options = {"xla_dump_to": value}
    expected = (
        "`compiler_options` maps names to a string, a bool, an int or a float each, "
        f"given {value!r} for 'xla_dump_to'."
    )
    lowered = staged.jit(scale).lower(X)
    for call in (
        lambda: staged.jit(scale, compiler_options=options),
        lambda: lowered.compile(compiler_options=options),
    ):
        assert refused(staged.OptionError, call) == expected
    assert refused(staged.OptionError, lambda: staged.jit(compiler_options=[1])) == (
        "`compiler_options` must map names to values, given [1]."
    )


def test_other_errors_of_xla_are_not_blamed_on_options():
    """An error that a program raises stays what it is, whatever the options."""

    def fails(x):
        raise ValueError("While running, an option")

    def calls(x):
        return jax.pure_callback(fails, x, x)

    good = {"xla_embed_ir_in_executable": True}
    with pytest.raises(Exception, match="While running") as caught:
        jax.block_until_ready(staged.jit(calls, compiler_options=good)(X))
    assert not isinstance(caught.value, staged.StagedError)


def test_what_xla_cannot_compile_raises_its_error():
    """An error of XLA's that has no option to blame is passed on as it is."""
    target = jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct((3,), jnp.float32))
    lowered = staged.jit(lambda x: target(x)).lower(X)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_target") as caught:
        lowered.compile(compiler_options={"xla_embed_ir_in_executable": True})
    assert not isinstance(caught.value, staged.StagedError)


def test_a_backend_that_is_not_here():
    """An unknown backend is refused by name, whatever is done first."""
    jitted = staged.jit(scale, backend="abacus")
    for call in (jitted, jitted.trace, jitted.lower):
        message = refused(staged.OptionError, call, X).splitlines()
        assert message[0] == "`scale`: there is no `backend` 'abacus' here."
        assert "abacus" in message[1]


def test_python_numbers_can_be_dynamic():
    """With `is_array_like`, new numbers need no new trace."""
    traces = []

    def add(x, n):
        traces.append(None)
        return x + n

    jitted = staged.jit(add, dynamic=eqx.is_array_like)
    assert [jitted(1.5, n).item() for n in (1.0, 2.0, 3.0)] == [2.5, 3.5, 4.5]
    assert len(traces) == 1
    compiled = jitted.trace(1.5, 1.0).lower().compile()
    assert compiled(2.5, 5.0).item() == 7.5
    assert compiled.call.dynamic_paths == ("x", "n")
    assert compiled.call.static == {}


def test_a_number_is_no_array_by_default():
    """A compiled call that was traced for an array refuses a Python number."""
    compiled = staged.jit(scale).trace(jnp.asarray(1.0)).lower().compile()
    with pytest.raises(staged.CallMismatchError) as caught:
        compiled(1.0)
    assert str(caught.value).splitlines()[1] == (
        "  `x`: compiled for float32[], given 1.0 (structure)"
    )


def test_dynamic_arrays_of_some_dtypes():
    """With `is_inexact_array`, arrays of integers are static, and so are refused."""
    jitted = staged.jit(scale, dynamic=eqx.is_inexact_array)
    assert jitted(X, 3).tolist() == [3, 3, 3]
    assert jitted.trace(staged.abstract((3,), jnp.float32)).call == jitted.trace(X).call
    with pytest.raises(staged.StaticLeafError) as caught:
        jitted(jnp.ones(3, int))
    assert caught.value.path == "x"


def test_dynamic_applies_to_the_function_too():
    """What a function carries is split by the same predicate."""

    class Scale(eqx.Module):
        weight: jax.Array
        factor: float

        def __call__(self, x):
            return self.weight * x * self.factor

    module = Scale(X, 2.0)
    record = staged.jit(module).trace(X).call
    assert record.static == {"self.factor": 2.0}
    everything = staged.jit(module, dynamic=eqx.is_array_like).trace(X).call
    assert everything.dynamic_paths == ("self.weight", "self.factor", "x")


def is_jax_array(leaf):
    """A predicate that answers alike for an array and its abstract value."""
    return isinstance(leaf, jax.Array)


def is_concrete(leaf):
    """A predicate that answers differently for an abstract value."""
    return isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)


def is_large(leaf):
    """A predicate on values that are no arrays."""
    return isinstance(leaf, (int, str))


def test_a_predicate_of_the_users_own():
    """A predicate is asked about an abstract value through a stand-in."""
    jitted = staged.jit(scale, dynamic=is_jax_array)
    struct = staged.abstract((3,), jnp.float32)
    assert jitted.trace(struct).call == jitted.trace(X).call
    assert jitted(X, 4).tolist() == [4, 4, 4]
    assert jitted(X, 5).tolist() == [5, 5, 5]
    compiled = jitted.trace(X, 4).lower().compile()
    assert compiled(X, 4).tolist() == [4, 4, 4]


def test_a_predicate_that_answers_differently_for_an_abstract_value():
    """A predicate has to look at types, shapes and dtypes alone."""
    message = refused(staged.OptionError, staged.jit(scale, dynamic=is_concrete), X)
    assert message == (
        "`scale`: `dynamic` answers differently for `x` and for its abstract value.\n"
        "  `x` is float32[3]: True for the value, False for its shape and dtype.\n"
        "Let `dynamic` look at shapes, dtypes and types alone."
    )


def test_a_predicate_that_takes_what_is_no_array():
    """What JAX cannot take as an input is refused by its path."""
    jitted = staged.jit(scale, dynamic=is_large)
    first, second, third = refused(staged.OptionError, jitted, "text").splitlines()
    assert first == "`scale`: `x` cannot be an input of a program."
    assert second.startswith(
        "  `dynamic` says that it is one, but it is of type `str`, which JAX refuses: "
    )
    assert third == "Let `dynamic` answer False for it."


def test_a_number_that_is_too_large():
    """A Python number that no dtype holds is refused by its path."""
    jitted = staged.jit(scale, dynamic=eqx.is_array_like)
    message = refused(staged.OptionError, jitted, X, 10**30)
    assert message.startswith("`scale`: `n` cannot be an input of a program.\n")


def test_in_shardings_by_name(devices, mesh):
    """An argument that is named is put where it is wanted, at every stage."""
    wanted = NamedSharding(mesh, P("x"))
    jitted = staged.jit(scale, in_shardings={"x": wanted})
    compiled = jitted.trace(Y).lower().compile()
    for result in (jitted(Y), compiled(Y), compiled(jax.device_put(Y, wanted))):
        assert result.sharding == wanted
        assert result.tolist() == [0, 2, 4, 6]
    assert compiled.input_shardings == ((wanted,), {})


@pytest.mark.parametrize("depth", ["whole", "leaf", "static"])
def test_in_shardings_take_prefixes(devices, depth):
    """A sharding may stand for a whole tree; a static leaf matches anything."""
    there = on(devices[1])
    tree = {"b": Y, "s": "static"}
    prefix = {
        "whole": there,
        "leaf": {"b": there, "s": None},
        "static": {"b": there, "s": "whatever"},
    }[depth]
    jitted = staged.jit(scale, in_shardings={"bias": prefix, "n": "whatever"})
    compiled = jitted.trace(Y, 1, tree).lower().compile()
    assert jitted(Y, 1, tree).devices() == {devices[1]}
    assert compiled(Y, 1, tree).devices() == {devices[1]}


def test_in_shardings_of_arguments_of_every_kind(devices):
    """Items of `*args`, of `**kwargs` and the function's own arrays can be placed."""
    there = on(devices[1])

    def star(*items):
        return items[0]

    def named(**items):
        return items["a"]

    layer = eqx.nn.Linear(4, 4, key=jax.random.key(0))
    for result in (
        staged.jit(star, in_shardings={"items": there})(Y),
        staged.jit(star, in_shardings={"items": (there, None)})(Y, 1),
        staged.jit(named, in_shardings={"a": there})(a=Y, b=1),
        staged.jit(layer, in_shardings={"self": there})(Y),
    ):
        assert result.devices() == {devices[1]}


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ({"z": None}, "bias"),
        ([None], "bias"),
        (3, "bias"),
        ({"b": 3}, "bias['b']"),
        ({"b": {"c": None}}, "bias['b']"),
    ],
)
def test_in_shardings_that_are_no_prefix(prefix, path):
    """Shardings that do not fit the tree are refused by the place where they do not."""
    jitted = staged.jit(scale, in_shardings={"bias": prefix})
    shown = prefix["b"] if path != "bias" else prefix
    for call in (jitted, jitted.trace):
        assert refused(staged.OptionError, call, Y, 1, {"b": Y}) == (
            f"`scale`: `in_shardings` does not fit the argument at `{path}`.\n"
            f"  expected a sharding or a prefix of the tree there, given {shown!r}."
        )


def test_in_shardings_by_partition_spec(mesh):
    """A bare `PartitionSpec` is meant for the mesh that is set."""
    jitted = staged.jit(scale, in_shardings={"x": P("x")})
    with jax.set_mesh(mesh):
        assert jitted(Y).sharding == NamedSharding(mesh, P("x"))
        compiled = jitted.trace(Y).lower().compile()
        assert compiled(Y).tolist() == [0, 2, 4, 6]


def test_a_partition_spec_without_a_mesh():
    """A bare `PartitionSpec` asks for a mesh."""
    jitted = staged.jit(scale, in_shardings={"x": P("x")})
    for call in (jitted, jitted.trace, jitted.lower):
        assert refused(staged.OptionError, call, Y) == (
            f"`scale`: `in_shardings` holds {P('x')}, but no mesh is set.\n"
            "Set one by `jax.set_mesh`, or give a `jax.sharding.NamedSharding`."
        )


def test_a_partition_spec_and_an_argument_elsewhere(devices, mesh):
    """What is not where a `PartitionSpec` wants it is refused, or copied if asked."""
    there = jax.device_put(Y, devices[1])
    jitted = staged.jit(scale, in_shardings={"x": P("x")})
    copies = staged.jit(scale, in_shardings={"x": P("x")}, reshard=True)
    with jax.set_mesh(mesh):
        for call in (jitted, jitted.trace):
            assert refused(staged.CallMismatchError, call, there) == (
                "`scale`: an argument is not where `in_shardings` wants it.\n"
                f"  `x`: compiled for {P('x')} over {{'x': 2}}, given {devices[1]} "
                "(sharding)\n"
                "Move it there by `jax.device_put`, or let each call copy it: "
                "`jit(reshard=True)`."
            )
        for call in (copies, copies.trace(there).lower().compile()):
            result = call(there)
            assert result.sharding == NamedSharding(mesh, P("x"))
            assert result.tolist() == [0, 2, 4, 6]


def test_a_partition_spec_inside_a_transformation(mesh):
    """There the mesh is abstract, and the spec asks for no place yet."""
    jitted = staged.jit(scale, in_shardings={"x": P("x")}, reshard=True)
    with jax.set_mesh(mesh):
        assert jax.jit(lambda x: jitted(x))(Y).tolist() == [0, 2, 4, 6]
        assert jax.eval_shape(lambda x: jitted(x), Y).shape == (4,)
        assert jax.jit(lambda x: jitted.trace(x).out_info.shape[0] + x)(Y)[0] == 4


def test_an_argument_that_is_elsewhere(devices, mesh):
    """A committed array that is elsewhere is refused by its path, whoever is called."""
    wanted = NamedSharding(mesh, P("x"))
    jitted = staged.jit(scale, in_shardings={"x": wanted, "bias": wanted})
    there = jax.device_put(Y, devices[1])
    expected = (
        "`scale`: an argument is not where `in_shardings` wants it.\n"
        f"  `bias['b']`: compiled for {P('x')} over {{'x': 2}}, given {devices[1]} "
        "(sharding)\n"
        "Move it there by `jax.device_put`, or let each call copy it: "
        "`jit(reshard=True)`."
    )
    for call in (jitted, jitted.trace, jitted.lower):
        assert refused(staged.CallMismatchError, call, Y, 1, {"b": there}) == expected
    with pytest.raises(staged.CallMismatchError) as caught:
        jitted(Y, 1, {"b": there})
    assert [(d.path, d.kind) for d in caught.value.differences] == [
        ("bias['b']", "sharding")
    ]
    with pytest.raises(staged.CallMismatchError):
        jitted.trace(staged.abstract((4,), Y.dtype, sharding=on(devices[1])))


def test_a_compiled_call_on_another_device(devices):
    """A compiled call refuses a committed array of another device, by its path."""
    there = jax.device_put(Y, devices[1])
    compiled = staged.jit(scale).trace(Y).lower().compile()
    assert compiled(jax.device_put(Y, devices[0])).tolist() == [0, 2, 4, 6]
    assert refused(staged.CallMismatchError, compiled, there) == (
        "`scale`: the call is not the one that it was compiled for.\n"
        f"  `x`: compiled for {devices[0]}, given {devices[1]} (sharding)\n"
        "Call it as it was traced, stage it anew for this call, or call the jitted "
        "function, which compiles whatever it is called with."
    )


def test_a_compiled_call_follows_its_arguments(devices):
    """A program that was traced for a device runs there, on uncommitted arrays too."""
    there = jax.device_put(Y, devices[1])
    compiled = staged.jit(scale).trace(there).lower().compile()
    assert compiled(there).devices() == compiled(Y).devices() == {devices[1]}
    message = refused(staged.CallMismatchError, compiled, jax.device_put(Y, devices[0]))
    assert message.splitlines()[1] == (
        f"  `x`: compiled for {devices[1]}, given {devices[0]} (sharding)"
    )


def test_an_abstract_argument_says_where(devices, mesh):
    """The sharding of a shape and dtype is honoured, and then expected."""
    wanted = NamedSharding(mesh, P("x"))
    struct = staged.abstract((4,), Y.dtype, sharding=wanted)
    compiled = staged.jit(scale).trace(struct).lower().compile()
    assert compiled(jax.device_put(Y, wanted)).sharding == wanted
    assert compiled(Y).sharding == wanted
    message = refused(staged.CallMismatchError, compiled, jax.device_put(Y, devices[1]))
    assert message.splitlines()[1] == (
        f"  `x`: compiled for {P('x')} over {{'x': 2}}, given {devices[1]} (sharding)"
    )


def test_a_mesh_with_explicit_axes(devices):
    """Arrays over a mesh with explicit axes work, and other placements are refused."""
    explicit = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((2,), ("x",), axis_types=explicit, devices=devices)
    apart = jax.device_put(Y, NamedSharding(mesh, P("x")))
    everywhere = jax.device_put(Y, NamedSharding(mesh, P()))
    jitted = staged.jit(scale)
    with jax.set_mesh(mesh):
        compiled = jitted.trace(apart).lower().compile()
        for result in (jitted(apart), compiled(apart)):
            assert jax.typeof(result).sharding.spec == P("x")
            assert result.tolist() == [0, 2, 4, 6]
        message = refused(staged.CallMismatchError, compiled, everywhere)
    assert message.splitlines()[1] == (
        f"  `x`: compiled for {P('x')} over {{'x': 2}}, given {P()} over {{'x': 2}} "
        "(sharding)"
    )


def test_reshard(devices, mesh):
    """With `reshard`, arrays that are elsewhere are copied to where they are wanted."""
    wanted = NamedSharding(mesh, P("x"))
    jitted = staged.jit(scale, in_shardings={"x": wanted}, reshard=True)
    there = jax.device_put(Y, devices[1])
    struct = staged.abstract((4,), Y.dtype, sharding=on(devices[1]))
    for result in (
        jitted(there),
        jitted(jax.device_put(Y, wanted)),
        jitted.trace(Y).lower().compile()(there),
        jitted.trace(there).lower().compile()(there),
        jitted.trace(struct).lower().compile()(there),
        jitted.trace(there, 2).lower().compile()(Y),
    ):
        assert result.sharding == wanted
        assert result.tolist() == [0, 2, 4, 6]
    inlined = jax.jit(lambda x: jitted(x))(Y)
    assert inlined.tolist() == [0, 2, 4, 6]


def test_reshard_without_in_shardings(devices):
    """A compiled call copies to where it was compiled; an ordinary one needs not to."""
    jitted = staged.jit(scale, reshard=True)
    there = jax.device_put(Y, devices[1])
    compiled = jitted.trace(Y).lower().compile()
    assert compiled(there).devices() == {devices[0]}
    assert compiled(np.asarray(Y)).devices() == {devices[0]}
    assert jitted(there).devices() == {devices[1]}
    assert jitted.trace(there).lower().compile()(there).devices() == {devices[1]}


def test_reshard_leaves_unused_arguments_alone(devices):
    """An argument that the program does not read is not copied anywhere."""
    jitted = staged.jit(lambda x, y: x, reshard=True)
    compiled = jitted.trace(Y, Y).lower().compile()
    there = jax.device_put(Y, devices[1])
    assert compiled(there, there).devices() == {devices[0]}


def test_reshard_does_not_save_a_wrong_call(devices):
    """With `reshard`, all other differences are still refused."""
    compiled = staged.jit(scale, reshard=True).trace(Y).lower().compile()
    there = jax.device_put(X, devices[1])
    message = refused(staged.CallMismatchError, compiled, there)
    assert message.splitlines()[1] == "  `x`: compiled for (4,), given (3,) (shape)"


def three(x):
    """A function with a static output."""
    return {"a": x, "b": (x + 1, "static", None)}


@pytest.mark.parametrize("depth", ["whole", "part", "leaf"])
def test_out_shardings(mesh, depth):
    """`out_shardings` is any prefix of the result; static leaves are left alone."""
    apart = NamedSharding(mesh, P("x"))
    prefix = {
        "whole": apart,
        "part": {"a": apart, "b": apart},
        "leaf": {"a": apart, "b": (apart, None, None)},
    }[depth]
    jitted = staged.jit(three, out_shardings=prefix)
    compiled = jitted.trace(Y).lower().compile()
    for result in (jitted(Y), compiled(Y)):
        first, text, nothing = result["b"]
        assert (result["a"].sharding, first.sharding) == (apart, apart)
        assert (text, nothing) == ("static", None)
    assert compiled.output_shardings == {"a": apart, "b": (apart, "static", None)}


def test_out_shardings_of_one_leaf_each(devices, mesh):
    """Each output has its own sharding; `None` leaves it to JAX."""
    apart, copied = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    jitted = staged.jit(lambda x: (x, x + 1, 3), out_shardings=(apart, copied, None))
    first, second, third = jitted(Y)
    assert (first.sharding, second.sharding, third) == (apart, copied, 3)


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ({"z": None}, "result"),
        ((None, None), "result"),
        ({"a": None, "b": (None, None)}, "result['b']"),
        ({"a": (None, None), "b": None}, "result['a']"),
    ],
)
def test_out_shardings_that_are_no_prefix(prefix, path):
    """Shardings that do not fit the result are refused by the place that they miss."""
    jitted = staged.jit(three, out_shardings=prefix)
    shown = prefix if path == "result" else prefix[path[8:-2]]
    for call in (jitted, jitted.trace, jitted.eval_shape):
        message = refused(staged.OptionError, call, Y)
        assert message.splitlines()[:2] == [
            f"`three`: `out_shardings` does not fit the result at `{path}`.",
            f"  expected a sharding or a prefix of the tree there, given {shown!r}.",
        ]


def test_equal_options_share_their_programs():
    """A function that is jitted twice with equal options is traced once."""
    traces = []

    def counted(x):
        traces.append(None)
        return x

    for _ in range(2):
        staged.jit(counted)(X)
        staged.jit(counted, donate="none", reshard=False)(X)
    assert len(traces) == 1
    staged.jit(counted, keep_unused=True)(X)
    staged.jit(counted, dynamic=is_jax_array)(X)
    assert len(traces) == 3


def test_options_that_cannot_be_hashed_are_shared():
    """Equal options share their programs, whatever they hold."""
    traces = []

    def counted(x):
        traces.append(None)
        return x

    for _ in range(2):
        options = {"xla_embed_ir_in_executable": True}
        assert staged.jit(counted, compiler_options=options)(X).tolist() == [1, 1, 1]
    assert len(traces) == 1
    options = {"xla_embed_ir_in_executable": 1}
    with pytest.raises(staged.CompilerOptionError, match="'1' is not a valid bool"):
        staged.jit(counted, compiler_options=options)(X)
    assert len(traces) == 2
