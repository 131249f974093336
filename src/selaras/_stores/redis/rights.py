"""What a user of the server must be allowed: read from the scripts, so that the list is never out of date.

ACL SETUSER app on >password ~PREFIX:* &PREFIX:* +evalsha +script|load ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha1
from typing import Final

import msgspec

from selaras._stores.redis.address import Shape
from selaras._stores.redis.scripts import PARTS, source, verbs

_PLAIN: Final = ("client|setname", "evalsha", "info", "ping", "script|load", "select", "subscribe", "unsubscribe")
_VALUES: Final = ("exists", "get", "hget", "hscan", "lrange", "mget", "set")
"""Beside the scripts: values never pass through them."""
_CLUSTER: Final = ("asking", "cluster|slots", "ssubscribe", "sunsubscribe")
_REPLICATED: Final = ("wait",)

_CALL: Final = re.compile(r"\b(?:p?call|call_many)\(([^,)]*)")
_QUOTED: Final = re.compile(r"'([A-Z]{3,})'")
_GLOB: Final = re.compile(r"[*?\[\]\\^]")
_UNSPEAKABLE: Final = re.compile(r"[\s\0]", re.ASCII)
"""What a server takes in no pattern of a rule."""

CHANNELS: Final = frozenset({"publish", "spublish", "subscribe", "ssubscribe"})
"""Commands whose first argument is a channel."""

KEYS_ONLY: Final = frozenset({"exists", "mget", "unlink"})
"""Commands all of whose arguments are keys."""

KEYLESS: Final = frozenset({*_PLAIN, *_CLUSTER, *_REPLICATED, "time"}) - CHANNELS
"""Commands without keys."""

OLDEST: Final = (7, 0)
"""Scripts with flags, and `redis.acl_check_cmd`, came with Redis 7.0; every Valkey has them."""

QUESTION: Final = """
local refused = {}
if redis.acl_check_cmd then
    for i = 1, #ARGV do
        local known, allowed = pcall(redis.acl_check_cmd, unpack(cjson.decode(ARGV[i])))
        if not (known and allowed) then
            refused[#refused + 1] = i
        end
    end
end
return refused
"""
"""Asks the server what its user may not do, of the calls that it is given; nothing is done."""

QUESTION_SHA: Final = sha1(QUESTION.encode(), usedforsecurity=False).hexdigest()


def too_old(version: str) -> bool:
    """Whether a server that calls itself `redis_version` so cannot run the scripts."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST


def is_sentinel(info: Mapping[str, str]) -> bool:
    """Whether a server that says so of itself is one; Valkey has another name for that field."""
    return "sentinel" in (info.get("redis_mode"), info.get("server_mode"))


@cache
def commands(shape: Shape, *, replicated: bool = False) -> tuple[str, ...]:
    """Return the commands that the store uses, as an ACL rule spells them, without the `+`."""
    found = {*_PLAIN, *_VALUES}
    if shape == "cluster":
        found.update(_CLUSTER)
    if replicated:
        found.update(_REPLICATED)
    found.update(_inside())
    if shape != "cluster":
        found.discard("spublish")
    return tuple(sorted(found))


@cache
def vital(shape: Shape, *, replicated: bool = False) -> tuple[str, ...]:
    """Return those of them without which nothing is begun.

    A script that meets a command that it may not call ends there, half done. What is left out costs no more than the cache,
    or a name in a list.
    """
    dispensable = {*_VALUES, "client|setname", "select"} - _inside()
    return tuple(word for word in commands(shape, replicated=replicated) if word not in dispensable)


@cache
def _inside() -> frozenset[str]:
    """Return the commands that scripts call. Their texts are read as they were written: putting all together takes long."""
    return frozenset(word for name in (*PARTS, *verbs()) for word in commands_in(source(name)))


def calls(words: Sequence[str], stem: str) -> list[bytes]:
    """Return a call of each command, as the store makes it on the keys that begin with `stem`: what `QUESTION` is given."""
    return [msgspec.json.encode(_example(word, stem)) for word in words]


def lacking(answer: Sequence[int], asked: Sequence[str], stem: str) -> str:
    """Read the answer to `QUESTION` about these commands: what the user lacks; "": nothing."""
    refused = [asked[place - 1] for place in answer]
    if not refused:
        return ""
    if {word for word in asked if word not in KEYLESS | CHANNELS}.issubset(refused):
        return f"this user may not touch the keys {stem}*"
    named = ", ".join(f"+{word}" for word in refused)
    channels = f", or the channels {stem}*" if CHANNELS.issuperset(refused) else ""
    return f"this user lacks {named}{channels}"


def _example(command: str, stem: str) -> tuple[str, ...]:
    words = tuple(command.split("|"))
    if command in KEYLESS:
        return (*words, "x", "0") if command == "evalsha" else words
    if command in CHANNELS:
        return (*words, f"{stem}news", *(["1"] if "publish" in command else []))
    return (*words, f"{stem}meta", *([] if command in KEYS_ONLY else ["x", "x"]))


def commands_in(text: str) -> set[str]:
    """Return the commands that a script's text calls, as an ACL rule spells them, without the `+`."""
    return {word.lower() for said in _CALL.findall(text) for word in _QUOTED.findall(said)}


def rule(prefix: str, shape: Shape, *, replicated: bool = False) -> str:
    """Return the rules of a user that may do what the store does under a prefix, and nothing else."""
    named = _GLOB.sub(r"\\\g<0>", prefix)  # else it would stand for other prefixes, too
    named = _UNSPEAKABLE.sub("?", named)  # whatever one character stands there
    return " ".join((f"~{named}:*", f"&{named}:*", *(f"+{word}" for word in commands(shape, replicated=replicated))))
