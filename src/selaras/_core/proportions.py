"""How often something may happen, given how often it was seen to: bounds of a proportion.

Seen never in n tries, it may still happen: with 95 % confidence at most 1 - 0.05^(1/n) of the time, which is close to
3/n, the rule of three.
"""

from __future__ import annotations

from math import exp, expm1, lgamma, log, log1p
from typing import Final

CONFIDENCE: Final = 0.95
_STEPS: Final = 200
_NEGLIGIBLE: Final = 1e-18


def at_most(seen: int, tries: int, confidence: float = CONFIDENCE) -> float:
    """Return the greatest proportion that is compatible with `seen` of `tries`; 1 where nothing was tried.

    The bound is one-sided and exact: were the proportion greater, so few would be seen with a chance below
    1 - `confidence`.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 26, 1934.
    """
    if seen >= tries:
        return 1.0
    doubt = 1 - confidence
    if seen == 0:
        return -expm1(log(doubt) / tries)
    low, high = seen / tries, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _chance_of_at_most(seen, tries, middle) > doubt:
            low = middle
        else:
            high = middle
    return high


def _chance_of_at_most(seen: int, tries: int, proportion: float) -> float:
    """Return P(X <= seen) of a binomial distribution, for a proportion above seen / tries: the terms then only fall."""
    ways = lgamma(tries + 1) - lgamma(seen + 1) - lgamma(tries - seen + 1)
    term = exp(ways + seen * log(proportion) + (tries - seen) * log1p(-proportion))
    chance, count = 0.0, seen
    while count >= 0 and term > chance * _NEGLIGIBLE:
        chance += term
        term *= count / (tries - count + 1) * (1 - proportion) / proportion
        count -= 1
    return chance
