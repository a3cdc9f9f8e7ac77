"""What holds when several threads use one function."""

import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import staged


def _at_once(task: Callable[[int], object], count: int = 16) -> None:
    """Run `task(0)`, `task(1)`, ... in threads that start together."""
    start = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        start.wait()
        try:
            task(index)
        except BaseException as error:  # noqa: BLE001  # it is raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("way", ["call", "trace"])
def test_threads_trace_each_signature_once(way: str) -> None:
    """Sixteen threads with four static values cause four traces, and right results."""
    traced: list[int] = []

    @staged.jit
    def scale(x: jax.Array, n: int) -> jax.Array:
        traced.append(n)
        return x * n

    x = jnp.arange(3.0)

    def task(index: int) -> None:
        n = index % 4
        if way == "call":
            result = scale(x, n)
        else:
            result = scale.trace(x, n).lower().compile()(x, n)
        np.testing.assert_array_equal(result, np.arange(3.0) * n)

    _at_once(task)
    assert sorted(traced) == [0, 1, 2, 3]


def test_threads_share_one_compiled() -> None:
    """A Compiled is called from many threads at once, each with its own arguments."""
    compiled = staged.jit(lambda x, n: x * n).lower(jnp.ones(3), 2).compile()

    def task(index: int) -> None:
        for _ in range(20):
            result = compiled(jnp.full(3, float(index)), 2)
            np.testing.assert_array_equal(result, np.full(3, 2.0 * index))

    _at_once(task)


def test_a_callback_may_call_the_same_function() -> None:
    """A host callback that calls the function it runs in does not wait for itself."""

    @staged.jit
    def count_down(n: jax.Array, deep: bool) -> jax.Array:
        def below(value: np.ndarray) -> np.ndarray:
            return np.asarray(count_down(jnp.asarray(value), False))

        if deep:
            return jax.pure_callback(below, jax.ShapeDtypeStruct((), jnp.int32), n)
        return n - 1

    assert count_down(jnp.asarray(3, jnp.int32), True) == 2
