"""The stages: what can be read from each, and what each makes."""

import logging

import attrs
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import staged
from staged._analysis import cost_analysis_of, memory_analysis_of


X = jnp.arange(3.0)


def step(model, x, *, times=2):
    """A function of a tree, an array and a static value, with a static output."""
    return {"y": model["w"] * x * times, "n": times, "none": None}


@pytest.fixture
def traced():
    """A call of `step`, traced."""
    return staged.jit(step).trace({"w": X}, X, times=3)


def test_every_stage_carries_the_one_record(traced):
    """`call` is the same object in each stage, and so is the function's name."""
    lowered = traced.lower()
    compiled = lowered.compile()
    assert traced.call is lowered.call is compiled.call
    assert {s.fun_name for s in (traced, lowered, compiled)} == {"step"}
    assert {s.fun for s in (traced, lowered, compiled)} == {step}


def test_out_info_has_the_structure_of_the_result(traced):
    """Arrays are abstract in `out_info`, and static outputs stand as they are."""
    lowered = traced.lower()
    for stage in (traced, lowered, lowered.compile()):
        info = stage.out_info
        assert (info["y"].shape, info["y"].dtype) == ((3,), jnp.float32)
        assert (info["n"], info["none"]) == (3, None)


def test_repr_shows_the_call_and_the_result(traced):
    """The text of a stage lists the leaves by path, and the result."""
    lines = [
        "  model['w']: float32[3]",
        "  x: float32[3]",
        "  times = 3",
    ]
    result = "  -> {'n': 3, 'none': None, 'y': float32[3]}"
    lowered = traced.lower()
    assert repr(traced) == "\n".join(["Traced of step:", *lines, result])
    assert repr(lowered.compile()) == "\n".join(["Compiled of step:", *lines, result])
    assert repr(lowered) == "\n".join(["Lowered of step for cpu:", *lines, result])


def test_a_large_result_is_shown_leaf_by_leaf():
    """A result that does not fit one line has one for each leaf, static ones too."""

    def wide(x):
        return {f"a_long_name_{i}": (x, "word") for i in range(4)}

    text = repr(staged.jit(wide).trace(X))
    assert text.splitlines()[2:4] == [
        "  -> ['a_long_name_0'][0]: float32[3]",
        "     ['a_long_name_0'][1] = 'word'",
    ]


def test_repr_marks_weak_types():
    """A weak type is visible in the record and in the result."""
    text = repr(staged.jit(lambda x: x).trace(jnp.asarray(1.0)))
    assert text.splitlines()[1:] == ["  x: float32[], weak", "  -> weak float32[]"]


def test_the_program_can_be_read(traced):
    """Each stage shows its program: a jaxpr, StableHLO, HLO, and optimized HLO."""
    lowered = traced.lower()
    assert len(traced.jaxpr.jaxpr.invars) == 2
    assert "func.func public @main" in lowered.as_text()
    assert lowered.as_text() == lowered.as_text("stablehlo", platform="cpu")
    assert lowered.as_text("hlo").startswith("HloModule jit_step")
    assert "loc(" in lowered.as_text(debug_info=True)
    assert "HloModule jit_step" in lowered.compile().as_text()


def test_captured_constants_have_names():
    """What a function closes over is listed with its variable, shape and size."""
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    captured = staged.jit(lambda x: x + jnp.asarray(table).sum(0)).trace(X).captured
    assert len(captured) <= 1  # JAX may fold a NumPy array into the program
    weights = jnp.ones((2, 3))
    (constant,) = staged.jit(lambda x: x + weights.sum(0)).trace(X).captured
    assert constant == staged.CapturedConstant(
        name="weights", shape=(2, 3), dtype=np.dtype("float32"), nbytes=24
    )
    assert staged.jit(lambda x: x).trace(X).captured == ()


def test_analyses_are_typed_records(traced):
    """Work and memory are frozen records of numbers, in FLOPs and bytes."""
    lowered = traced.lower()
    compiled = lowered.compile()
    for cost in (lowered.cost_analysis(), compiled.cost_analysis()):
        assert isinstance(cost, staged.CostAnalysis)
        assert cost.flops is not None
        assert cost.flops >= 3
    memory = compiled.memory_analysis()
    assert isinstance(memory, staged.MemoryAnalysis)
    assert memory.argument_size_in_bytes == 24
    assert memory.output_size_in_bytes == 12
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        memory.output_size_in_bytes = 1


