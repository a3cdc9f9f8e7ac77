"""The record of a call: what it shows, and how it differs from another."""

import collections
import weakref

import attrs
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import staged


X = jnp.ones(3)
P = jax.sharding.PartitionSpec
NamedSharding = jax.sharding.NamedSharding

Pair = collections.namedtuple("Pair", ["first", "second"])


class Linear(eqx.Module):
    """A layer with a static field."""

    weight: object
    size: int = eqx.field(static=True)


class Network(eqx.Module):
    """A Module of layers."""

    layers: list
    name: str

    def __call__(self, x, *, rate=0.1):
        return x

    @staged.jit
    def step(self, x):
        return x


class OtherLayer(eqx.Module):
    """Another layer."""

    weight: object


def function(x, n=2, *rest, key=None, **options):
    """A function with parameters of all kinds."""
    return x


def network(size=3):
    """A network of two layers."""
    return Network([Linear(X, size), Linear(X, size)], "net")


TRACE = staged.jit(function).trace


def call(*args, **kwargs):
    """The record of a call of `function`."""
    return TRACE(*args, **kwargs).call


def texts(mine, other):
    """The differences of two records, as text."""
    return [str(difference) for difference in mine.diff(other)]


def test_what_a_record_shows():
    """A record names what is dynamic, static and donated, in the user's terms."""
    jitted = staged.jit(function, donate="x")
    record = jitted.trace({"a": [X, 1]}, 3, X, key="k", rate=0.5).call
    struct = jax.ShapeDtypeStruct((3,), jnp.float32)
    assert record.fun_name == "function"
    assert record.args == ({"a": [struct, 1]}, 3, struct)
    assert record.kwargs == {"key": "k", "rate": 0.5}
    assert record.dynamic == {"x['a'][0]": struct, "rest[0]": struct}
    assert record.dynamic_paths == ("x['a'][0]", "rest[0]")
    assert record.static == {"x['a'][1]": 1, "n": 3, "key": "k", "rate": 0.5}
    assert record.donated == ("x['a'][0]",)
    assert repr(record) == (
        "BoundCall of function:\n"
        "  x['a'][0]: float32[3], donated\n"
        "  x['a'][1] = 1\n"
        "  n = 3\n"
        "  rest[0]: float32[3]\n"
        "  key = 'k'\n"
        "  rate = 0.5"
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "shown"),
    [
        ((1,), {}, ((1,), {})),
        ((1, 2), {}, ((1,), {})),
        ((1, 3), {}, ((1, 3), {})),
        ((1, 2, 4), {}, ((1, 2, 4), {})),
        ((), {"x": 1, "n": 3}, ((1, 3), {})),
        ((1,), {"key": 5, "z": 6}, ((1,), {"key": 5, "z": 6})),
        ((1,), {"key": None}, ((1,), {})),
    ],
)
def test_defaults_are_left_out(args, kwargs, shown):
    """The arguments that a record shows are those of the shortest spelling."""
    record = call(*args, **kwargs)
    assert (record.args, record.kwargs) == shown


def test_weak_types_keys_and_shardings_are_shown(devices, mesh):
    """The text of a record notes weak types, kinds of keys, and committed devices."""
    there = jax.device_put(jnp.ones(4), devices[1])
    apart = jax.device_put(jnp.ones(4), NamedSharding(mesh, P("x")))
    key = jax.random.key(0, impl="threefry2x32")
    half = jnp.ones((2, 0), jnp.bfloat16)
    assert repr(call((jnp.asarray(1.0), key, there, apart, half))) == (
        "BoundCall of function:\n"
        "  x[0]: float32[], weak\n"
        "  x[1]: key<fry>[]\n"
        f"  x[2]: float32[4], on {devices[1]}\n"
        f"  x[3]: float32[4], on {P('x')} over {{'x': 2}}\n"
        "  x[4]: bfloat16[2,0]\n"
        "  n = 2"
    )


