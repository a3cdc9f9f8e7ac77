"""Each error as a user sees it: its bases, its message, and its facts as data."""

import jax
import jax.numpy as jnp
import pytest
from beartype.roar import BeartypeCallHintParamViolation

import staged


X = jnp.ones(3)


def scale(x, n, *, bias=None):
    """A function of an array and static values."""
    return x * n


def _bad_option():
    staged.jit(scale, donat="all")


def _bad_compiler_option():
    lowered = staged.jit(scale).lower(X, 2)
    lowered.compile(compiler_options={"xla_wish": 1})


def _bad_type():
    staged.jit(scale).trace(X, 2).lower(lowering_platforms="cpu")


def _bad_arguments():
    staged.jit(scale)(X, 2, 3)


def _bad_static():
    staged.jit(scale)(X, {1})


def _bad_object():
    class Layer:
        def __init__(self):
            self.weights = {"w": X}

        def __repr__(self):
            return "Layer()"

        def __call__(self, x):
            return self.weights["w"] * x

    staged.jit(Layer().__call__)(X)


def _bad_call():
    compiled = staged.jit(scale).lower(X, 2).compile()
    compiled(jnp.ones(4, jnp.bfloat16), 2.0, bias=(1,))


def _bad_abstract():
    staged.jit(scale)(jax.ShapeDtypeStruct((3,), jnp.float32), 2)


def _bad_place():
    jax.vmap(staged.jit(scale).lower(X, 2).compile(), in_axes=(0, None))(
        jnp.ones((2, 3)), 2
    )


def _bad_constant():
    compiled = staged.jit(scale).lower(X, 2).compile()
    jax.make_jaxpr(lambda y: y + compiled(X, 2))(X)


def _bad_closure():
    class Holder:
        pass

    def outer(b):
        holder = Holder()
        holder.b = b
        staged.jit(lambda a: a + holder.b).trace(X)

    jax.make_jaxpr(outer)(X)


def _bad_donation():
    x = X + 0
    jitted = staged.jit(scale, donate="x")
    jitted(x, 2)
    jitted(x, 2)


def _bad_alias():
    x = X + 0
    staged.jit(lambda a, b: (a + 1, b + 1), donate="all")(x, x)


def _bad_buffer():
    staged.jit(lambda x: x.sum(), donate="x", unused_donation="error").lower(X)


def _bad_platform():
    staged.jit(scale).trace(X, 2).lower(lowering_platforms=("tpu",)).compile()


TRACE = "jit/make_jaxpr/eval_shape/scan/cond/while_loop"