class _Backend:
    """A stage of JAX with the analyses that some backend gives."""

    def __init__(self, answer):
        self.answer = answer

    def cost_analysis(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    memory_analysis = cost_analysis


@pytest.mark.parametrize("answer", [RuntimeError("no"), None, [], "text"])
def test_a_backend_without_cost_analysis_has_none(answer):
    """A backend that refuses, or answers otherwise, gives `None` and no error."""
    assert cost_analysis_of(_Backend(answer)) is None


def test_unknown_figures_are_none():
    """What a backend leaves out, or marks with a negative number, is `None`."""
    cost = cost_analysis_of(_Backend([{"flops": 2, "transcendentals": -1}]))
    assert cost == staged.CostAnalysis(
        flops=2.0, transcendentals=None, bytes_accessed=None
    )


@pytest.mark.parametrize("answer", [RuntimeError("no"), None])
def test_a_backend_without_memory_analysis_has_none(answer):
    """The same for memory."""
    assert memory_analysis_of(_Backend(answer)) is None


def test_one_lowering_for_each_platform(traced):
    """A lowering for several platforms holds one program each, and compiles here."""

    def on_each(x):
        return jax.lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.cos)

    lowered = staged.jit(on_each).trace(X).lower(lowering_platforms=("tpu", "cpu"))
    assert lowered.platforms == ("tpu", "cpu")
    assert "cosine" in lowered.as_text()
    assert "cosine" not in lowered.as_text(platform="cpu")
    np.testing.assert_allclose(lowered.compile()(X), np.sin(X), rtol=1e-6)
    assert lowered.cost_analysis() is not None


def test_a_lowering_for_elsewhere_is_not_compiled_here(traced):
    """Its text can be read; its analysis is `None`; compiling it here is refused."""
    lowered = traced.lower(lowering_platforms=("tpu", "cuda"))
    assert lowered.cost_analysis() is None
    assert "func.func public @main" in lowered.as_text(platform="cuda")
    with pytest.raises(staged.PlatformMismatchError) as caught:
        lowered.compile()
    assert str(caught.value) == (
        "`step` is lowered for other devices.\n"
        "  expected cpu, given a lowering for tpu, cuda.\n"
        "Lower it with `lowering_platforms=('cpu',)`, or with several platforms at "
        "once."
    )
    assert (caught.value.platforms, caught.value.here) == (("tpu", "cuda"), "cpu")
    with pytest.raises(staged.PlatformMismatchError):
        lowered.as_text(platform="rocm")


@pytest.mark.parametrize(
    ("platforms", "message"),
    [
        (
            ("gpu",),
            "`step`: `lowering_platforms` names 'gpu'.\n"
            "  expected some of 'cpu', 'cuda', 'rocm', 'tpu'. Say `'cuda'` or "
            "`'rocm'`.",
        ),
        (
            ("cpu", "abacus"),
            "`step`: `lowering_platforms` names 'abacus'.\n"
            "  expected some of 'cpu', 'cuda', 'rocm', 'tpu'.",
        ),
        (
            (),
            "`step`: `lowering_platforms` is empty.\n"
            "  expected some of 'cpu', 'cuda', 'rocm', 'tpu'.",
        ),
    ],
)
def test_unknown_platforms_are_refused(traced, platforms, message):
    """A platform is one of those that JAX lowers for."""
    with pytest.raises(staged.OptionError) as caught:
        traced.lower(lowering_platforms=platforms)
    assert str(caught.value) == message


def test_compiler_options(traced):
    """Options reach XLA; one that it does not know is named in our error."""
    lowered = traced.lower()
    options = {"xla_cpu_enable_fast_math": True}
    compiled = lowered.compile(compiler_options=options)
    np.testing.assert_array_equal(compiled({"w": X}, X, times=3)["y"], X * X * 3)
    with pytest.raises(staged.CompilerOptionError) as caught:
        lowered.compile(compiler_options={"xla_wish": 1})
    assert str(caught.value) == (
        "`step`: XLA refuses the `compiler_options` {'xla_wish': 1}.\n"
        "  INVALID_ARGUMENT: No such compile option: 'xla_wish'"
    )
    assert caught.value.options == {"xla_wish": 1}
    assert isinstance(caught.value, jax.errors.JaxRuntimeError)


def test_an_error_of_xla_without_options_is_its_own(traced, monkeypatch):
    """What goes wrong in XLA by itself is not blamed on options."""
    lowered = traced.lower()

    def fail(*args, **kwargs):
        raise ValueError("an option of fate")

    monkeypatch.setattr(type(lowered._lowered[0][1]), "compile", fail)
    with pytest.raises(ValueError, match=r"^an option of fate$"):
        lowered.compile()