def test_a_function_that_carries_values():
    """What the function itself carries has a path, and is no argument of the call."""
    net = network()
    for jitted in (staged.jit(net), staged.jit(net.__call__)):
        record = jitted.trace(X, rate=0.2).call
        assert record.dynamic_paths == (
            "self.layers[0].weight",
            "self.layers[1].weight",
            "x",
        )
        assert record.static == {"self.name": "net", "rate": 0.2}
        assert len(record.args) == 1
        assert record.kwargs == {"rate": 0.2}
    partial = jtu.Partial(function, {"w": X}, n=3, extra=X)
    record = staged.jit(partial).trace(key=1).call
    assert record.dynamic_paths == ("x['w']", "extra")
    assert (record.args, record.kwargs) == ((), {"key": 1})


def test_the_paths_of_a_method():
    """The instance of a decorated method is its first parameter."""
    record = network().step.trace(X).call
    assert record.dynamic_paths == (
        "self.layers[0].weight",
        "self.layers[1].weight",
        "x",
    )
    assert texts(record, network(4).step.trace(X).call) == [
        "`self.layers[0].size`: compiled for 3, given 4 (static value)",
        "`self.layers[1].size`: compiled for 3, given 4 (static value)",
    ]


def test_a_node_without_names_has_numbers():
    """A child for which JAX has no name is spoken of as JAX does."""

    @jtu.register_pytree_node_class
    class Node:
        def __init__(self, child):
            self.child = child

        def tree_flatten(self):
            return (self.child,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    (path,) = call(Node(X)).dynamic_paths
    assert path == "x[<flat index 0>]"


def test_the_context_is_part_of_a_record():
    """A record holds what of JAX's configuration shapes the program."""
    context = call(X).context
    assert context == staged.Context(
        enable_x64=False,
        default_matmul_precision=None,
        numpy_dtype_promotion="strict",
        numpy_rank_promotion="raise",
        default_prng_impl="threefry2x32",
        threefry_partitionable=True,
        random_seed_offset=0,
        mesh=None,
    )


def test_the_mesh_is_part_of_a_record(mesh):
    """The mesh that is set is part of a record, and of its diff."""
    record = call(X)
    with jax.set_mesh(mesh):
        inside = call(X)
    assert inside.context.mesh.shape == {"x": 2}
    (found,) = record.diff(inside)
    assert (found.path, found.kind, found.expected) == (
        "jax.config.mesh",
        "context",
        None,
    )
    assert found.given == inside.context.mesh


def test_a_record_cannot_be_changed():
    """A record is frozen, and so are the mappings that it shows."""
    record = call(X)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        record.fun_name = "other"
    for mapping in (record.static, record.dynamic):
        with pytest.raises(TypeError, match="does not support item assignment"):
            mapping["n"] = 3
    record.kwargs["n"] = 3
    assert record.kwargs == {}


def test_a_record_is_hashable_and_compares_to_records_alone():
    """Equal records are one key of a dictionary; nothing else is equal to a record."""
    assert {call(X): 1, call(X, 2): 2} == {call(x=X): 2}
    assert call(X) == call(np.ones(3, np.float32))
    assert call(X) != "a record"
    assert call(X).__eq__("a record") is NotImplemented
    assert call(X) != call(X, 3)


@pytest.mark.usefixtures("no_cycles")
def test_no_array_is_held():
    """A record keeps no array of its call alive, nor does the function that made it."""
    array = jnp.ones(3) + 1
    watch = weakref.ref(array)
    record = call({"a": array}, extra=array)
    del array
    assert watch() is None
    assert record.dynamic_paths == ("x['a']", "extra")


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [
        (X, jnp.ones(4), ["`x`: compiled for (3,), given (4,) (shape)"]),
        (X, jnp.ones(3, int), ["`x`: compiled for float32, given int32 (dtype)"]),
        (
            X,
            jnp.ones(4, bool),
            [
                "`x`: compiled for (3,), given (4,) (shape)",
                "`x`: compiled for float32, given bool (dtype)",
            ],
        ),
        (
            jnp.asarray(1.0),
            jnp.float32(1),
            ["`x`: compiled for a weak type, given a strong type (weak type)"],
        ),
        (
            jnp.float32(1),
            jnp.asarray(1.0),
            ["`x`: compiled for a strong type, given a weak type (weak type)"],
        ),
        (1, True, ["`x`: compiled for 1, given True (static value)"]),
        ("a", "b", ["`x`: compiled for 'a', given 'b' (static value)"]),
        (1, X, ["`x`: compiled for 1, given float32[3] (structure)"]),
        (X, 1, ["`x`: compiled for float32[3], given 1 (structure)"]),
        (X, None, ["`x`: compiled for float32[3], given None (structure)"]),
        (None, 1, ["`x`: compiled for None, given 1 (structure)"]),
        (None, [], ["`x`: compiled for None, given list of length 0 (structure)"]),
        ([X], X, ["`x`: compiled for list of length 1, given float32[3] (structure)"]),
        (
            [X],
            (X,),
            ["`x`: compiled for list of length 1, given tuple of length 1 (structure)"],
        ),
        (
            Pair(X, 1),
            (X, 1),
            ["`x`: compiled for Pair of length 2, given tuple of length 2 (structure)"],
        ),
        (
            Pair(X, 1),
            Pair(X, 2),
            ["`x.second`: compiled for 1, given 2 (static value)"],
        ),
        ([X], [X, X], ["`x[1]`: compiled for nothing, given float32[3] (structure)"]),
        (
            {"a": {"b": X}},
            {"a": {"c": X}},
            [
                "`x['a']['b']`: compiled for float32[3], given nothing (structure)",
                "`x['a']['c']`: compiled for nothing, given float32[3] (structure)",
            ],
        ),
        (
            network(),
            network(4),
            [
                "`x.layers[0].size`: compiled for 3, given 4 (static value)",
                "`x.layers[1].size`: compiled for 3, given 4 (static value)",
            ],
        ),
        (
            network(),
            eqx.tree_at(lambda net: net.layers[1].weight, network(), jnp.ones(2)),
            ["`x.layers[1].weight`: compiled for (3,), given (2,) (shape)"],
        ),
        (
            Linear(X, 1),
            OtherLayer(X),
            ["`x`: compiled for Linear, given OtherLayer (structure)"],
        ),
        (
            jax.random.key(0, impl="threefry2x32"),
            jax.random.key(0, impl="rbg"),
            ["`x`: compiled for key<fry>, given key<rbg> (dtype)"],
        ),
        (X, jnp.zeros(3), []),
        (float("nan"), float("nan"), []),
    ],
)
def test_differences_of_every_kind(mine, other, expected):
    """Each difference is said in words, by the path of its leaf."""
    assert texts(call(mine), call(other)) == expected
    assert (call(mine) == call(other)) == (not expected)


