"""What holds for every test: two CPU devices, and strict promotion."""

import gc
import os


os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["EQX_ON_ERROR"] = "raise"

import hypothesis
import jax
import numpy as np
import pytest


jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# A first example compiles, a later one does not: no deadline fits both.
hypothesis.settings.register_profile("staged", deadline=None, derandomize=True)
hypothesis.settings.load_profile("staged")


@pytest.fixture
def devices():
    """The two CPU devices."""
    return jax.devices("cpu")[:2]


@pytest.fixture
def mesh(devices):
    """A mesh of the two CPU devices, with the one axis `x`."""
    return jax.sharding.Mesh(np.array(devices), ("x",))


@pytest.fixture
def no_cycles():
    """Without garbage collection: what is freed here is freed by reference counts."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
