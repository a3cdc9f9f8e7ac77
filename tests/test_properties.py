"""Every way through the stages gives what the function gives, whatever the call."""

import dataclasses
import enum
import inspect
import itertools
from collections import OrderedDict, defaultdict, namedtuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import staged


EXAMPLES = settings(max_examples=40)


class Colour(enum.Enum):
    """A static value of an enum."""

    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    """A static value that is equal to an `int`."""

    LOW = 1


Pair = namedtuple("Pair", ["first", "second"])


@jtu.register_dataclass
@dataclasses.dataclass
class Record:
    """A registered dataclass."""

    value: object
    mark: object = dataclasses.field(metadata={"static": True})


class Model(eqx.Module):
    """A Module with a static field, which comes first so that orders differ."""

    mark: object = eqx.field(static=True)
    value: object = None


@jtu.register_pytree_with_keys_class
class Node:
    """A node with static data of its own."""

    def __init__(self, value, mark):
        self.value = value
        self.mark = mark

    def tree_flatten_with_keys(self):
        """Its child with its name, and its static data."""
        return ((jtu.GetAttrKey("value"), self.value),), self.mark

    @classmethod
    def tree_unflatten(cls, mark, children):
        """The node again."""
        return cls(children[0], mark)


MARKED = (Record, Model, Node)

FUNCTIONS = (abs, jnp.sin, lambda x: x)
DTYPES = tuple(
    map(jnp.dtype, ("float32", "bfloat16", "float16", "int32", "uint8", "bool"))
)
SHAPES = ((), (1,), (3,), (2, 2), (2, 0))

shapes = st.sampled_from(SHAPES)
dtypes = st.sampled_from(DTYPES)
strong = st.builds(jnp.ones, shapes, dtypes)
weak = st.sampled_from([0.5, 2, 3.0]).map(jnp.asarray)
keys = st.builds(
    lambda seed, batched: jax.random.split(seed, 2) if batched else seed,
    st.integers(0, 3).map(jax.random.key),
    st.booleans(),
)
numpy_arrays = st.builds(
    lambda shape, dtype: np.ones(shape, dtype),
    shapes,
    st.sampled_from(["float64", "int64", "float32", "bool", "complex64"]),
)
numpy_scalars = st.sampled_from(
    [np.float64(0.5), np.float32(2), np.int8(3), np.bool_(True)]
)
arrays = st.one_of(strong, weak, keys, numpy_arrays, numpy_scalars)

statics = st.one_of(
    st.integers(-2, 2),
    st.booleans(),
    st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf"), 1j]),
    st.sampled_from(["", "name", b"bytes", *Colour, *Level, *FUNCTIONS, int, ...]),
    st.sampled_from([frozenset(), frozenset((1, "a")), np.str_("text"), range(3)]),
)
# No two of them are equal: a call compares static fields by their own `==`.
marks = st.sampled_from(
    [2, 0.5, float("nan"), "name", b"", Colour.RED, jnp.sin, None, (1, (2.0, "a"))]
)
leaves = st.one_of(arrays, statics, st.none())


def containers(children):
    """Nodes of every kind over some children."""
    few = st.lists(children, max_size=2)
    named = st.dictionaries(st.sampled_from("abc"), children, max_size=2)
    return st.one_of(
        few,
        few.map(tuple),
        named,
        named.map(lambda tree: OrderedDict(reversed(tree.items()))),
        named.map(lambda tree: defaultdict(list, tree)),
        st.builds(Pair, children, children),
        st.builds(Record, children, marks),
        st.builds(lambda value, mark: Model(mark, value), children, marks),
        st.builds(Node, children, marks),
    )


trees = st.recursive(leaves, containers, max_leaves=5)


def work(leaf):
    """Compute with an array, of whatever kind; leave the rest as it is."""
    if not is_array(leaf):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    leaf = jnp.asarray(leaf)
    return ~leaf if leaf.dtype == bool else leaf + leaf


