"""The calls of a Compiled and of a Jitted, where something is out of the ordinary."""

import functools

import beartype
import beartype.roar
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import staged
from staged import _jax, _options, _programs, _signature


X = jnp.arange(3.0)


class Fraction(eqx.Module):
    """A module with a static number."""

    x: jax.Array
    part: float = eqx.field(static=True)


class Quarrelsome:
    """A static value that can be compared with itself alone."""

    def __eq__(self, other):
        if self is not other:
            raise RuntimeError("it will not be compared")
        return True

    def __hash__(self):
        return 0


@jax.tree_util.register_pytree_node_class
class Box:
    """A node with any static data."""

    def __init__(self, x, data):
        self.x, self.data = x, data

    def tree_flatten(self):
        return (self.x,), self.data

    @classmethod
    def tree_unflatten(cls, data, children):
        return cls(children[0], data)


def test_a_static_field_that_is_nan_is_the_same_field():
    """NaN is NaN, although the structure's own comparison says otherwise."""
    compiled = staged.jit(lambda m: m.x * 2).lower(Fraction(X, float("nan"))).compile()
    other = Fraction(X, -float("nan"))
    structures = map(jax.tree.structure, (other, compiled.call.args[0]))
    assert len(set(structures)) == 2
    np.testing.assert_array_equal(compiled(other), X * 2)


def test_static_data_that_cannot_be_compared():
    """Static data whose `==` raises is another value, found without that error."""
    first, second = Box(X, Quarrelsome()), Box(X, Quarrelsome())
    jitted = staged.jit(lambda box: box.x * 2)
    np.testing.assert_array_equal(jitted(first), X * 2)
    with pytest.raises(RuntimeError, match="it will not be compared"):
        jitted.lower(first).compile()(second)


@pytest.mark.parametrize(
    ("name", "value", "usual"),
    [
        ("enable_x64", True, False),
        ("default_matmul_precision", "highest", None),
        ("numpy_dtype_promotion", "standard", "strict"),
        ("numpy_rank_promotion", "allow", "raise"),
        ("threefry_partitionable", False, True),
    ],
)
def test_another_numeric_context_is_refused(name, value, usual):
    """A program made in one context is not called in one that computes otherwise."""
    compiled = staged.jit(lambda x: x * 2).lower(X).compile()
    option = f"jax_{name}"
    jax.config.update(option, value)
    try:
        with pytest.raises(staged.CallMismatchError) as caught:
            compiled(X)
    finally:
        jax.config.update(option, usual)
    assert str(caught.value) == (
        "`<lambda>`: the call is not the one that it was compiled for.\n"
        f"  `jax.config.{name}`: compiled for {usual!r}, given {value!r} (context)\n"
        "Call it as it was traced, stage it anew for this call, or call the jitted "
        "function, which compiles whatever it is called with."
    )
    np.testing.assert_array_equal(compiled(X), X * 2)


def test_another_mesh_is_not(mesh):
    """The mesh that is set decides no numbers: an array's sharding is checked."""
    compiled = staged.jit(lambda x, n: x * n).lower(X, 2).compile()
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(compiled(X, 2), X * 2)
        with pytest.raises(staged.CallMismatchError) as caught:
            compiled(X, 3)
    (difference,) = caught.value.differences
    assert str(difference) == "`n`: compiled for 2, given 3 (static value)"


def test_a_strong_type_may_be_weak():
    """A weak argument is taken where a strong one was traced, and is no difference."""
    compiled = staged.jit(lambda x, n: x * n).lower(jnp.float32(1.0), 2).compile()
    assert compiled(jnp.asarray(3.0), 2) == 6.0
    with pytest.raises(staged.CallMismatchError) as caught:
        compiled(jnp.asarray(3.0), 3)
    assert [d.kind for d in caught.value.differences] == ["static value"]


def test_disable_jit_counts_as_top_level():
    """A compiled program runs under `jax.disable_jit`, and is checked there too."""
    compiled = staged.jit(lambda x: x * 2).lower(X).compile()
    with jax.disable_jit():
        np.testing.assert_array_equal(compiled(X), X * 2)
        with pytest.raises(staged.CallMismatchError):
            compiled(X[:2])