def test_differences_in_arguments_of_every_kind():
    """Items of `*args` and `**kwargs` have paths of their own."""
    assert texts(call(X, 2, X, 5), call(X, 2, 1)) == [
        "`rest[0]`: compiled for float32[3], given 1 (structure)",
        "`rest[1]`: compiled for 5, given nothing (structure)",
    ]
    assert texts(call(X, a={"k": [1]}, b=2), call(X, a={"k": [2]}, c=3)) == [
        "`a['k'][0]`: compiled for 1, given 2 (static value)",
        "`b`: compiled for 2, given nothing (structure)",
        "`c`: compiled for nothing, given 3 (structure)",
    ]
    assert texts(call(X, b=1, a=2), call(X, a=2, b=1)) == []


def test_differences_in_sharding(devices, mesh):
    """A sharding is said by its device or its mesh, and no sharding as uncommitted."""
    x = jnp.ones(4)
    there = jax.device_put(x, devices[1])
    apart = jax.device_put(x, NamedSharding(mesh, P("x")))
    turned = jax.sharding.Mesh(np.array(devices[::-1]), ("x",))
    turned = jax.device_put(x, NamedSharding(turned, P("x")))
    text = f"{P('x')} over {{'x': 2}}"
    assert texts(call(x), call(there)) == [
        f"`x`: compiled for an uncommitted array, given {devices[1]} (sharding)"
    ]
    assert texts(call(there), call(apart)) == [
        f"`x`: compiled for {devices[1]}, given {text} (sharding)"
    ]
    assert texts(call(apart), call(turned)) == [
        f"`x`: compiled for {text}, given {text} of the devices [1, 0] (sharding)"
    ]
    memory = NamedSharding(mesh, P("x"), memory_kind="pinned_host")
    pinned = call(jax.ShapeDtypeStruct((4,), x.dtype, sharding=memory))
    assert texts(call(apart), pinned) == [
        f"`x`: compiled for {text}, given {text} in pinned_host (sharding)"
    ]