def worked(*args, **kwargs):
    """A function of anything."""
    return jtu.tree_map(work, (args, kwargs))


def is_array(leaf):
    """Whether JAX computes with a leaf."""
    return eqx.is_array(leaf) and not isinstance(leaf, np.str_)


def described(tree, *, values=True, weak_types=True):
    """A tree as plain data that is equal for equal trees only, types included."""

    def leaf_data(leaf):
        if not is_array(leaf) and not isinstance(leaf, jax.ShapeDtypeStruct):
            return type(leaf), repr(leaf)
        data = [leaf.shape, leaf.dtype]
        if weak_types:
            data.append(bool(leaf.weak_type))
        if values:
            data.append(np.asarray(leaf).tolist())
        return repr(data)

    flat, treedef = jtu.tree_flatten(tree)
    return str(treedef), [leaf_data(leaf) for leaf in flat]


def through_jax(transform, jitted, args, kwargs):
    """The result under a transformation of JAX that takes the arrays as its inputs."""
    dynamic, static = eqx.partition((args, kwargs), is_array)
    kept = []

    def over_arrays(dynamic):
        args, kwargs = eqx.combine(dynamic, static)
        arrays, rest = eqx.partition(jitted(*args, **kwargs), is_array)
        kept.append(rest)
        return arrays

    return eqx.combine(transform(over_arrays)(dynamic), kept[-1])


def batched(fun):
    """`jax.vmap` over a batch of one, which is taken off the result again."""

    def call(tree):
        batch = jtu.tree_map(lambda leaf: jnp.asarray(leaf)[None], tree)
        if not jtu.tree_leaves(batch):
            return fun(tree)
        out = jax.vmap(fun)(batch)
        return jtu.tree_map(lambda leaf: leaf[0], out)

    return call


def assert_every_way_agrees(fun, args, kwargs):
    """Each way to call a jitted function gives what the function gives."""
    expected = described(fun(*args, **kwargs))
    jitted = staged.jit(fun)
    assert described(jitted(*args, **kwargs)) == expected
    assert described(jitted(*args, **kwargs)) == expected
    compiled = jitted.trace(*args, **kwargs).lower().compile()
    assert described(compiled(*args, **kwargs)) == expected
    assert described(compiled(*args, **kwargs)) == expected
    assert described(through_jax(jax.jit, jitted, args, kwargs)) == expected
    loose = described(fun(*args, **kwargs), weak_types=False)
    vmapped = through_jax(batched, jitted, args, kwargs)
    assert described(vmapped, weak_types=False) == loose
    abstract = described(fun(*args, **kwargs), values=False)
    assert described(jitted.eval_shape(*args, **kwargs), values=False) == abstract
    for stage in (jitted.trace(*args, **kwargs), compiled):
        assert described(stage.out_info, values=False) == abstract


NAMES = ("self", "fun", "args", "kwargs", "cls", "call", "x", "name", "staging")
KINDS = inspect.Parameter
ARRAY = jnp.ones(2)
MUTABLE = {1}
NOTHING = object()


@dataclasses.dataclass
class Call:
    """A function, and one call of it by parameter; `NOTHING` stands for a default."""

    fun: object
    parameters: list
    values: dict
    rest: tuple
    named: dict

    def spelled(self, count, explicit, backwards):
        """The call with `count` parameters by position, or `None` if that is none.

        `explicit` says whether defaults are written out.
        """
        args, kwargs = [], {}
        for index, (name, kind, default) in enumerate(self.parameters):
            value = self.values[name]
            if value is NOTHING:
                value = default if explicit else NOTHING
            by_position = kind is not KINDS.KEYWORD_ONLY and index < count
            left_out = value is NOTHING
            if by_position and left_out:
                return None
            if not by_position and kind is not KINDS.KEYWORD_ONLY:
                only = kind is KINDS.POSITIONAL_ONLY and not left_out
                if only or self.rest:
                    return None
            if left_out:
                continue
            if by_position:
                args.append(value)
            else:
                kwargs[name] = value
        kwargs |= self.named
        if backwards:
            kwargs = dict(reversed(kwargs.items()))
        return (*args, *self.rest), kwargs

    def spellings(self):
        """Every spelling of this call."""
        counts = range(len(self.parameters) + 1)
        ways = itertools.product(counts, (False, True), (False, True))
        spelled = [self.spelled(*way) for way in ways]
        return [spelling for spelling in spelled if spelling is not None]

    def __repr__(self):
        return f"{inspect.signature(self.fun)}: {self.spellings()[0]}"


