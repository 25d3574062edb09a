"""Learning-rate schedules: the share of the peak rate that one update uses.

In: the index of an update (0 is the first), the length of the run. Out: a multiplier in [0, 1]. Pure functions of the index, so a
resumed run continues on the same curve with no state to restore. An update is one optimizer step, whatever the accumulation.

Every update counts: the first uses 1 / warmup rather than 0, update number `warmup` (index warmup - 1) is the first at exactly the
peak, and the last one of a decay to zero still uses one step of the ramp rather than 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]
"""Index of an update to the multiplier of the peak rate."""


def constant(step: int, total: int, warmup: int) -> float:
    """Linear warm-up over `warmup` updates, then 1."""
    _check(step, total, warmup)
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def wsd(step: int, total: int, warmup: int, decay_fraction: float) -> float:
    """Warm-up, stable, decay: linear up, 1, then linear down over the last round(decay_fraction * total) updates.

    Hu et al. 2024, "MiniCPM", arXiv 2404.06395; linear decay: Hägele et al. 2024, arXiv 2405.18392. ValueError when
    warm-up and decay together exceed the run.
    """
    if not 0 <= decay_fraction <= 1:
        raise ValueError(f"decay_fraction: got {decay_fraction}, expected a number from 0 to 1")
    decay = round(decay_fraction * total)
    if warmup + decay > total:
        raise ValueError(
            f"schedule: got warmup={warmup} and {decay} decaying updates (decay_fraction={decay_fraction}) in a run of {total}; "
            "expected their sum within the run; lower one of them"
        )
    return min(constant(step, total, warmup), (total - step) / (decay + 1)) if decay else constant(step, total, warmup)


def cosine(step: int, total: int, warmup: int, final_fraction: float) -> float:
    """Linear warm-up, then half a cosine from 1 towards `final_fraction`, which the update after the last would have.

    Loshchilov and Hutter 2016, arXiv 1608.03983, without restarts.
    """
    if not 0 <= final_fraction <= 1:
        raise ValueError(f"final_fraction: got {final_fraction}, expected a number from 0 to 1")
    rising = constant(step, total, warmup)
    if step < warmup:
        return rising
    return final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * _progress(step, total, warmup)))


def linear(step: int, total: int, warmup: int, final_fraction: float) -> float:
    """Linear warm-up, then a straight line from 1 towards `final_fraction`, which the update after the last would have."""
    if not 0 <= final_fraction <= 1:
        raise ValueError(f"final_fraction: got {final_fraction}, expected a number from 0 to 1")
    rising = constant(step, total, warmup)
    return rising if step < warmup else 1 - (1 - final_fraction) * _progress(step, total, warmup)


def make_schedule(
    name: str, *, total: int, warmup: int, decay_fraction: float | None = None, final_fraction: float | None = None
) -> Schedule:
    """The schedule `name` ("constant", "cosine", "linear" or "wsd") over a run of `total` updates, as a function of the index.

    Its own parameter must be given (wsd: decay_fraction; cosine, linear: final_fraction) and the other must be None, so that no value in a
    configuration is silently without effect. Errors are raised here, before the first update.
    """
    shapes: dict[str, tuple[Schedule, set[str]]] = {
        "constant": (lambda step: constant(step, total, warmup), set()),
        "cosine": (lambda step: cosine(step, total, warmup, final_fraction), {"final_fraction"}),
        "linear": (lambda step: linear(step, total, warmup, final_fraction), {"final_fraction"}),
        "wsd": (lambda step: wsd(step, total, warmup, decay_fraction), {"decay_fraction"}),
    }
    if name not in shapes:
        raise ValueError(f"schedule: got {name!r}, expected one of {', '.join(shapes)}")
    schedule, needed = shapes[name]
    options = {"decay_fraction": decay_fraction, "final_fraction": final_fraction}
    given = {key for key, value in options.items() if value is not None}
    if given != needed:
        raise ValueError(f"schedule {name!r}: got {sorted(given)}, expected exactly {sorted(needed)}; set the others to null")
    schedule(0)
    return schedule


def _progress(step: int, total: int, warmup: int) -> float:
    """Share of the way from the peak to the update after the last."""
    peak = max(warmup, 1) - 1
    return (step - peak) / (total - peak)


def _check(step: int, total: int, warmup: int) -> None:
    if not 0 <= warmup <= total:
        raise ValueError(f"schedule: got warmup={warmup}, expected 0 to total={total} updates")
    if not 0 <= step < total:
        raise ValueError(f"schedule: got update index {step}, expected 0 to {total - 1} in a run of {total} updates")