def test_equinox_error_at_the_first_call():
    """The stack that Equinox shows ends at the call when that call traces, too."""

    def positive(x):
        return eqx.error_if(x, x < 0, "it is negative")

    with pytest.raises(eqx.EquinoxRuntimeError) as caught:
        staged.jit(positive)(X - 5.0)
    text = str(caught.value)
    assert "in positive" in text
    assert "in test_equinox_error_at_the_first_call" not in text


def test_another_failure_in_a_program_with_error_if():
    """A program that holds Equinox's callback keeps the errors of other callbacks."""

    def fail(x):
        raise ValueError("of the host: its file was deleted")  # no buffer

    def both(x):
        x = eqx.error_if(x, x < 0, "it is negative")
        return jax.pure_callback(fail, jax.ShapeDtypeStruct((3,), jnp.float32), x)

    for call in (staged.jit(both), staged.jit(both).lower(X).compile()):
        with pytest.raises(jax.errors.JaxRuntimeError, match="of the host: its file"):
            call(X)


def test_programs_are_bounded(monkeypatch):
    """The oldest program goes when there are too many, and is made again if needed."""
    monkeypatch.setattr(_programs, "LIMIT", 2)
    traced = []

    @staged.jit
    def scale(x, n):
        traced.append(n)
        return x * n

    for n in (1, 2, 3, 3, 1):
        np.testing.assert_array_equal(scale(X, n), X * n)
    assert traced == [1, 2, 3, 1]


def test_a_program_goes_with_its_static_function():
    """What was made for a function that no longer exists is forgotten with it."""
    apply = staged.jit(lambda f, x: f(x))
    programs = apply._entry.programs
    for _ in range(3):
        np.testing.assert_array_equal(apply(lambda x: x + 1, X), X + 1)
    np.testing.assert_array_equal(apply(jnp.negative, X), -X)
    assert len(programs) == 1


def test_a_failing_comparison_does_not_find_a_wrong_program():
    """Static data whose `==` raises is no reason to run what was made for other data.

    The error of the data themselves shows.
    """
    boxes = [Box(X, Quarrelsome()), Box(X, Quarrelsome())]
    traced = []

    @staged.jit
    def double(box):
        traced.append(box.data)
        return box.x * 2

    double(boxes[0])
    with pytest.raises(RuntimeError, match="it will not be compared"):
        double(boxes[1])
    assert traced == [boxes[0].data]


def test_plans_of_spellings_are_bounded(monkeypatch):
    """Beyond a number of spellings, new ones are bound each time, and right."""
    monkeypatch.setattr(_signature, "PLANS", 1)
    jitted = staged.jit(lambda x, n: x * n)
    for _ in range(2):
        np.testing.assert_array_equal(jitted(X, n=2), X * 2)
        np.testing.assert_array_equal(jitted(x=X, n=3), X * 3)
        np.testing.assert_array_equal(jitted(n=4, x=X), X * 4)


class Holder:
    """A plain object that holds an array and has a method."""

    def __init__(self, array):
        self.array = array

    def get(self):
        return self.array


def name_captured(function):
    """The name that is found for the one constant of a function."""
    (constant,) = staged.jit(function).trace(X).captured
    return constant.name


def test_captured_arrays_are_found_behind_methods_and_partials():
    """A constant has the name by which the code reaches it, through callables too."""
    weights = jnp.full((5, 3), 2.0)
    get = Holder(weights).get
    assert name_captured(lambda x: x + get().sum(0)) == "self.array"
    total = functools.partial(jnp.sum, weights, axis=0)
    assert name_captured(lambda x: x + total()) == "total.args[0]"
    named = functools.partial(lambda a, array: a + array.sum(0), array=weights)
    assert name_captured(lambda x: named(x)) == "array"


def test_a_variable_without_a_value_is_passed_over():
    """A closure may refer to a variable that has no value yet."""
    weights = jnp.full((5, 3), 2.0)

    def uses(x):
        return x + weights.sum(0) if x.ndim else later

    assert name_captured(uses) == "weights"
    later = None
    assert later is None


