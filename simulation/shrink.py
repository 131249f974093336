"""From a plan that breaks a promise to a smaller one that breaks it, too: fewer actors, keys, jobs and kinds of faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from simulation.plan import Plan
from simulation.world import Result, run

_LEAST: Final[dict[str, int]] = {
    "lockers": 0, "writers": 0, "readers": 0, "producers": 1, "workers": 1, "partitions": 1, "keys": 1, "jobs": 1,
    "concurrency": 1,
}  # fmt: skip
_SEEDS: Final = 6
"""A smaller plan takes another course; it gets as many seeds to break the promise on."""


def shrink(
    found: Result,
    *,
    tries: int = 300,
    said: Callable[[Result], None] | None = None,
    run: Callable[[Plan], Result] = run,
) -> Result:
    """Return the smallest result that breaks the same promise, as far as `tries` worlds show."""
    best, left = found, tries
    again = True
    while again and left > 0:
        again = False
        for smaller in _smaller(best.plan):
            result, used = _broken(smaller, best.broken, run, min(_SEEDS, left))
            left -= used
            if result is not None:
                best, again = result, True
                if said:
                    said(best)
                break
            if left <= 0:
                break
    return best


def _broken(plan: Plan, promise: str, run: Callable[[Plan], Result], seeds: int) -> tuple[Result | None, int]:
    for number in range(seeds):
        result = run(replace(plan, seed=plan.seed + number))
        if result.broken == promise:
            return result, number + 1
    return None, seeds


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans a step smaller, the greatest steps first."""
    for fault in plan.faults:
        yield replace(plan, faults={kind: rate for kind, rate in plan.faults.items() if kind != fault})
    if plan.store == "sqlite":
        yield replace(plan, store="memory")
    for name in ("shelf", "audit", "warms"):
        if getattr(plan, name):
            without: Any = {name: type(getattr(plan, name))()}
            yield replace(plan, **without)
    for name, least in _LEAST.items():
        value: int = getattr(plan, name)
        for to in dict.fromkeys((least, value // 4, value // 2, value * 3 // 4, value - 1)):
            if least <= to < value and not (name == "jobs" and value > 8 and to < value // 4):
                changed: Any = {name: to}
                yield replace(plan, **changed)
    if plan.ttl_s:
        yield replace(plan, ttl_s=0)
