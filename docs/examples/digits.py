"""Train a classifier of handwritten digits, with every compilation stage in sight.

The data comes with scikit-learn: nothing is downloaded. Run it with

    pip install 'staged[examples]'
    python digits.py
"""

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import staged


P = ParamSpec("P")
R = TypeVar("R")

EPOCHS = 40
BATCH = 64


class Classifier(eqx.Module):
    """Two hidden layers with dropout, from 64 pixels to 10 scores."""

    layers: tuple[eqx.nn.Linear, ...]
    dropout: eqx.nn.Dropout

    def __init__(self, width: int, *, key: PRNGKeyArray) -> None:
        sizes = (64, width, width, 10)
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(map(_linear, sizes, sizes[1:], keys))
        self.dropout = eqx.nn.Dropout(0.3)

    def __call__(
        self, image: Float[Array, "8 8"], key: PRNGKeyArray | None = None
    ) -> Float[Array, "10"]:
        """The score of each digit for one image."""
        *hidden, last = self.layers
        x = jnp.ravel(image)
        for layer in hidden:
            x = jax.nn.relu(layer(x))
        return last(self.dropout(x, key=key))


def _linear(size: int, out: int, key: PRNGKeyArray) -> eqx.nn.Linear:
    return eqx.nn.Linear(size, out, key=key)


def loss(
    model: Classifier,
    images: Float[Array, "batch 8 8"],
    labels: Int[Array, " batch"],
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """The mean cross-entropy of a batch."""
    scores = jax.vmap(model)(images, jax.random.split(key, len(images)))
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    return jnp.mean(losses)


@staged.jit(donate=("model", "opt_state"), unused_donation="error")
def step(
    model: Classifier,
    opt_state: PyTree,
    images: Float[Array, "batch 8 8"],
    labels: Int[Array, " batch"],
    key: PRNGKeyArray,
    *,
    optimizer: optax.GradientTransformation,
) -> tuple[Classifier, PyTree, Float[Array, ""]]:
    """One step of training, in which the new model takes the old one's memory."""
    value, gradients = eqx.filter_value_and_grad(loss)(model, images, labels, key)
    parameters = eqx.filter(model, eqx.is_inexact_array)
    updates, opt_state = optimizer.update(gradients, opt_state, parameters)
    return eqx.apply_updates(model, updates), opt_state, value


@staged.jit
def accuracy(
    model: Classifier,
    images: Float[Array, "batch 8 8"],
    labels: Int[Array, " batch"],
) -> Float[Array, ""]:
    """The share of images whose digit has the highest score."""
    scores = jax.vmap(model)(images)
    return jnp.mean(jnp.argmax(scores, axis=1) == labels)


def timed(what: str, run: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function and print how long it took."""
    start = time.perf_counter()
    result = run(*args, **kwargs)
    print(f"  {what} in {time.perf_counter() - start:.2f} s")
    return result


def build(
    jitted: staged.Jitted[P, R], *args: P.args, **kwargs: P.kwargs
) -> staged.Compiled[P, R]:
    """Take a function through the stages for one kind of call, and show each."""
    print(f"{jitted.__name__}:")

    traced = timed("traced", jitted.trace, *args, **kwargs)
    call = traced.call
    print(f"    dynamic, {len(call.dynamic)} arrays:")
    for path, array in call.dynamic.items():
        mark = ", donated" if path in call.donated else ""
        print(f"      {path}: {array.dtype}{list(array.shape)}{mark}")
    print(f"    static, {len(call.static)} values:")
    for path, value in call.static.items():
        print(f"      {path} = {eqx.tree_pformat(value)}")

    lowered = timed("lowered", traced.lower)
    print(f"    for {', '.join(lowered.platforms)}")

    compiled = timed("compiled", lowered.compile)
    if (cost := compiled.cost_analysis()) and cost.flops:
        print(f"    {cost.flops / 1e6:.1f} million floating-point operations a call")
    if (memory := compiled.memory_analysis()) and memory.peak_memory_in_bytes:
        print(f"    {memory.peak_memory_in_bytes / 1e6:.2f} MB of memory at the peak")
    return compiled


def main() -> None:
    """Build both programs, train, and check the result."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype("float32") / 16
    train_x, test_x, train_y, test_y = map(
        jnp.asarray,
        train_test_split(
            images,
            labels.astype("int32"),
            test_size=0.25,
            stratify=labels,
            random_state=0,
        ),
    )

    model_key, order_key, step_key = jax.random.split(jax.random.key(0), 3)
    model = Classifier(128, key=model_key)
    optimizer = optax.adamw(2e-3)
    opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    x = staged.abstract((BATCH, 8, 8), jnp.float32)
    y = staged.abstract((BATCH,), jnp.int32)
    train = build(step, model, opt_state, x, y, step_key, optimizer=optimizer)
    test = build(accuracy, eqx.nn.inference_mode(model), test_x, test_y)

    print(f"training on {len(train_x)} images:")
    start = time.perf_counter()
    value = jnp.nan
    # The bar is for people: a file gets the lines around it only.
    bar = tqdm(jax.random.split(order_key, EPOCHS), unit="epoch", disable=None)
    for key in bar:
        order = jax.random.permutation(key, len(train_x))
        for batch in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
            step_key, key = jax.random.split(step_key)
            x, y = train_x[batch], train_y[batch]
            model, opt_state, value = train(
                model, opt_state, x, y, key, optimizer=optimizer
            )
        bar.set_postfix(loss=f"{value:.4f}")
    print(f"  {EPOCHS} epochs in {time.perf_counter() - start:.2f} s")
    print(f"  loss of the last batch: {value:.4f}")

    reached = float(test(eqx.nn.inference_mode(model), test_x, test_y))
    print(f"accuracy on {len(test_x)} other images: {reached:.1%}")
    assert reached >= 0.95, "the classifier is worse than it should be"


if __name__ == "__main__":
    main()
