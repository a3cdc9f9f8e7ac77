"""Types at run time: records, the public names, methods, and a user's type checkers."""

import ast
import inspect
import os
import pathlib
import pickle
import subprocess
import sys
import typing

import attrs
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation

import staged


X = jnp.arange(3.0, dtype=jnp.float32)


@staged.jit(donate="x")
def scale(x, n):
    """N times an array."""
    return n * x


@pytest.fixture(scope="module")
def traced():
    """The first stage of a call."""
    return scale.trace(X, 2)


@pytest.fixture(scope="module")
def lowered(traced):
    """The second one."""
    return traced.lower()


@pytest.fixture(scope="module")
def compiled(lowered):
    """The third one."""
    return lowered.compile()


@pytest.fixture(scope="module")
def records(traced, lowered, compiled):
    """One of each public record."""
    constant = jnp.ones(2)
    other = scale.trace(X, 3).call
    return (
        traced,
        lowered,
        compiled,
        traced.call,
        traced.call.context,
        traced.call.diff(other)[0],
        lowered.cost_analysis(),
        compiled.memory_analysis(),
        staged.jit(lambda: constant + 1).trace().captured[0],
    )


def _public():
    return {name: getattr(staged, name) for name in staged.__all__}


def _record_classes():
    return [c for c in _public().values() if inspect.isclass(c) and attrs.has(c)]


def test_every_public_record_is_looked_at(records):
    """The other tests of records leave none out."""
    assert {type(record) for record in records} == set(_record_classes())


def test_frozen(records):
    """No attribute of a record can be assigned or deleted, private ones included."""
    for record in records:
        for field in attrs.fields(type(record)):
            value = getattr(record, field.name)
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                setattr(record, field.name, value)
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                delattr(record, field.name)
        with pytest.raises(AttributeError):
            record.anything = 1


def test_keyword_only(records):
    """A record is made by keywords alone."""
    for record in records:
        values = [getattr(record, f.name) for f in attrs.fields(type(record))]
        with pytest.raises(TypeError, match="positional argument"):
            type(record)(*values)


def test_checked_on_construction(records):
    """Each annotated field of each record refuses a value of another type."""
    wrong = object()
    for record in records:
        fields = attrs.fields(type(record))
        right = {f.alias: getattr(record, f.name) for f in fields}
        type(record)(**right)
        checked = [f for f in fields if f.type not in ("Any", typing.Any)]
        assert checked
        for field in checked:
            with pytest.raises(BeartypeCallHintViolation):
                type(record)(**{**right, field.alias: wrong})


def test_checked_when_evolved(records):
    """So does `attrs.evolve`."""
    for record in records:
        first = attrs.fields(type(record))[0]
        with pytest.raises(BeartypeCallHintViolation):
            attrs.evolve(record, **{first.alias: object()})


def test_checked_on_transitions(traced, lowered, compiled):
    """The options of a transition are checked too, as is a function to swap in."""
    with pytest.raises(BeartypeCallHintViolation):
        traced.lower(lowering_platforms="cpu")
    with pytest.raises(BeartypeCallHintViolation):
        traced.lower(lowering_platforms=["cpu"])
    with pytest.raises(BeartypeCallHintViolation):
        lowered.compile(compiler_options=[("xla_dump_to", "")])
    with pytest.raises(BeartypeCallHintViolation):
        lowered.as_text("llvm")
    with pytest.raises(BeartypeCallHintViolation):
        lowered.as_text(platform=0)
    with pytest.raises(BeartypeCallHintViolation):
        compiled.with_fun("scale")
    with pytest.raises(BeartypeCallHintViolation):
        traced.call.diff(traced)


def test_check_costs_a_call_nothing():
    """The calls themselves are no wrappers: beartype has nothing to check in them."""
    for call in (staged.Compiled.__call__, staged.Jitted.__call__):
        assert pathlib.Path(call.__code__.co_filename).parent.name == "staged"


def _sources():
    for path in pathlib.Path(staged.__file__).parent.rglob("*.py"):
        yield path.name, ast.parse(path.read_text("utf-8"))