def test_the_line_that_uses_a_nameless_tracer_is_found():
    """Without a name, the error says where the tracer is used, past other lines."""

    def outer(x):
        hidden = iter([x * 2])

        def inner(y):
            y = y + 1
            y = y * 3
            return y + next(hidden)

        staged.jit(inner).trace(X)

    with pytest.raises(staged.ClosedOverTracerError) as caught:
        jax.make_jaxpr(outer)(X)
    line = str(caught.value).splitlines()[1]
    assert line.startswith("  a tracer of jit/make_jaxpr/eval_shape")
    assert "float32[3], used at " in line
    assert "test_calling.py" in line


def test_a_backend_without_text_leaves_donation_open(monkeypatch):
    """Where an executable has no text, nothing is known of its buffers."""
    compiled = jax.jit(lambda x: x + 1).lower(X).compile()
    monkeypatch.setattr(type(compiled), "as_text", lambda self: None)
    assert _jax.aliased_arguments(compiled, 1) == [None]


def test_a_callable_with_a_name_is_shown_by_it():
    """A static callable without a text of its own is shown by its name."""

    class Named:
        __name__ = "activation"

        def __call__(self, x):
            return x

    record = staged.jit(lambda f, x: f(x)).trace(Named(), X).call
    assert repr(record).splitlines()[1] == "  f = <function activation>"


class Scale(eqx.Module):
    """A callable Module whose call has a parameter named `self` by another name."""

    weight: jax.Array

    def __call__(this, self):
        return this.weight * self


def test_a_callable_whose_parameter_is_named_self():
    """The function's own arrays get a path that no parameter has."""
    record = staged.jit(Scale(X)).trace(X).call
    assert list(record.dynamic) == ["self_.weight", "self"]


def test_a_bound_method_without_its_leaves():
    """The tree of a jitted bound method can be emptied, and filled again."""

    class Plain:
        pass

    jax.tree_util.register_pytree_node(
        Plain, lambda p: ((p.w,), None), lambda _, w: make(w[0])
    )

    def make(w):
        made = Plain()
        made.w = w
        return made

    def scale(self, x):
        return self.w * x

    jitted = staged.jit(scale.__get__(make(X)))
    leaves, treedef = jax.tree.flatten(jitted)
    assert len(leaves) == 1
    assert jax.tree.leaves(treedef.unflatten([None])) == []
    empty = jax.tree.unflatten(
        jax.tree.structure(jitted, is_leaf=is_plain(Plain)), [None]
    )
    assert jax.tree.leaves(empty) == []
    np.testing.assert_array_equal(treedef.unflatten(leaves)(X), X * X)


def is_plain(kind):
    """A predicate for trees that end at a type of node."""
    return lambda node: isinstance(node, kind)


