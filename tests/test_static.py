"""Static values: when two of them are the same, and which are refused, by path."""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import gc
import pathlib
import types
import weakref
from collections.abc import Mapping

import attrs
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import staged
from staged._static import held_weakly, holdable, strict_key


X = jnp.ones(3)


class Level(enum.IntEnum):
    """A value that is equal to an `int`."""

    LOW = 1


class Plain:
    """An object that is compared by identity."""

    def __init__(self, value):
        self.value = value

    def method(self, x):
        return x

    def __repr__(self):
        return "Plain()"


class Slotted:
    """The same without a `__dict__` and without weak references."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return "Slotted()"


class Sub(Slotted):
    """The same with one more slot, given as a plain string."""

    __slots__ = "other"  # as some write it

    def __init__(self, other):
        super().__init__(None)
        self.other = other

    def __repr__(self):
        return "Sub()"


@dataclasses.dataclass(frozen=True)
class Value:
    """An object with a value of its own."""

    value: object


class ArrayEquality:
    """An object whose `==` gives something else than a bool."""

    def __eq__(self, other):
        return np.bool_(True)

    def __hash__(self):
        return 0

    def __repr__(self):
        return "ArrayEquality()"


class FailingEquality(ArrayEquality):
    """An object whose `==` fails."""

    def __eq__(self, other):
        raise RuntimeError("no equality here")

    __hash__ = ArrayEquality.__hash__


class Model(eqx.Module):
    """A Module with a static field."""

    value: object
    mark: object = eqx.field(static=True)


@functools.partial(
    jtu.register_dataclass, data_fields=["value"], meta_fields=["mark", "more"]
)
@dataclasses.dataclass
class Record:
    """A dataclass that is registered with the names of its fields."""

    value: object
    mark: object = None
    more: object = 0


@jtu.register_pytree_node_class
class Node:
    """A node whose child is known by no name."""

    def __init__(self, value, mark):
        self.value = value
        self.mark = mark

    def tree_flatten(self):
        return (self.value,), self.mark

    @classmethod
    def tree_unflatten(cls, mark, children):
        return cls(children[0], mark)


@jtu.register_pytree_node_class
class Computed(Node):
    """A node whose static data are none of its attributes."""

    def tree_flatten(self):
        return (self.value,), ("computed", [self.mark])


def model(value, mark):
    """A `Model`, without Equinox's own warning on arrays in static fields."""
    made = object.__new__(Model)
    object.__setattr__(made, "value", value)
    object.__setattr__(made, "mark", mark)
    return made


def use(x, thing=None, *rest, **named):
    """A function of anything."""
    return x


JITTED = staged.jit(use)

WAY_OUT = (
    "Every leaf that is no array is static, and a program is made for its value. "
    "Pass a tuple, a frozenset or a frozen dataclass instead, or an array if the value "
    "changes from call to call."
)


NAN = float("nan")