def test_beartype_stands_outside_attrs():
    """In the source, `beartype` stands outside of `attrs.frozen` wherever it stands."""
    seen = set()
    for _, tree in _sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            names = [ast.unparse(d).partition("(")[0] for d in node.decorator_list]
            if "checked" in names:
                assert names.index("checked") < names.index("attrs.frozen"), node.name
                seen.add(node.name)
    assert {cls.__name__ for cls in _record_classes()} <= seen


def test_annotations_that_beartype_can_read():
    """A module with a `ParamSpec` has real annotations; none has a `Self`."""
    for name, tree in _sources():
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert not imported & {"Self"}, name
        assert not {"ParamSpec", "annotations"} <= imported, name


def test_final():
    """Every public class is final, but for the root of the errors."""
    classes = {name: c for name, c in _public().items() if inspect.isclass(c)}
    final = {name for name, c in classes.items() if getattr(c, "__final__", False)}
    assert set(classes) - final == {"StagedError"}


def test_no_dict_and_no_default_equality(traced, lowered, compiled):
    """Stages are slotted, and compare by identity: two of a call may differ inside."""
    for stage in (traced, lowered, compiled):
        assert not hasattr(stage, "__dict__")
        assert stage == stage
        assert attrs.evolve(stage) != stage
        assert hash(stage) != hash(attrs.evolve(stage))


def test_generic():
    """The stages and `Jitted` take parameters and a result, also at run time."""
    for cls in (staged.Jitted, staged.Traced, staged.Lowered, staged.Compiled):
        assert cls[[int], str].__origin__ is cls


