"""Times of several functions beside each other, interleaved in one process."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping


def calibrated(call: Callable[[], object], seconds: float) -> int:
    """How often to call a function for a sample that takes about `seconds`."""
    call()  # the first call traces and compiles
    number = 1
    while True:
        start = time.perf_counter()
        for _ in range(number):
            call()
        taken = time.perf_counter() - start
        if taken >= seconds / 4:
            return max(1, round(number * seconds / taken))
        number *= 2


def interleaved(
    calls: Mapping[str, Callable[[], object]], *, samples: int, seconds: float
) -> dict[str, float]:
    """The median time of each call, in microseconds.

    Each round takes one sample of every call, so that what else the machine does falls
    on all of them alike; every other round goes through them backwards.
    """
    numbers = {name: calibrated(call, seconds) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(samples):
        order = list(calls) if turn % 2 == 0 else list(calls)[::-1]
        for name in order:
            call, number = calls[name], numbers[name]
            gc.collect()
            gc.disable()
            start = time.perf_counter()
            for _ in range(number):
                call()
            times[name].append((time.perf_counter() - start) / number)
            gc.enable()
    return {name: statistics.median(taken) * 1e6 for name, taken in times.items()}