def test_equivalent_shardings_are_equal(devices, mesh):
    """Shardings are equal if JAX's dispatch takes one for the other."""
    x = jnp.ones(4)
    one = call(jax.device_put(x, NamedSharding(mesh, P("x"))))
    same = call(jax.device_put(x, NamedSharding(mesh, P(("x",)))))
    assert one == same
    assert hash(one) == hash(same)
    single = jax.sharding.Mesh(np.array(devices[:1]), ("x",))
    assert call(jax.device_put(x, devices[0])) == call(
        jax.device_put(x, NamedSharding(single, P("x")))
    )


def test_differences_in_donation():
    """What only one of two records donates is a difference."""
    donating = staged.jit(function, donate="x").trace(X).call
    assert texts(call(X), donating) == [
        "`x`: compiled for not donated, given donated (donation)"
    ]
    assert texts(donating, call(X)) == [
        "`x`: compiled for donated, given not donated (donation)"
    ]
    assert call(X) != donating


def test_differences_in_context():
    """A setting of JAX that shapes programs is a difference, by its own name."""
    record = call(X)
    with jax.default_matmul_precision("high"), jax.numpy_rank_promotion("allow"):
        other = call(X)
    assert texts(record, other) == [
        "`jax.config.default_matmul_precision`: compiled for None, given 'high' "
        "(context)",
        "`jax.config.numpy_rank_promotion`: compiled for 'raise', given 'allow' "
        "(context)",
    ]


def test_differences_in_the_function():
    """Records of two functions differ in the function, whatever their arguments."""

    def other(x, n=2, *rest, key=None, **options):
        return x

    record = staged.jit(other).trace(X).call
    assert texts(call(X), record) == [
        "the function: compiled for function, given other (function)"
    ]
    assert call(X) != record


def test_functions_of_one_name_are_told_apart():
    """Two functions of one name are two functions."""

    def make():
        return staged.jit(lambda x: x).trace(X).call

    assert make() != make()
    assert [d.kind for d in make().diff(make())] == ["function"]


def test_a_difference_holds_its_facts():
    """A difference is data: where, what kind, and the two values themselves."""
    (found,) = call(X).diff(call(jnp.ones(4)))
    assert found == staged.Difference(path="x", kind="shape", expected=(3,), given=(4,))
    (found,) = call(X, 1).diff(call(X, 5))
    assert (found.expected, found.given) == (1, 5)


def test_the_function_in_a_difference_has_no_address():
    """A function as a static value is shown by its name."""
    assert texts(call(X, function), call(X, texts)) == [
        "`n`: compiled for <function function>, given <function texts> (static value)"
    ]


def test_functions_of_one_name_are_told_apart_in_a_difference():
    """Two static values that would read alike are shown in full."""
    first, second = (lambda: 1), (lambda: 2)
    assert texts(call(X, first), call(X, second)) == [
        f"`n`: compiled for {first!r}, given {second!r} "
        "(static value, compared by identity: pass the same object)"
    ]


def test_two_functions_of_one_name_are_others():
    """Where the names of the two functions are all that is known, it says so."""
    records = [staged.jit(fun).trace(X).call for fun in (lambda x: x, lambda x: x + 1)]
    assert texts(*records) == [
        "the function: compiled for <lambda>, given another function of that name "
        "(function)"
    ]


def test_abstract_arguments_make_the_record_of_arrays():
    """A shape and dtype stand for an uncommitted array, also for a key."""
    key = jax.random.key(0)
    struct = staged.abstract((3,), jnp.float32)
    assert call((struct, key)) == call((X, staged.abstract((), key.dtype)))
    weak = staged.abstract((), jnp.float32, weak_type=True)
    assert call(weak) == call(jnp.asarray(1.0))


def test_an_abstract_argument_carries_a_sharding(mesh):
    """A sharding of a shape and dtype is that of an array."""
    sharding = NamedSharding(mesh, P("x"))
    struct = staged.abstract((4,), jnp.float32, sharding=sharding)
    assert call(struct) == call(jax.device_put(jnp.ones(4), sharding))
    assert call(struct).args[0].sharding == sharding