ERRORS = [
    (
        _bad_option,
        staged.OptionError,
        ValueError,
        {"option": "donat"},
        "`jit` has no option `donat`. Did you mean `donate`?",
    ),
    (
        _bad_compiler_option,
        staged.CompilerOptionError,
        jax.errors.JaxRuntimeError,
        {"options": {"xla_wish": 1}},
        "`scale`: XLA refuses the `compiler_options` {'xla_wish': 1}.\n"
        "  INVALID_ARGUMENT: No such compile option: 'xla_wish'",
    ),
    (
        _bad_type,
        staged.ArgumentTypeError,
        BeartypeCallHintParamViolation,
        {"__module__": "staged"},
        "Method staged.Traced.lower() parameter lowering_platforms='cpu' violates type "
        "hint tuple[str, ...] | None, as str 'cpu' not tuple or <class "
        '"builtins.NoneType">.',
    ),
    (
        _bad_arguments,
        staged.SignatureError,
        TypeError,
        {"fun_name": "scale"},
        "`scale`: the arguments do not fit its signature: too many positional "
        "arguments.",
    ),
    (
        _bad_static,
        staged.StaticLeafError,
        TypeError,
        {"path": "n"},
        "`scale`: the static value at `n` cannot be hashed and compared.\n"
        "  `n` is of type `set`, {1}: unhashable type: 'set'\n"
        "Every leaf that is no array is static, and a program is made for its value. "
        "Pass a tuple, a frozenset or a frozen dataclass instead, or an array if the "
        "value changes from call to call.",
    ),
    (
        _bad_object,
        staged.StaticLeafError,
        TypeError,
        {"path": "self.weights['w']"},
        "`__call__`: the static value at `self` holds an array, at "
        "`self.weights['w']`.\n"
        "  `self` is of type `Layer`, Layer(), an object that is compared by identity: "
        "a later assignment to its attributes would not count.\n"
        "Make its class a pytree (an `equinox.Module`, or "
        "`jax.tree_util.register_dataclass`), or pass the array as an argument.",
    ),
    (
        _bad_call,
        staged.CallMismatchError,
        TypeError,
        {},
        "`scale`: the call is not the one that it was compiled for.\n"
        "  `x`: compiled for (3,), given (4,) (shape)\n"
        "  `x`: compiled for float32, given bfloat16 (dtype)\n"
        "  `n`: compiled for 2, given 2.0 (static value)\n"
        "  `bias`: compiled for None, given tuple of length 1 (structure)\n"
        "Call it as it was traced, stage it anew for this call, or call the jitted "
        "function, which compiles whatever it is called with.",
    ),
    (
        _bad_abstract,
        staged.AbstractArgumentError,
        TypeError,
        {"path": "x"},
        "`scale` was called with an abstract value.\n"
        "  `x`: expected an array, given a ShapeDtypeStruct of float32[3].\n"
        "Abstract values are for `trace`, `lower` and `eval_shape`; pass an array.",
    ),
    (
        _bad_place,
        staged.TopLevelOnlyError,
        TypeError,
        {"path": "x", "transformation": "vmap"},
        "`scale` is compiled, and was called inside a JAX transformation.\n"
        "  `x` is a tracer of vmap.\n"
        "A compiled program is for the top level only. Inside a transformation call "
        "the jitted function that it was made from, or use its `eval_shape` if only "
        "shapes are wanted.",
    ),
    (
        _bad_constant,
        staged.TopLevelOnlyError,
        TypeError,
        {"path": None, "transformation": TRACE},
        "`scale` is compiled, and was called inside a JAX transformation.\n"
        f"  No argument is a tracer, but {TRACE} is running: the result would become "
        "a constant of its program.\n"
        "Call it outside and pass the result in, call the jitted function that it was "
        "made from, or wrap the call in `jax.ensure_compile_time_eval()` if a "
        "constant is wanted.",
    ),
    (
        _bad_closure,
        staged.ClosedOverTracerError,
        TypeError,
        {"names": ("holder.b",)},
        "`<lambda>` closes over a tracer, and cannot be staged ahead of time.\n"
        f"  `holder.b` is a tracer of {TRACE}, float32[3]\n"
        "Pass it as an argument (or in a `jax.tree_util.Partial`), use `eval_shape` "
        "if only shapes are wanted, or call the jitted function.",
    ),
    (
        _bad_donation,
        staged.DonationError,
        RuntimeError,
        {"paths": ("x",)},
        "`scale`: `x` is a deleted array: its buffer was donated to an earlier call, "
        "or deleted.\n"
        "Use the array that the earlier call returned, or do not donate it.",
    ),
    (
        _bad_alias,
        staged.DonationError,
        RuntimeError,
        {"paths": ("a", "b")},
        "`<lambda>`: `a`, `b` share one buffer, which is donated: it can be given "
        "only once.\n"
        "Pass a copy (`jnp.copy`), or do not donate it.",
    ),
    (
        _bad_buffer,
        staged.DonationError,
        RuntimeError,
        {"paths": ("x",)},
        "Some donated buffers were not usable: `<lambda>` donates `x`, but no output "
        "has the same shape, dtype and sharding, or the function does not use it.\n"
        "Donate only what an output can replace, by the names of parameters, or pass "
        "`unused_donation='ignore'`.",
    ),
    (
        _bad_platform,
        staged.PlatformMismatchError,
        ValueError,
        {"platforms": ("tpu",), "here": "cpu"},
        "`scale` is lowered for other devices.\n"
        "  expected cpu, given a lowering for tpu.\n"
        "Lower it with `lowering_platforms=('cpu',)`, or with several platforms at "
        "once.",
    ),
]


@pytest.mark.parametrize(
    ("cause", "kind", "builtin", "facts", "message"),
    ERRORS,
    ids=[cause.__name__ for cause, *_ in ERRORS],
)
def test_an_error_says_what_where_and_what_to_do(cause, kind, builtin, facts, message):
    """Its message is whole, its facts are data, and JAX's own class catches it too."""
    with pytest.raises(staged.StagedError) as caught:
        cause()
    error = caught.value
    assert type(error) is kind
    assert isinstance(error, builtin)
    assert str(error).split("\n--------------------\n")[0].rstrip() == message
    assert {name: getattr(error, name) for name in facts} == facts


def test_a_mismatch_holds_its_differences():
    """The differences are records, in the order of the parameters."""
    with pytest.raises(staged.CallMismatchError) as caught:
        _bad_call()
    assert [(d.path, d.kind) for d in caught.value.differences] == [
        ("x", "shape"),
        ("x", "dtype"),
        ("n", "static value"),
        ("bias", "structure"),
    ]


def test_every_public_error_is_raised_here():
    """No error of the package goes without its message being tested."""
    public = {
        value
        for name in staged.__all__
        if isinstance(value := getattr(staged, name), type)
        and issubclass(value, staged.StagedError)
    }
    assert public - {kind for _, kind, *_ in ERRORS} == {staged.StagedError}