def test_an_abstract_mesh_can_be_read(mesh):
    """A sharding over a mesh without devices is recorded, compared and shown."""
    over = jax.sharding.NamedSharding(
        mesh.abstract_mesh, jax.sharding.PartitionSpec("x")
    )
    struct = jax.ShapeDtypeStruct((4,), jnp.float32, sharding=over)
    first, second = (staged.jit(jnp.negative).trace(struct).call for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert "over {'x': 2}" in repr(first)


def test_beartype_keeps_the_stages_of_a_function():
    """Where `beartype` puts a function in place of a Jitted, the methods are there."""

    @staged.jit
    def scale(x: jax.Array, n: int) -> jax.Array:
        return x * n

    wrapped = beartype.beartype(scale)
    assert not isinstance(wrapped, staged.Jitted)
    compiled = wrapped.trace(X, 2).lower().compile()
    np.testing.assert_array_equal(compiled(X, 2), X * 2)
    with pytest.raises(beartype.roar.BeartypeCallHintParamViolation):
        wrapped(X, "two")
    copied = functools.wraps(wrapped)(lambda x, n: x)
    assert not hasattr(copied, "trace")


def test_slots_and_static_parts_without_names():
    """An attribute that is declared and not set, and static data under no name."""

    class Slotted:
        __slots__ = ("__weakref__", "array", "other")

    empty, full = Slotted(), Slotted()
    full.array = X
    jitted = staged.jit(lambda s, x: x * 2)
    np.testing.assert_array_equal(jitted(empty, X), X * 2)
    with pytest.raises(staged.StaticLeafError) as caught:
        jitted(full, X)
    assert caught.value.path == "s.array"
    with pytest.raises(staged.StaticLeafError) as caught:
        jitted(Box(X, (1, [2], 3)), X)
    assert str(caught.value).splitlines()[1] == (
        "  `s.data` is of type `tuple`, (1, [2], 3): unhashable type: 'list'"
    )


def test_a_flattened_tree_in_static_data_is_a_value():
    """A list beside the structure that it was flattened from is compared by value."""
    jitted = staged.jit(lambda box: box.x * 2)
    record = jitted.trace(Box(X, ("a", *jax.tree.flatten([1, 2])))).call
    assert record == jitted.trace(Box(X, ("a", *jax.tree.flatten([1, 2])))).call
    assert record != jitted.trace(Box(X, ("a", *jax.tree.flatten([1, True])))).call
    with pytest.raises(staged.StaticLeafError):
        jitted.trace(Box(X, ("a", [1, 2], "no structure")))


def test_only_misplaced_arguments_are_named(mesh, devices):
    """Of two arguments, the one that is where `in_shardings` wants it is no fault."""
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    jitted = staged.jit(lambda a, b: a + b, in_shardings={"a": split, "b": split})
    here = jax.device_put(jnp.ones(4), split)
    np.testing.assert_array_equal(jitted(here, here), here + here)
    with pytest.raises(staged.CallMismatchError) as caught:
        jitted(here, jax.device_put(jnp.ones(4), devices[1]))
    assert [d.path for d in caught.value.differences] == ["b"]


def test_an_option_that_is_not_given_says_so():
    """The default of `out_shardings`, where `None` means something, has a name."""
    assert repr(_options.UNSPECIFIED) == "unspecified"


def test_a_nan_under_debug_nans():
    """What JAX reports of an invalid value is a `FloatingPointError` here, too."""
    compiled = staged.jit(lambda x: x / x).lower(X).compile()
    with jax.debug_nans(True), pytest.raises(FloatingPointError) as caught:
        compiled(X)
    assert str(caught.value).startswith(
        "`<lambda>`: a result holds an invalid value (nan). Call the function itself "
        "to see where it arises."
    )


def test_a_predicate_that_looks_at_values():
    """A predicate that needs a value has no answer for an abstract one."""
    jitted = staged.jit(
        lambda x: x, dynamic=lambda leaf: eqx.is_array(leaf) and float(leaf.sum()) > 0
    )
    for argument in (X, staged.abstract((3,), jnp.float32)):
        with pytest.raises(staged.OptionError) as caught:
            jitted.trace(argument)
        assert str(caught.value) == (
            "`dynamic` gives no answer for an abstract value of float32[3].\n"
            "  It raises ConcretizationTypeError.\n"
            "Let it look at types, shapes and dtypes alone, not at values."
        )


def test_a_device_that_is_none():
    """`device` takes a device of JAX, not its number."""
    with pytest.raises(staged.OptionError) as caught:
        staged.jit(lambda x: x, device=1)
    assert str(caught.value) == "`jit(device=...)` must be a device of JAX, given 1."


def test_a_slice_is_a_static_value():
    """A slice is compared by its members, on every Python."""
    jitted = staged.jit(lambda x, where: (x[where], where))
    compiled = jitted.lower(X, slice(0, 2)).compile()
    for call in (jitted, compiled):
        part, where = call(X, slice(0, 2))
        np.testing.assert_array_equal(part, X[:2])
        assert where == slice(0, 2)
    np.testing.assert_array_equal(jitted(X, slice(1, None))[0], X[1:])
    with pytest.raises(staged.CallMismatchError) as caught:
        compiled(X, slice(0, True))
    (difference,) = caught.value.differences
    assert str(difference) == (
        "`where`: compiled for slice(0, 2, None), given slice(0, True, None) "
        "(static value)"
    )