@st.composite
def calls(draw):
    """A function with a signature of any kind, and a call of it."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=2, max_size=6))
    takes_rest, takes_named = draw(st.booleans()), draw(st.booleans())
    rest_name = names.pop() if takes_rest else None
    named_name = names.pop() if takes_named and names else None
    kinds = (KINDS.POSITIONAL_ONLY, KINDS.POSITIONAL_OR_KEYWORD, KINDS.KEYWORD_ONLY)
    order = sorted(draw(st.sampled_from(kinds)) for _ in names)
    parameters, values, must_default = [], {}, False
    for name, kind in zip(names, order, strict=True):
        has_default = draw(st.booleans())
        if kind is not KINDS.KEYWORD_ONLY:
            has_default = must_default = has_default or must_default
        default = NOTHING
        if has_default:
            default = draw(st.one_of(statics, st.sampled_from([None, ARRAY, MUTABLE])))
        omitted = has_default and draw(st.booleans())
        parameters.append((name, kind, default))
        values[name] = NOTHING if omitted else draw(leaves)
    rest, named = (), {}
    if rest_name is not None:
        rest = tuple(draw(st.lists(leaves, max_size=2)))
    if rest:  # every parameter before them has to be given
        for name, kind, _ in parameters:
            if values[name] is NOTHING and kind is not KINDS.KEYWORD_ONLY:
                values[name] = draw(leaves)
    if named_name is not None:
        free = [n for n, k, _ in parameters if k is KINDS.POSITIONAL_ONLY]
        free += [n for n in (*NAMES, "other") if n not in names]
        named = draw(st.dictionaries(st.sampled_from(free), leaves, max_size=2))
    fun = made_function(parameters, rest_name, named_name)
    return Call(fun, parameters, values, rest, named)


def made_function(parameters, rest_name, named_name):
    """A function that works on all its parameters, from its signature."""
    scope, words, last = {"worked": worked}, [], None
    for index, (name, kind, default) in enumerate(parameters):
        if last is KINDS.POSITIONAL_ONLY and kind is not last:
            words.append("/")
        if kind is KINDS.KEYWORD_ONLY and last is not kind:
            words.append("*" if rest_name is None else f"*{rest_name}")
        scope[f"default_{index}"] = default
        words.append(name if default is NOTHING else f"{name}=default_{index}")
        last = kind
    if last is KINDS.POSITIONAL_ONLY:
        words.append("/")
    if rest_name is not None and last is not KINDS.KEYWORD_ONLY:
        words.append(f"*{rest_name}")
    if named_name is not None:
        words.append(f"**{named_name}")
    used = [name for name, _, _ in parameters]
    used += [name for name in (rest_name, named_name) if name is not None]
    source = f"def made({', '.join(words)}):\n    return worked({', '.join(used)})\n"
    exec(source, scope)
    return scope["made"]


@EXAMPLES
@given(calls())
def test_every_way_agrees_for_every_signature(call):
    """Whatever the signature, each way to call gives what the function gives."""
    args, kwargs = call.spellings()[0]
    assert_every_way_agrees(call.fun, args, kwargs)


@EXAMPLES
@given(calls())
def test_spellings_of_one_call_are_one_record(call):
    """Each spelling of a call makes an equal record, and the compiled one takes it."""
    jitted = staged.jit(call.fun)
    spellings = call.spellings()
    args, kwargs = spellings[0]
    compiled = jitted.trace(*args, **kwargs).lower().compile()
    expected = described(call.fun(*args, **kwargs))
    for args, kwargs in spellings:
        record = jitted.trace(*args, **kwargs).call
        assert record == compiled.call
        assert hash(record) == hash(compiled.call)
        assert compiled.call.diff(record) == ()
        assert described(compiled(*args, **kwargs)) == expected


@EXAMPLES
@given(calls())
def test_a_record_spells_its_own_call(call):
    """The arguments that a record shows make an equal record again."""
    jitted = staged.jit(call.fun)
    args, kwargs = call.spellings()[-1]
    record = jitted.trace(*args, **kwargs).call
    assert jitted.trace(*record.args, **record.kwargs).call == record


@EXAMPLES
@given(trees)
@example(np.float64(1.0))
@example((jnp.asarray(1.0), 1, True, 1.0))
def test_every_way_agrees_for_every_tree(tree):
    """Whatever an argument's tree, each way to call gives what the function gives."""
    assert_every_way_agrees(worked, (tree,), {"tree": tree})


