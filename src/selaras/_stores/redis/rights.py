"""What a user of the server must be allowed: read from the scripts, so that the list is never out of date.

ACL SETUSER app on >password ~PREFIX:* &PREFIX:* +evalsha +script|load ...
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from selaras._stores.redis.address import Shape
from selaras._stores.redis.scripts import script, verbs

_PLAIN: Final = ("client|setname", "evalsha", "info", "ping", "script|load", "select", "subscribe", "unsubscribe")
_VALUES: Final = ("exists", "get", "hget", "hscan", "lrange", "mget", "set")
"""Beside the scripts: values never pass through them."""
_CLUSTER: Final = ("asking", "cluster|slots", "ssubscribe", "sunsubscribe")
_REPLICATED: Final = ("wait",)

_CALL: Final = re.compile(r"\b(?:p?call|call_many)\(([^,)]*)")
_QUOTED: Final = re.compile(r"'([A-Z]{3,})'")
_GLOB: Final = re.compile(r"[*?\[\]\\^]")

CHANNELS: Final = frozenset({"publish", "spublish", "subscribe", "ssubscribe"})
"""Commands whose first argument is a channel."""

KEYS_ONLY: Final = frozenset({"exists", "mget", "unlink"})
"""Commands all of whose arguments are keys."""

KEYLESS: Final = frozenset({*_PLAIN, *_CLUSTER, *_REPLICATED, "time"}) - CHANNELS
"""Commands without keys."""


@cache
def commands(shape: Shape, *, replicated: bool = False) -> tuple[str, ...]:
    """Return the commands that the store uses, as an ACL rule spells them, without the `+`."""
    found = {*_PLAIN, *_VALUES}
    if shape == "cluster":
        found.update(_CLUSTER)
    if replicated:
        found.update(_REPLICATED)
    for name in verbs():
        found.update(commands_in(script(name).text))
    if shape != "cluster":
        found.discard("spublish")
    return tuple(sorted(found))


def commands_in(text: str) -> set[str]:
    """Return the commands that a script's text calls, as an ACL rule spells them, without the `+`."""
    return {word.lower() for said in _CALL.findall(text) for word in _QUOTED.findall(said)}


def rule(prefix: str, shape: Shape, *, replicated: bool = False) -> str:
    """Return the rules of a user that may do what the store does under a prefix, and nothing else."""
    named = _GLOB.sub(r"\\\g<0>", prefix)  # else it would stand for other prefixes, too
    return " ".join((f"~{named}:*", f"&{named}:*", *(f"+{word}" for word in commands(shape, replicated=replicated))))