def test_shardings_are_those_of_the_program(mesh):
    """The shardings have the structure of the arguments and of the result."""
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    jitted = staged.jit(
        lambda tree, y, n: (tree["a"] * n, n), in_shardings={"tree": split}
    )
    compiled = jitted.lower({"a": jnp.ones(4)}, jnp.ones(2), 3).compile()
    args, kwargs = compiled.input_shardings
    assert args[0]["a"].is_equivalent_to(split, 1)
    assert args[1] is None  # the program does not read `y`
    assert (args[2], kwargs) == (3, {})
    out, n = compiled.output_shardings
    assert out.is_equivalent_to(split, 1)
    assert n == 3


def positive(x):
    """The argument, unless an element is negative."""
    return eqx.error_if(x, x < 0, "it is negative")


@pytest.mark.parametrize("way", ["jitted", "compiled"])
def test_error_if_raises_the_error_of_equinox(way, caplog):
    """The error is Equinox's own, with its message, and nothing is logged besides."""
    jitted = staged.jit(positive)
    call = jitted if way == "jitted" else jitted.lower(X).compile()
    np.testing.assert_array_equal(call(X), X)
    caplog.set_level(logging.DEBUG, "jax._src.callback")
    with pytest.raises(eqx.EquinoxRuntimeError, match="it is negative") as caught:
        call(X - 2.0)
    assert caught.value.__cause__ is None
    assert caplog.records == []
    np.testing.assert_array_equal(call(X), X)


def test_error_if_in_a_donating_program():
    """The error of the program comes before what it says of the donated buffer."""
    donating = staged.jit(positive, donate="all")
    compiled = staged.jit(positive, donate=("x",)).lower(X).compile()
    for call in (donating, compiled):
        with pytest.raises(eqx.EquinoxRuntimeError, match="it is negative"):
            call(jnp.array([-1.0, 0.0, 1.0]))


def test_other_callbacks_keep_their_errors():
    """A user's own callback that fails is no error of Equinox."""

    def fail(x):
        raise ValueError("of the host")

    def calls(x):
        return jax.pure_callback(fail, jax.ShapeDtypeStruct((3,), jnp.float32), x)

    compiled = staged.jit(calls).lower(X).compile()
    for call in (staged.jit(calls), compiled):
        with pytest.raises(jax.errors.JaxRuntimeError, match="of the host") as caught:
            jax.block_until_ready(call(X))
        assert not isinstance(caught.value, eqx.EquinoxRuntimeError)


def test_with_fun_takes_a_function_of_the_same_structure():
    """New values of a function's own arrays need no compilation."""
    first, second = (eqx.nn.Linear(3, 2, key=jax.random.key(i)) for i in range(2))
    compiled = staged.jit(first).lower(X).compile()
    for other in (second, staged.jit(second)):
        swapped = compiled.with_fun(other)
        np.testing.assert_allclose(swapped(X), second(X), rtol=1e-6)
        assert swapped.fun is second
        assert swapped.call is compiled.call
    np.testing.assert_allclose(compiled(X), first(X), rtol=1e-6)


def test_with_fun_refuses_another_structure():
    """A function that differs in more than the values of its arrays is refused."""
    compiled = staged.jit(eqx.nn.Linear(3, 2, key=jax.random.key(0))).lower(X).compile()
    with pytest.raises(staged.CallMismatchError) as caught:
        compiled.with_fun(eqx.nn.Linear(3, 4, key=jax.random.key(0)))
    assert str(caught.value) == (
        "`Linear`: the function is not like the one that it was compiled for.\n"
        "  `self.out_features`: compiled for 2, given 4 (static value)\n"
        "  `self.weight`: compiled for (2, 3), given (4, 3) (shape)\n"
        "  `self.bias`: compiled for (2,), given (4,) (shape)\n"
        "Give a function of the same structure, or stage the new one."
    )


def test_a_function_traced_under_a_trace_is_kept_abstract():
    """Its arrays are gone with the trace: it is called by way of `with_fun`."""
    kept = []

    @jax.jit
    def outer(w):
        scale = jax.tree_util.Partial(lambda w, x: w * x, w)
        kept.append(staged.jit(scale).lower(X).compile())
        return w

    outer(X)
    (compiled,) = kept
    with pytest.raises(staged.AbstractArgumentError) as caught:
        compiled(X)
    assert str(caught.value) == (
        "`<lambda>` was traced for a function whose own arrays are abstract.\n"
        "  `w` is float32[3], a shape and dtype without values.\n"
        "Give it a function with arrays: `compiled.with_fun(fun)(...)`."
    )
    again = compiled.with_fun(jax.tree_util.Partial(compiled.fun.func, X + 1.0))
    np.testing.assert_array_equal(again(X), (X + 1.0) * X)