def fresh_nan():
    """A NaN that is no other object."""
    return float("nan")


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (1, 1),
        ("a", "a"),
        (NAN, fresh_nan()),
        (complex(0, NAN), complex(0, fresh_nan())),
        ((1, (NAN,)), (1, (fresh_nan(),))),
        (frozenset((NAN, 1)), frozenset((1, fresh_nan()))),
        (Value(1), Value(1)),
        (Plain.method, Plain.method),
        (np.str_("a"), np.str_("a")),
        (np.datetime64("2020-01-01"), np.datetime64("2020-01-01")),
        (jnp.float32, jnp.float32),
        (jnp.dtype("float32"), jnp.dtype("float32")),
        (Level, Level),
    ],
    ids=repr,
)
def test_static_values_that_are_the_same(value, same):
    """Equal values of one type are the same, and so are two NaNs, however deep."""
    mine, other = (JITTED.trace(X, model(X, v)).call for v in (value, same))
    assert mine == other
    mine, other = (JITTED.trace(X, v).call for v in (value, same))
    assert mine == other
    assert hash(mine) == hash(other)


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1, True),
        (1, 1.0),
        (1, Level.LOW),
        (1, 1 + 0j),
        (0.0, -0.0),
        (0j, complex(0.0, -0.0)),
        (0j, complex(-0.0, 0.0)),
        ("a", b"a"),
        ("a", np.str_("a")),
        (frozenset((1,)), frozenset((True,))),
        (np.datetime64("2020"), np.datetime64("2020-01-01")),
        (Plain(1), Plain(1)),
        (lambda: 1, lambda: 1),
    ],
    ids=repr,
)
def test_static_values_that_differ(value, other):
    """Values that are merely `==`, or less, make two records and two programs."""
    mine, theirs = (JITTED.trace(X, v).call for v in (value, other))
    assert mine != theirs
    assert [(d.path, d.kind) for d in mine.diff(theirs)] == [("thing", "static value")]
    give = staged.jit(lambda x, v: v)
    assert give(X, value) is value
    assert give(X, other) is other
    compiled = give.trace(X, value).lower().compile()
    with pytest.raises(staged.CallMismatchError):
        compiled(X, other)


def test_tuples_of_static_values_are_trees():
    """The items of a tuple are leaves of their own, each with its path."""
    mine, other = (JITTED.trace(X, v).call for v in ((1, 2), (1, 2.0)))
    assert list(map(str, mine.diff(other))) == [
        "`thing[1]`: compiled for 2, given 2.0 (static value)"
    ]


def test_bound_methods_compare_their_instances():
    """A bound method is the same value for the same instance and function."""
    one, two = Plain(1), Plain(1)
    assert JITTED.trace(X, one.method).call == JITTED.trace(X, one.method).call
    assert JITTED.trace(X, one.method).call != JITTED.trace(X, two.method).call


def test_a_record_does_not_keep_a_static_value_for_its_key():
    """The key of a value that is compared by identity refers to it weakly."""
    value = Plain(1)
    key = strict_key(value)
    assert key == strict_key(value)
    watch, held = weakref.ref(value), held_weakly(value)
    assert held() is value
    del value
    gc.collect()
    assert watch() is None
    assert held() is None


def test_a_value_without_weak_references_keeps_its_identity():
    """Two objects that cannot be referred to weakly are still two."""
    one, two = Slotted(1), Slotted(1)
    assert JITTED.trace(X, one).call == JITTED.trace(X, one).call
    assert JITTED.trace(X, one).call != JITTED.trace(X, two).call
    assert held_weakly(one)() is one


