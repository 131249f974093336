"""What a program says of how long values live."""

from __future__ import annotations

import math
from typing import Any

from selaras._core.cache.lifetimes import Adaptive
from selaras._core.durations import Duration, duration_us
from selaras._core.errors import ConfigurationError


def adaptive(min: Duration, max: Duration, k: float = 0.1) -> Adaptive:
    """Let a family's ttl follow each key's own changes: `@app.cached(ttl=adaptive(min=5, max="1h"))`.

    A value lives `k` times as long as its key has been unchanged, smoothed over the key's changes, within the bounds. So what
    never changes is seldom loaded, and what changes all the time is never old.

    Args:
        min: the shortest ttl. max: the longest.
        k: the share of a key's age.

    Raises:
        ConfigurationError: bounds that leave nothing between them, or a share that is none.
    """
    rule = Adaptive(duration_us(min, name="adaptive(): min"), duration_us(max, name="adaptive(): max"), k)
    if not 0 < rule.min_us <= rule.max_us:
        raise ConfigurationError(
            f"adaptive(min={min!r}, max={max!r}): the shortest ttl is above 0 and not above the longest"
        )
    if not _is_share(k):
        raise ConfigurationError(f"adaptive(k={k!r}): give a share of the key's age, above 0, such as 0.1")
    return rule


def _is_share(k: object) -> bool:
    return isinstance(k, (int, float)) and not isinstance(k, bool) and math.isfinite(k) and k > 0


class OldValue:
    """The default value that stands for the old value of a key."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Old()"


def Old() -> Any:  # noqa: N802 - it reads as a declaration, like `Read`
    """Declare that a parameter of a loader is given the value that was cached until now, or None if there is none.

    It is no part of the key. A loader that was given one may `raise NotModified`, and that value is kept:

        @app.cached(ttl=60)
        async def page(url: str, *, old: Page | None = Old()) -> Page: ...
    """
    return OldValue()