def places(tree, path=""):
    """Each value in a tree with its path as a user writes it, and how to replace it."""
    yield path, tree, lambda new: new
    if isinstance(tree, Pair):
        parts = [(f".{n}", v, n) for n, v in tree._asdict().items()]

        def replaced(key, new):
            return tree._replace(**{key: new})

    elif isinstance(tree, MARKED):
        parts = [(".value", tree.value, "value"), (".mark", tree.mark, "mark")]

        def replaced(key, new):
            fields = {"value": tree.value, "mark": tree.mark} | {key: new}
            return type(tree)(**fields)

    elif isinstance(tree, dict):
        parts = [(f"[{key!r}]", value, key) for key, value in tree.items()]

        def replaced(key, new):
            copied = tree.copy()
            copied[key] = new
            return copied

    elif isinstance(tree, (list, tuple)):
        parts = [(f"[{index}]", value, index) for index, value in enumerate(tree)]

        def replaced(key, new):
            return type(tree)([*tree[:key], new, *tree[key + 1 :]])

    else:
        return
    for step, value, key in parts:
        if step == ".mark":
            yield path + step, Mark(value), lambda new, key=key: replaced(key, new)
            continue
        for below, leaf, replace in places(value, path + step):
            yield (
                below,
                leaf,
                lambda new, key=key, replace=replace: replaced(key, replace(new)),
            )


@dataclasses.dataclass
class Mark:
    """The value of a static field."""

    value: object


OTHERS = (1, 1.0, True, 0.0, -0.0, float("nan"), "other", Level.LOW)
OTHER_MARKS = (7, 7.5, (1, (2.0, "b")), "other", Colour.BLUE, int)


def other_statics(value):
    """Static values not strictly equal to `value`, though perhaps `==` to it."""
    data = type(value), repr(value)
    return [other for other in OTHERS if (type(other), repr(other)) != data]


def mutations(value):
    """Other values for a place, each with the kinds of difference that it makes."""
    if isinstance(value, Mark):
        yield from ((other, ("static value",)) for other in OTHER_MARKS)
    elif is_array(value):
        dtype = jax.typeof(value).dtype
        is_weak = bool(jax.typeof(value).weak_type)
        yield "static", ("structure",)
        yield None, ("structure",)
        yield [value], ("structure",)
        if is_weak:
            yield jnp.asarray(value, dtype), ("weak type",)
            yield jnp.asarray(1 if dtype == jnp.float32 else 1.0), ("dtype",)
        elif not jnp.issubdtype(dtype, jax.dtypes.prng_key):
            yield jnp.ones((7, *np.shape(value)), dtype), ("shape",)
            yield jnp.ones(np.shape(value), jnp.uint16), ("dtype",)
            yield jnp.ones((7,), jnp.uint16), ("shape", "dtype")
    elif value is None:
        yield from ((other, ("structure",)) for other in (1, ARRAY, []))
    elif jtu.all_leaves([value]):
        yield ARRAY, ("structure",)
        yield None, ("structure",)
        yield from ((other, ("static value",)) for other in other_statics(value))