@pytest.mark.parametrize(
    ("thing", "path", "what", "reason"),
    [
        ({1}, "thing", "`set`, {1}", "unhashable type: 'set'"),
        ([{1}], "thing[0]", "`set`, {1}", "unhashable type: 'set'"),
        ({"k": (0, {1})}, "thing['k'][1]", "`set`, {1}", "unhashable type: 'set'"),
        (bytearray(b"a"), "thing", "`bytearray`, bytearray(b'a')", None),
        (Value([1]), "thing", "`Value`, Value(value=[1])", "unhashable type: 'list'"),
        (
            ArrayEquality(),
            "thing",
            "`ArrayEquality`, ArrayEquality()",
            "`==` of a ArrayEquality does not give a plain bool",
        ),
        (
            FailingEquality(),
            "thing",
            "`FailingEquality`, ArrayEquality()",
            "no equality here",
        ),
        (Model(X, [1]), "thing.mark", "`list`, [1]", "unhashable type: 'list'"),
        (Model(X, {}), "thing.mark", "`dict`, {}", "unhashable type: 'dict'"),
        (
            {"deep": [Model(Model(1, {1}), 2)]},
            "thing['deep'][0].value.mark",
            "`set`, {1}",
            "unhashable type: 'set'",
        ),
        (Record(X, [1]), "thing.mark", "`list`, [1]", "unhashable type: 'list'"),
        (Record(X, 0, [1]), "thing.more", "`list`, [1]", "unhashable type: 'list'"),
        (Node(X, [1]), "thing.mark", "`list`, [1]", "unhashable type: 'list'"),
        (
            Node(X, (1, [2])),
            "thing.mark",
            "`tuple`, (1, [2])",
            "unhashable type: 'list'",
        ),
        (Computed(X, 1), "thing", "`list`, [1]", "unhashable type: 'list'"),
        (
            np.array(["a"]),
            "thing",
            "`ndarray`, array(['a'], dtype='<U1')",
            "unhashable type: 'numpy.ndarray'",
        ),
        (
            np.array([None]),
            "thing",
            "`ndarray`, array([None], dtype=object)",
            "unhashable type: 'numpy.ndarray'",
        ),
        (
            [np.array(["2020"], "datetime64[Y]")],
            "thing[0]",
            "`ndarray`, array(['2020'], dtype='datetime64[Y]')",
            "unhashable type: 'numpy.ndarray'",
        ),
        (
            np.array([1], np.longdouble),
            "thing",
            f"`ndarray`, {np.array([1], np.longdouble)!r}",
            "unhashable type: 'numpy.ndarray'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_compared_is_refused(thing, path, what, reason):
    """A static value that does not hash and compare is refused by its path, at once."""
    if reason is None:
        reason = f"unhashable type: '{type(thing).__name__}'"
    for call in (JITTED, JITTED.trace, JITTED.lower, JITTED.eval_shape):
        with pytest.raises(staged.StaticLeafError) as caught:
            call(X, thing)
        assert str(caught.value) == (
            f"`use`: the static value at `{path}` cannot be hashed and compared.\n"
            f"  `{path}` is of type {what}: {reason}\n"
            f"{WAY_OUT}"
        )
        assert caught.value.path == path
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("thing", "path"),
    [
        (model(1, X), "thing.mark"),
        (model(X, X), "thing.mark"),
        ([model(X, np.ones(2))], "thing[0].mark"),
        (Record(X, X), "thing.mark"),
        (Node(X, X), "thing.mark"),
        (Node(1, np.ones(2)), "thing.mark"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_arrays_in_static_data_are_refused(thing, path):
    """An array in a static field is refused on the first call, also beside itself."""
    with pytest.raises(staged.StaticLeafError) as caught:
        JITTED(X, thing)
    assert caught.value.path == path
    first, second, third = str(caught.value).splitlines()
    assert first == (
        f"`use`: the static value at `{path}` cannot be hashed and compared."
    )
    assert second.startswith(f"  `{path}` is of type `")
    assert "unhashable type: " in second
    assert third == WAY_OUT


def test_a_compiled_call_refuses_them_too():
    """A compiled call refuses a value that cannot be compared with the same words."""
    compiled = JITTED.trace(X, 1).lower().compile()
    with pytest.raises(staged.StaticLeafError) as caught:
        compiled(X, {1})
    assert str(caught.value).startswith("`use`: the static value at `thing` cannot be")
    compiled = JITTED.trace(X, X).lower().compile()
    for thing in (np.array(["a", "b", "c"]), np.array([None] * 3)):
        with pytest.raises(staged.StaticLeafError) as caught:
            compiled(X, thing)
        assert caught.value.path == "thing"


def test_an_array_of_strings_after_one_of_numbers():
    """An array of strings is refused after one of numbers, of the same type, ran."""
    jitted = staged.jit(lambda x: x)
    assert jitted(np.ones(2, np.float32)).tolist() == [1, 1]
    with pytest.raises(staged.StaticLeafError) as caught:
        jitted(np.array(["a", "b"]))
    assert caught.value.path == "x"


def test_a_long_value_is_cut_short():
    """A message shows the beginning of a long value."""
    with pytest.raises(staged.StaticLeafError) as caught:
        JITTED(X, set(range(100)))
    shown = repr(set(range(100)))[:57]
    assert f"of type `set`, {shown}...: unhashable" in str(caught.value)


HOLDS = (
    "an object that is compared by identity: a later assignment to its attributes "
    "would not count.\n"
    "Make its class a pytree (an `equinox.Module`, or "
    "`jax.tree_util.register_dataclass`), or pass the array as an argument."
)


@pytest.mark.parametrize(
    ("thing", "held"),
    [
        (Plain(X), ".value"),
        (Plain(np.ones(2)), ".value"),
        (Plain([1, X]), ".value[1]"),
        (Plain({"k": {"j": X}}), ".value['k']['j']"),
        (Plain(Plain(X)), ".value.value"),
        (Plain(Model(X, 1)), ".value.value"),
        (Plain((Slotted(X),)), ".value[0].value"),
        (Plain({Slotted(X)}), ".value{...}.value"),
        (Slotted(X), ".value"),
        (Sub(X), ".other"),
        (types.SimpleNamespace(value=X), None),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_objects_that_hold_arrays_are_refused(thing, held):
    """A plain object that holds arrays, however deep, is refused by their path."""
    with pytest.raises(staged.StaticLeafError) as caught:
        JITTED(X, thing)
    if held is None:  # it has an equality of its own, and no hash
        assert caught.value.path == "thing"
        return
    assert str(caught.value) == (
        f"`use`: the static value at `thing` holds an array, at `thing{held}`.\n"
        f"  `thing` is of type `{type(thing).__name__}`, {thing!r}, {HOLDS}"
    )
    assert caught.value.path == f"thing{held}"


def test_a_bound_method_of_an_object_that_holds_arrays():
    """The instance of a bound method is looked into, wherever the method stands."""
    with pytest.raises(staged.StaticLeafError) as caught:
        JITTED(X, Plain(X).method)
    assert caught.value.path == "thing.__self__.value"
    with pytest.raises(staged.StaticLeafError) as caught:
        staged.jit(Plain(X).method)(X)
    assert str(caught.value) == (
        "`method`: the static value at `self` holds an array, at `self.value`.\n"
        f"  `self` is of type `Plain`, Plain(), {HOLDS}"
    )


def test_objects_in_static_fields_are_looked_into():
    """An array that an object in a static field holds is refused by its whole path."""
    with pytest.raises(staged.StaticLeafError) as caught:
        JITTED(X, Model(X, Plain([X])))
    assert caught.value.path == "thing.mark.value[0]"


def test_objects_without_arrays_are_trusted():
    """An object that holds no array is static, though it holds lists and itself."""
    thing = Plain([1, {"k": "v"}, {2, frozenset((3,))}])
    thing.itself = thing
    compiled = JITTED.trace(X, thing).lower().compile()
    assert compiled.call.static["thing"] is thing
    assert compiled(X, thing).tolist() == [1, 1, 1]


def test_code_is_trusted():
    """Functions, classes, modules and partials are static, whatever they refer to."""
    Plain.shared = X
    try:
        for thing in (Plain, lambda: X, jax, functools.partial(use, X)):
            assert JITTED(X, thing).tolist() == [1, 1, 1]
    finally:
        del Plain.shared


def test_the_parts_of_a_dictionary_of_each_kind():
    """Keys, their order where it counts, and a default factory are structure."""
    trace = staged.jit(lambda tree: 0).trace

    def difference(one, other):
        found = trace(one).call.diff(trace(other).call)
        return [str(difference) for difference in found]

    ordered, default = collections.OrderedDict, collections.defaultdict
    assert difference({"a": 1, "b": 2}, {"b": 2, "a": 1}) == []
    (found,) = difference(ordered(a=1, b=2), ordered(b=2, a=1))
    assert found.startswith("`tree`: compiled for OrderedDict with ")
    assert found.endswith(" (structure)")
    assert difference(default(int, a=1), default(float, a=1)) == [
        "`tree.default_factory`: compiled for <class 'int'>, given <class 'float'> "
        "(static value)"
    ]
    assert difference(default(int, a=1), default(int, b=1)) == [
        "`tree['a']`: compiled for 1, given nothing (structure)",
        "`tree['b']`: compiled for nothing, given 1 (structure)",
    ]


def test_static_data_of_other_lengths():
    """Static data that are a longer tuple, or no tuple, differ as a whole."""
    trace = staged.jit(lambda tree: 0).trace
    mine = trace(Node(X, (1,))).call
    for other in ((1, 2), 1):
        assert list(map(str, mine.diff(trace(Node(X, other)).call))) == [
            f"`tree.mark`: compiled for (1,), given {other!r} (static value)"
        ]


def test_two_static_fields_of_one_value():
    """Static fields that hold the same object are told apart by their own names."""

    class Two(eqx.Module):
        first: int = eqx.field(static=True)
        second: int = eqx.field(static=True)
        third: int

        def __init__(self, first, second, third):
            self.third = third
            self.second = second
            self.first = first

    trace = staged.jit(lambda tree: 0).trace
    mine = trace(Two(1, 1, 1)).call
    for values, name, given in (((1, 2, 1), "second", 2), ((3, 1, 1), "first", 3)):
        assert list(map(str, mine.diff(trace(Two(*values)).call))) == [
            f"`tree.{name}`: compiled for 1, given {given} (static value)"
        ]


def test_two_static_fields_of_a_dataclass_of_one_value():
    """So are those of a dataclass that is registered with their names."""
    trace = staged.jit(lambda tree: 0).trace
    mine = trace(Record(0, 0, 0)).call
    for values, name in (
        ((0, 5, 0), "mark"),
        ((0, 0, 5), "more"),
        ((5, 0, 0), "value"),
    ):
        assert list(map(str, mine.diff(trace(Record(*values)).call))) == [
            f"`tree.{name}`: compiled for 0, given 5 (static value)"
        ]


@pytest.mark.parametrize(
    ("dtype", "answer"),
    [
        ("float32", True),
        ("int64", True),
        ("bool", True),
        ("complex128", True),
        (jnp.bfloat16, True),
        ("U1", False),
        ("S1", False),
        ("object", False),
        ("datetime64[D]", False),
        ("timedelta64[s]", False),
        ("V2", False),
        (np.longdouble, False),
        ([("a", "int32")], False),
    ],
    ids=str,
)
def test_dtypes_that_jax_can_hold(dtype, answer):
    """JAX has arrays of numbers and bools, and of nothing else."""
    assert holdable(np.dtype(dtype)) is answer


@pytest.mark.parametrize(
    "scalar",
    [
        np.str_("a"),
        np.bytes_(b"a"),
        np.datetime64("2020-01-01"),
        np.timedelta64(1, "D"),
        np.longdouble(1.5),
        np.void(b"ab"),
    ],
    ids=repr,
)
def test_numpy_scalars_that_jax_cannot_hold_are_static(scalar):
    """A NumPy scalar that is no number for JAX is static, in and out, with its type."""
    jitted = staged.jit(lambda x, scalar: (x, scalar))
    compiled = jitted.trace(X, scalar).lower().compile()
    for result in (jitted(X, scalar), compiled(X, scalar)):
        assert type(result[1]) is type(scalar)
        assert result[1] == scalar
    assert jitted.trace(X, type(scalar)(scalar)).call == compiled.call


def test_a_numpy_scalar_with_objects_inside():
    """A structured scalar is compared by its value if its bytes are addresses."""
    dtype = [("name", object)]
    one, same = (np.array([("".join(("a", "b")),)], dtype)[0] for _ in range(2))
    try:
        hash(one)
    except TypeError:
        with pytest.raises(staged.StaticLeafError):
            JITTED(X, one)
    else:
        assert JITTED.trace(X, one).call == JITTED.trace(X, same).call


@dataclasses.dataclass(frozen=True)
class Config:
    """A frozen dataclass with a generated `==`, for which `1` is `True`."""

    n: object


@attrs.frozen
class AttrsConfig:
    """The same of attrs."""

    n: object


@dataclasses.dataclass(frozen=True)
class Trusting:
    """A dataclass with an `==` of its own, which is believed."""

    n: int

    def __eq__(self, other):
        return isinstance(other, Trusting) and self.n % 10 == other.n % 10

    def __hash__(self):
        return self.n % 10


class Percent(float):
    """A float of another type."""


class Phase(complex):
    """A complex number of another type."""


@pytest.mark.parametrize(
    ("value", "same", "other"),
    [
        (Config(1), Config(1), Config(True)),
        (Config(0.0), Config(0.0), Config(-0.0)),
        (Config((1, NAN)), Config((1, fresh_nan())), Config((1.0, NAN))),
        (AttrsConfig(1), AttrsConfig(1), AttrsConfig(1.0)),
        (AttrsConfig(Config(1)), AttrsConfig(Config(1)), AttrsConfig(Config(True))),
        (Trusting(1), Trusting(11), Trusting(2)),
        (Percent(0.0), Percent(0.0), Percent(-0.0)),
        (Percent(NAN), Percent(fresh_nan()), NAN),
        (Phase(0j), Phase(0j), Phase(complex(0.0, -0.0))),
        (decimal.Decimal("1.0"), decimal.Decimal("1.0"), decimal.Decimal("1.00")),
        (range(0, 3, 2), range(0, 3, 2), range(0, 4, 2)),
        (
            datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
            datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
            datetime.datetime(2020, 1, 1, 1, tzinfo=datetime.UTC),
        ),
        (pathlib.PurePosixPath("a"), pathlib.PurePosixPath("a"), "a"),
    ],
    ids=repr,
)
def test_values_that_only_look_equal(value, same, other):
    """What is equal to Python but computes otherwise is another value, in any field."""
    first = JITTED.trace(X, value).call
    assert first == JITTED.trace(X, same).call
    assert first != JITTED.trace(X, other).call
    assert first.diff(JITTED.trace(X, same).call) == ()
    assert [d.path for d in first.diff(JITTED.trace(X, other).call)] == ["thing"]
    compiled = JITTED.trace(X, value).lower().compile()
    np.testing.assert_array_equal(compiled(X, same), JITTED(X, same))
    with pytest.raises(staged.CallMismatchError):
        compiled(X, other)


class Slots:
    """An object with a private attribute in a slot."""

    __slots__ = ("__hidden",)

    def __init__(self, value):
        self.__hidden = value

    def __repr__(self):
        return "Slots()"


class Unprintable:
    """An object whose `repr` fails."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        raise RuntimeError("no text")


class Readonly(Mapping):
    """A mapping of its own kind, compared by identity."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, data):
        self.data = data

    def __getitem__(self, key):
        return self.data[key]

    def __iter__(self):
        return iter(self.data)

    def __len__(self):
        return len(self.data)

    def __repr__(self):
        return "Readonly()"


@pytest.mark.parametrize(
    ("thing", "held", "shown"),
    [
        (Plain(collections.deque([1, X])), ".value[1]", None),
        (Plain(types.SimpleNamespace(a=X)), ".value.a", None),
        (Plain(Config(X)), ".value.n", None),
        (Readonly({"k": X}), "['k']", None),
        (Slots(X), ".__hidden", None),
        (Unprintable(X), ".value", "<Unprintable>"),
        (Plain({Unprintable(1): X}), ".value[<Unprintable>]", None),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_arrays_that_hide_are_found(thing, held, shown):
    """However an object holds an array, its path is in the error, and no failure."""
    with pytest.raises(staged.StaticLeafError) as caught:
        JITTED(X, thing)
    text = shown or repr(thing)
    assert str(caught.value) == (
        f"`use`: the static value at `thing` holds an array, at `thing{held}`.\n"
        f"  `thing` is of type `{type(thing).__name__}`, {text}, {HOLDS}"
    )