def test_public_names():
    """A name is public on purpose."""
    assert staged.__all__ == [
        "AbstractArgumentError",
        "ArgumentTypeError",
        "BoundCall",
        "CallMismatchError",
        "CapturedConstant",
        "ClosedOverTracerError",
        "Compiled",
        "CompilerOptionError",
        "Context",
        "CostAnalysis",
        "Difference",
        "DonationError",
        "Jitted",
        "Lowered",
        "MemoryAnalysis",
        "OptionError",
        "PlatformMismatchError",
        "SignatureError",
        "StagedError",
        "StaticLeafError",
        "TopLevelOnlyError",
        "Traced",
        "abstract",
        "jit",
    ]
    visible = {n for n, v in vars(staged).items() if not inspect.ismodule(v)}
    assert {n for n in visible if not n.startswith("_")} == set(staged.__all__)


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (
            staged.Jitted,
            ["clear_cache", "eval_shape", "lower", "staging", "trace", "tree_flatten"],
        ),
        (
            staged.Traced,
            ["call", "captured", "fun", "fun_name", "jaxpr", "lower", "out_info"],
        ),
        (
            staged.Lowered,
            [
                "as_text",
                "call",
                "compile",
                "cost_analysis",
                "fun",
                "fun_name",
                "out_info",
                "platforms",
            ],
        ),
        (
            staged.Compiled,
            [
                "as_text",
                "call",
                "cost_analysis",
                "fun",
                "fun_name",
                "input_shardings",
                "memory_analysis",
                "out_info",
                "output_shardings",
                "with_fun",
            ],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_public_members(cls, names):
    """What a stage has: an illegal transition is a method that is not there."""
    assert [name for name in dir(cls) if not name.startswith("_")] == names


def test_named_as_a_user_writes_them():
    """Every public class bears the package's name, in reprs and tracebacks."""
    for name, item in _public().items():
        assert item.__qualname__ == name
        assert item.__module__ == "staged" or inspect.isfunction(item)
    assert repr(staged.Traced) == "<class 'staged.Traced'>"


def test_pickled_by_that_name(records):
    """A record without arrays or programs can be pickled under it."""
    for record in records:
        if isinstance(record, (staged.CostAnalysis, staged.MemoryAnalysis)):
            assert pickle.loads(pickle.dumps(record)) == record
    assert pickle.loads(pickle.dumps(staged.Compiled)) is staged.Compiled


def _public_functions():
    for name, item in _public().items():
        yield name, item
        if inspect.isclass(item):
            for member, value in vars(item).items():
                function = value.fget if isinstance(value, property) else value
                if member.startswith("_") or not inspect.isfunction(function):
                    continue
                yield f"{name}.{member}", function


def test_docstrings():
    """Every public class, function, method and property says what it is."""
    for name, item in _public_functions():
        assert item.__doc__, name
        assert item.__doc__.partition("\n")[0].endswith((".", ":")), name


def test_annotations():
    """No public function has a parameter or a result without annotation."""
    for name, item in _public_functions():
        if inspect.isclass(item):
            continue
        signature = inspect.signature(item)
        assert signature.return_annotation is not signature.empty, name
        for parameter in signature.parameters.values():
            if parameter.name != "self":
                assert parameter.annotation is not parameter.empty, name


def test_overloads_of_jit_list_the_options():
    """What a type checker takes for an option is one, with that default."""
    bare, direct = (inspect.signature(o) for o in typing.get_overloads(staged.jit))
    options = {name: p.default for name, p in bare.parameters.items()}
    assert options == {
        name: p.default for name, p in direct.parameters.items() if name != "fun"
    }
    for name, default in options.items():
        assert staged.jit(**{name: default})(jnp.sin)(X).shape == (3,)


def test_abstract():
    """`staged.abstract` is JAX's own abstract value."""
    sharding = jax.device_put(0, jax.devices()[0]).sharding
    struct = staged.abstract((3,), jnp.bfloat16, sharding=sharding, weak_type=False)
    assert struct == jax.ShapeDtypeStruct((3,), jnp.bfloat16, sharding=sharding)
    assert staged.abstract((), "float32", weak_type=True).weak_type
    assert (
        scale.trace(staged.abstract((3,), "float32"), 2).call == scale.trace(X, 2).call
    )
    with pytest.raises(TypeError):
        staged.abstract((3,), "no dtype")


@pytest.mark.parametrize("shape", [3, "ab", (-1,), (2.0,), (True,), None, ((2,),)])
def test_an_abstract_value_has_a_shape(shape):
    """What is no tuple of sizes is refused at once, not by a later trace."""
    with pytest.raises(staged.OptionError) as caught:
        staged.abstract(shape, "float32")
    assert str(caught.value) == (
        f"`staged.abstract` takes a tuple of sizes as `shape`, given {shape!r}."
    )
    assert caught.value.option == "shape"


def test_an_abstract_value_has_sizes_of_every_kind():
    """NumPy's integers and JAX's symbolic sizes are sizes too."""
    assert staged.abstract((np.int32(3), 0), "float32").shape == (3, 0)
    (n,) = jax.export.symbolic_shape("n")
    assert staged.abstract((n, 2), "float32").shape == (n, 2)


class Model(eqx.Module):
    weight: jax.Array

    @staged.jit
    def loss(self, x):
        return (self.weight * x).sum()

    @staged.jit
    @classmethod
    def ones(cls, like):
        return cls(jnp.ones_like(like))

    @staged.jit(donate="none")
    @staticmethod
    def twice(x):
        return x + x

    @classmethod
    @staged.jit
    def inner_class(cls, like):
        return cls(jnp.ones_like(like))

    @staticmethod
    @staged.jit
    def inner_static(x):
        return x + x


class Child(Model): ...


class Plain:
    @staged.jit
    def loss(self, x):
        return x.sum()

    @staged.jit
    @classmethod
    def name(cls, x):
        return cls.__name__, x

    @staged.jit
    @staticmethod
    def twice(x):
        return x + x


@pytest.mark.parametrize("of", [Model, Model(X)], ids=["class", "instance"])
def test_jit_outside_static_method(of):
    """`jit` outside `staticmethod` has every stage, on the class and on an instance."""
    assert (of.twice(X) == X + X).all()
    assert (of.twice.trace(X).lower().compile()(X) == X + X).all()
    assert of.twice.eval_shape(X).shape == (3,)
    assert of.twice is Model.__dict__["twice"]


@pytest.mark.parametrize("of", [Child, Child(X)], ids=["class", "instance"])
def test_jit_outside_class_method(of):
    """`jit` outside `classmethod` has every stage, and binds the class it is on."""
    for result in (of.ones(X), of.ones.trace(X).lower().compile()(X)):
        assert type(result) is Child
        assert (result.weight == 1).all()
    assert type(of.ones.eval_shape(X)) is Child
    assert type(Model.ones(X)) is Model
    assert of.ones.trace(X).call.static == {"cls": Child}


def test_class_method_of_a_plain_class():
    """The same in a class that is no pytree; the instance is not looked at."""
    for of in (Plain, Plain()):
        name, x = of.name.trace(X).lower().compile()(X)
        assert (name, x.shape) == ("Plain", (3,))
        assert (of.twice(X) == X + X).all()
    assert Plain.__dict__["name"].__get__(Plain())(X)[0] == "Plain"


def test_jit_inside_static_method():
    """The other order of the decorators is as good for a static method."""
    for of in (Model, Model(X)):
        assert (of.inner_static.trace(X).lower().compile()(X) == X + X).all()


def test_jit_inside_class_method():
    """The other order of a class method: from Python 3.13 on, it can only be called."""
    for of in (Model, Model(X)):
        assert type(of.inner_class(X)) is Model
        if sys.version_info < (3, 13):
            assert type(of.inner_class.eval_shape(X)) is Model
        else:
            with pytest.raises(staged.SignatureError):
                of.inner_class.trace(X)


def test_bound_method_stays_bound():
    """A jitted method in another class or instance keeps its own instance."""

    class Holder:
        loss = Model(X).loss

        def __init__(self):
            self.twice = Model.twice

    assert Holder().loss(X) == 5
    assert Holder().loss.trace(X).lower().compile()(X) == 5
    assert (Holder().twice(X) == X + X).all()


def test_no_class_method_of_something_else():
    """What is not callable inside a `staticmethod` is refused like anything else."""
    with pytest.raises(
        staged.OptionError, match=r"^`jit` needs a callable, given 3 of"
    ):
        staged.jit(staticmethod(3))


MODULE = """
import equinox as eqx
import jax.numpy as jnp
from beartype import beartype
from jax import Array
from jaxtyping import Float, jaxtyped

import staged


@staged.jit
def scale(x: Array, n: int) -> Array:
    "N times an array."
    return n * x


@staged.jit(donate="none")
def dot(x: Float[Array, "n"], y: Float[Array, "n"]) -> Float[Array, ""]:
    return (x * y).sum()


@staged.jit
@jaxtyped(typechecker=beartype)
def checked_dot(x: Float[Array, "n"], y: Float[Array, "m"]) -> Float[Array, "n"]:
    return y


def plain(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x


assigned = staged.jit(plain)


class Model(eqx.Module):
    weight: Float[Array, "n"]

    @staged.jit
    def loss(self, x: Float[Array, "n"]) -> Float[Array, ""]:
        return (self.weight[0] * x).sum()

    @staged.jit
    @staticmethod
    def twice(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return 2 * x

    @staged.jit
    @classmethod
    def make(cls, x: Float[Array, "n"]) -> "Model":
        return cls(x)


class Plain:
    @staged.jit(donate="none")
    def loss(self, x: Float[Array, "n"]) -> Float[Array, ""]:
        return x.sum()
"""

# Run in a process of its own, where `hook` is the hook over `user`.
CHECK = """
import importlib
import sys

import jax
import jax.numpy as jnp
import jaxtyping
from beartype.roar import BeartypeCallHintViolation

hook, future = sys.argv[1:]
if hook == "jaxtyping":
    jaxtyping.install_import_hook("user", "beartype.beartype")
    refused = jaxtyping.TypeCheckError
else:
    from beartype.claw import beartype_package

    beartype_package("user")
    refused = BeartypeCallHintViolation

user = importlib.import_module(f"user.{future}")
x, wide, matrix = jnp.ones(3), jnp.ones(4), jnp.ones((3, 3))
struct = jax.ShapeDtypeStruct((3,), "float32")


def refuses(call, *args, error=refused):
    try:
        call(*args)
    except error:
        return
    raise AssertionError(f"{call} took {args}")


def all_stages(jitted, *args):
    result = jitted(*args)
    compiled = jitted.trace(*args).lower().compile()
    assert jax.tree.all(jax.tree.map(jnp.array_equal, compiled(*args), result))
    assert jitted.lower(*args).call == compiled.call
    shapes = jax.tree.map(lambda leaf: leaf.shape, jitted.eval_shape(*args))
    assert shapes == jax.tree.map(lambda leaf: leaf.shape, result)
    jitted.clear_cache()
    jax.make_jaxpr(jitted, static_argnums=range(1, len(args)))(*args)


all_stages(user.scale, x, 2)
user.dot.trace(struct, x)
all_stages(user.assigned, x)
model = user.Model(x)
all_stages(model.loss, x)
all_stages(model.twice, x)
all_stages(user.Model.twice, x)
all_stages(model.make, x)
all_stages(user.Model.make, x)
all_stages(user.Plain().loss, x)

assert user.scale.__name__ == "scale"
assert user.scale.__doc__ == "N times an array."
refuses(user.scale, x, "2")
refuses(user.scale, 1.0, 2)

# Shapes are for `jaxtyping` to check: by its hook, or by its decorator below `jit`.
for call in (user.checked_dot, user.checked_dot.trace, user.checked_dot.eval_shape):
    refuses(call, x, wide, error=jaxtyping.TypeCheckError)
if hook == "jaxtyping":
    for call in (user.dot, user.dot.trace, user.dot.lower, user.dot.eval_shape):
        refuses(call, x, wide)
    for call in (user.assigned, model.loss, model.loss.trace, model.twice, model.make):
        refuses(call, matrix)
    refuses(user.Plain().loss, matrix)
else:
    refuses(user.assigned, matrix)

# A wrapper is another function: it has no method that would stage the first.
for function in (user.dot, user.assigned, model.loss):
    args = (x, x) if function is user.dot else (x,)
    assert not hasattr(jax.grad(function), "trace")
    assert type(jax.jit(function).trace(*args)) is jax.stages.Traced
"""

# The same over the package itself, as `beartype.claw.beartype_all` does it.
SELF = """
import sys

if sys.argv[1] == "jaxtyping":
    import jaxtyping

    jaxtyping.install_import_hook("staged", "beartype.beartype")
else:
    from beartype.claw import beartype_package

    beartype_package("staged")

import jax
import jax.numpy as jnp

import staged


class Plain:
    @staged.jit
    @classmethod
    def of(cls, x):
        return x


@staged.jit(donate="all-except-first")
def scale(x, n, *, rate=0.5):
    return n * rate * x


x = jnp.ones(3)
traced = scale.trace(x, 2)
lowered = traced.lower(lowering_platforms=("cpu", "tpu"))
compiled = lowered.compile()
assert (compiled(x, 2) == scale(x, 2)).all()
assert (jax.grad(lambda x: scale(x, 2).sum())(x) == 1).all()
assert scale.eval_shape(staged.abstract((3,), "float32"), n=2).shape == (3,)
assert (Plain.of.trace(x).lower().compile().with_fun(Plain.of)(x) == 1).all()
assert repr(compiled).startswith("Compiled of scale:"), compiled
assert compiled.cost_analysis() and lowered.as_text() and traced.captured == ()
for call, error in [
    (lambda: compiled(x, 3), staged.CallMismatchError),
    (lambda: compiled(traced.call.args[0], 2), staged.AbstractArgumentError),
    (lambda: jax.jit(lambda x: compiled(x, 2))(x), staged.TopLevelOnlyError),
    (lambda: scale(x), staged.SignatureError),
    (lambda: staged.jit(donat="all"), staged.OptionError),
    (lambda: scale.trace(x, {1, 2}), staged.StaticLeafError),
]:
    try:
        call()
    except staged.StagedError as raised:
        assert type(raised) is error, raised
    else:
        raise AssertionError(error)
"""


def _run(tmp_path, source, *args):
    script = tmp_path / "check.py"
    script.write_text(source, "utf-8")
    search = (str(tmp_path), str(pathlib.Path(staged.__file__).parent.parent))
    done = subprocess.run(
        [sys.executable, "-W", "error", script, *args],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("future", ["real", "strings"])
@pytest.mark.parametrize("hook", ["beartype", "jaxtyping"])
def test_users_type_checker(tmp_path, hook, future):
    """Under a user's hook every stage stays in reach, and what is wrong is refused."""
    package = tmp_path / "user"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "real.py").write_text(MODULE, "utf-8")
    lazy = f"from __future__ import annotations\n{MODULE}"
    (package / "strings.py").write_text(lazy, "utf-8")
    _run(tmp_path, CHECK, hook, future)


@pytest.mark.parametrize("hook", ["beartype", "jaxtyping"])
def test_the_package_under_a_type_checker(tmp_path, hook):
    """The package itself stands an import hook, without a warning."""
    _run(tmp_path, SELF, hook)