@st.composite
def mutated(draw):
    """A tree, the same with one leaf changed, its path, and the kinds of difference."""
    tree = draw(trees)
    candidates = [
        (path, replace(new), kinds)
        for path, value, replace in places(tree)
        for new, kinds in mutations(value)
    ]
    if not candidates:
        tree = (tree, 0)
        candidates = [("[1]", (tree[0], 1), ("static value",))]
    path, other, kinds = draw(st.sampled_from(candidates))
    return tree, other, path, kinds


JITTED = staged.jit(worked)


def one(tree):
    """A function of one tree."""
    return jtu.tree_map(work, tree)


ONE = staged.jit(one)


@settings(max_examples=100)
@given(mutated())
def test_any_mutation_is_refused_by_its_path(case):
    """A compiled call refuses a change of any one leaf, and says which and how."""
    tree, other, path, kinds = case
    compiled = ONE.trace(tree).lower().compile()
    given_call = ONE.trace(other).call
    expected = [(f"tree{path}", kind) for kind in kinds]
    found = compiled.call.diff(given_call)
    assert [(d.path, d.kind) for d in found] == expected
    assert compiled.call != given_call
    with pytest.raises(staged.CallMismatchError) as caught:
        compiled(other)
    assert [(d.path, d.kind) for d in caught.value.differences] == expected
    lines = str(caught.value).splitlines()
    assert lines[1 : 1 + len(kinds)] == [f"  {d}" for d in found]


@pytest.mark.parametrize("kind", MARKED)
@pytest.mark.parametrize(
    ("mark", "other"), [(1, True), (1, 1.0), ((1, 2), (1, 2.0)), (0.0, -0.0)]
)
def test_records_compare_static_fields_strictly(kind, mark, other):
    """Two records differ by a static field whose `==` takes one value for the other."""
    first, second = (
        ONE.trace(kind(value=ARRAY, mark=value)).call for value in (mark, other)
    )
    assert first != second
    assert list(map(str, first.diff(second))) == [
        f"`tree.mark`: compiled for {mark!r}, given {other!r} (static value)"
    ]


@EXAMPLES
@given(mutated())
def test_a_mutation_is_never_served_by_another_program(case):
    """The jitted function gives each of two similar calls its own result."""
    tree, other, _, _ = case
    for argument in (tree, other, tree):
        assert described(ONE(argument)) == described(one(argument))


@settings(max_examples=100)
@given(trees, trees)
def test_a_diff_is_empty_exactly_for_equal_records(tree, other):
    """Of two records, the diff is empty if and only if they are equal."""
    first, second = (JITTED.trace(item).call for item in (tree, other))
    assert (first.diff(second) == ()) == (first == second)
    assert (first == second) == (second == first)
    if first == second:
        assert hash(first) == hash(second)


@settings(max_examples=60)
@given(trees)
def test_equal_trees_make_equal_records(tree):
    """A copy of a tree, with fresh arrays and a fresh NaN, makes an equal record."""

    def copied(leaf):
        if type(leaf) is float:
            return float(repr(leaf))
        return jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf

    record = JITTED.trace(tree).call
    again = JITTED.trace(jtu.tree_map(copied, tree)).call
    assert record == again
    assert hash(record) == hash(again)
    assert record.diff(again) == ()


@settings(max_examples=30)
@given(st.sampled_from([0.5, 2]), trees)
def test_a_weak_type_may_stand_for_a_strong_one(number, tree):
    """A call traced strong takes a weak array, since no dtype of its result changes."""
    strong_one = jnp.asarray(number, jnp.asarray(number).dtype)
    compiled = ONE.trace((strong_one, tree)).lower().compile()
    expected = described(one((strong_one, tree)))
    assert described(compiled((jnp.asarray(number), tree))) == expected
