"""The scripts, put together from their parts: what they share with Python is put into them here, and written once.

In a script's text stand for

    K.jobs                          the key of that name: the script declares the keys that it names, and no other
    M.position                      a field of the ledger
    STATE.RUNNING, LIMIT.LOG_LENGTH a number
    EVENT.LOSE                      the event's word
    NEWJOB.line, ROW.fence          where a field stands in an array (from 1)
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from selaras._contracts import limits
from selaras._contracts.partition import Fill, Invalidation, Owner, ReadRequest
from selaras._core.jobs.job import Attempt, Edge, Fate, JobKind, OnConflict, Parent, Put, Refusal, UniqueUntil
from selaras._core.jobs.lifecycle import FINAL, SETTLING, TRANSITIONS, UNCOUNTED, WAITING, ending
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import Scope
from selaras._core.routing import id_entry
from selaras._stores.redis import records
from selaras._stores.redis.records import STATES

FOLDER: Final = Path(__file__).parent / "lua"

PARTS: Final = ("prelude", "log", "rows", "cells", "jobs", "plain")
"""Texts that verbs are put together from; all others are verbs."""

LEDGER: Final = (
    "epoch",
    "time",  # the latest time that was told (L8)
    "counter",  # the last fence, token, stamp or effect id, without its epoch (P15)
    "position",
    "event_id",
    "before_position",
    "before_id",
    "tag_floor",
    "last_mark",
    "numbers",
    "partitions",
    "index",
    "dependents",  # ever noted: the order of those of one parent
    "tellings",  # ends that not all who wait for them were told of
    "instances",  # ever enrolled: their order
    "serving",  # grows when the queues change that are served
    "arranged",  # `serving` when lines were last arranged by it
    "sharded",  # 1: hints go by sharded pub/sub
)
"""Numbers that every script loads, and writes back where they have changed: the field `ledger` of the hash `meta`."""

STRUCTS: Final[Mapping[str, type[Struct]]] = {
    "PROFILE": records.Profile,
    "EXTRA": records.Extra,
    "ROW": records.Row,
    "SETTLE": records.Settle,
    "ADOPTED": records.Adopted,
    "HOLDER": records.Holder,
    "LINE": records.Line,
    "TOLD": records.Told,
    "PARENT": Parent,
    "ATTEMPT": Attempt,
    "PUT": Put,
    "FILL": Fill,
    "READ": ReadRequest,
    "NAMES": Invalidation,
    "OWNER": Owner,
}
"""Records whose fields scripts find by their place."""

WORDS: Final[Mapping[str, type[StrEnum | IntEnum]]] = {
    "EVENT": JobEvent,
    "KIND": JobKind,
    "EDGE": Edge,
    "REFUSAL": Refusal,
    "CONFLICT": OnConflict,
    "UNTIL": UniqueUntil,
    "FATE": Fate,
    "SCOPE": Scope,
}
"""Enumerations, by the names of their members."""

_HEAD: Final = re.compile(r"-- (\w[\w ]*): (.*)")
_KEY: Final = re.compile(r"\bK\.(\w+)")
_NAME: Final = re.compile(r"\b([A-Z]+)\.(\w+)\b")
_COMMENT: Final = re.compile(r"(^|[^\S\n])-- .*", re.MULTILINE)
_DEFINES: Final = re.compile(
    r"local function (?P<name>\w+)\(|function \w+:(?P<method>\w+)\(|local (?P<rows>\w+) = (?:hash|index)\(K\.\w+(?:, true)?\)$"
)
_WORD: Final = re.compile(r"\w+")
_FUNCTION: Final = re.compile(r"^local function (\w+)\(", re.MULTILINE)
_MAKING: Final = "local function make()"
_MAKE: Final = "setmetatable(F, {__index = function(_, name) setmetatable(F, nil) make() return F[name] end})"
_INNER: Final = "return (function()"
_OUTER: Final = "end)()"
_END_OF_PART: Final = "PART ENDS"
_STATE_SETS: Final = {"FINAL": FINAL, "WAITING": WAITING}
_EVENT_SETS: Final = {"SETTLING": SETTLING, "UNCOUNTED": UNCOUNTED}
_FLAGS: Final = frozenset({"allow-oom", "no-writes"})


class ScriptError(Exception):
    """A script's text is at fault."""


@dataclass(frozen=True, slots=True)
class Script:
    """A verb as the server gets it. `keys`: the names of those it touches, in the order of KEYS."""

    name: str
    text: str
    keys: tuple[str, ...]
    sha: str


@dataclass(frozen=True, slots=True)
class Head:
    """What the comment at a text's beginning says."""

    said: Mapping[str, str]

    @classmethod
    def of(cls, name: str, text: str) -> Head:
        """Read it. Raises ScriptError if there is none."""
        said: dict[str, str] = {}
        for line in text.splitlines():
            match = _HEAD.fullmatch(line)
            if match is None:
                break
            said[match[1]] = match[2]
        if name not in said:
            raise ScriptError(f"{name}.lua: its first line says what it does, as `-- {name}: ...`")
        return cls(said)

    def list(self, field: str) -> tuple[str, ...]:
        """Return a list, one that is not there as an empty one."""
        given = self.said.get(field, "none")
        return () if given == "none" else tuple(given.replace(",", " ").split())


@cache
def script(name: str) -> Script:
    """Put a verb's script together."""
    head = Head.of(name, source(name))
    flags = head.list("flags")
    if not _FLAGS.issuperset(flags):
        raise ScriptError(f"{name}.lua: flags {flags}; there are {sorted(_FLAGS)}")
    parts = ("prelude", *head.list("uses"), name)
    lazy = ["rows" in parts and "made" in Head.of(part, source(part)).said for part in parts]
    used = _used("\n".join(_COMMENT.sub("", _bounded(part)) for part in parts))
    body = _slim(_joined(used, lazy))
    body = _with_tables(name, body, reads_only="no-writes" in flags)
    keys = tuple(sorted(set(_KEY.findall(body))))
    places = {key: number for number, key in enumerate(keys, 1)}
    body = _KEY.sub(lambda match: f"KEYS[{places[match[1]]}]", body)
    body = _NAME.sub(lambda match: _constant(name, match), body)
    text = f"#!lua flags={','.join(flags)}\n{body}" if flags else f"#!lua\n{body}"
    return Script(name, text, keys, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def verbs() -> tuple[str, ...]:
    """Return the names of all verbs."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.lua") if path.stem not in PARTS))


@cache
def source(name: str) -> str:
    """Return a text as it was written."""
    return (FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _with_tables(name: str, body: str, *, reads_only: bool) -> str:
    """Put in the tables that the text asks for, among what is made when it is asked for if they can lie there."""
    tables = {word: _set_of(str(STATES[state]) for state in states) for word, states in _STATE_SETS.items()}
    tables |= {word: _set_of(_quoted(event) for event in events) for word, events in _EVENT_SETS.items()}
    moves = [
        f"{STATES[state]}{event.value}{STATES[end]}" for (state, event), ends in TRANSITIONS.items() for end in ends
    ]
    tables["NAMES_OF_STATES"] = "{" + ", ".join(f"[{STATES[one]}] = '{one}'" for one in JobState) + "}"
    tables["MOVES"] = _set_of(_quoted(move) for move in moves)
    tables["ENDINGS"] = _endings()
    before, opening, rest = body.partition(f"{_MAKING}\n")
    inside, closing, behind = rest.partition(f"{_MAKE}\n")

    def asked_for(word: str, *texts: str) -> bool:
        return any(re.search(rf"\b{word}\b", text) for text in texts)

    header = [
        f"local SCRIPT, READS_ONLY = '{name}', {str(reads_only).lower()}",
        f"local LEDGER, NO_LEDGER = '>{'d' * len(LEDGER)}', string.rep('\\0', {8 * len(LEDGER)})",
    ]
    tables["ID_ENTRY"] = _quoted(id_entry(""))
    later: list[str] = []
    for word, table in tables.items():
        if asked_for(word, before, behind):
            header.append(f"local {word} = {table}")
        elif asked_for(word, inside):
            later.append(f"local {word} = {table}")
    return "".join(
        (*(f"{line}\n" for line in header), before, opening, *(f"{line}\n" for line in later), inside, closing, behind)
    )


def _endings() -> str:
    """What the end of an attempt comes to, by its event and then 0 or 1 for: a scope; asked to cancel; lost too often."""
    rows: list[str] = []
    answers = (False, True)
    for event, scope, asked, spent in itertools.product(sorted(SETTLING | {JobEvent.LOSE}), answers, answers, answers):
        happens, final = ending(event, scope=scope, asked=asked, spent=spent)
        end = "false" if final is None else STATES[final]
        rows.append(f"['{event}{scope:d}{asked:d}{spent:d}'] = {{{_quoted(happens)}, {end}}}")
    return "{" + ", ".join(rows) + "}"


def _set_of(values: Iterable[str]) -> str:
    return "{" + ", ".join(f"[{value}] = true" for value in sorted(values)) + "}"


def _constant(script_name: str, match: re.Match[str]) -> str:
    group, name = match[1], match[2]
    value = constants(group).get(name)
    if value is None:
        if group in STRUCTS or group in WORDS or group in ("M", "LIMIT", "STATE", "WAY"):
            raise ScriptError(f"{script_name}.lua: {group}.{name} is not known")
        return match[0]
    return value


@cache
def constants(group: str) -> Mapping[str, str]:
    """Return what stands for the names of a group, as Lua writes it."""
    if group == "M":
        return {name: f"M[{number}]" for number, name in enumerate(LEDGER, 1)}
    if group == "LIMIT":
        return {name: str(value) for name, value in vars(limits).items() if isinstance(value, int)} | {
            "PAGE": str(records.PAGE)
        }
    if group == "STATE":
        return {state.name: str(code) for state, code in STATES.items()}
    if group == "WAY":
        return {name: str(getattr(records, name)) for name in ("OTHER", "PLAIN", "LINED")}
    if group in WORDS:
        return {member.name: _quoted(member.value) for member in WORDS[group]}
    if group in STRUCTS:
        return {name: str(number) for number, name in enumerate(STRUCTS[group].__struct_fields__, 1)}
    return {}


def _quoted(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _bounded(part: str) -> str:
    return f"{source(part)}\n{_END_OF_PART}"


def _joined(text: str, lazy: list[bool]) -> str:
    """Join the parts. Their functions become fields of a table, for Lua bears 200 locals and pays for each in each closure;
    those of parts that are made when they are asked for are defined by the first call of one of them.
    """
    prelude, *rest = text.removesuffix(_END_OF_PART).split(f"{_END_OF_PART}\n")
    names = _FUNCTION.findall("\n".join(rest))
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ScriptError(f"two functions are called {twice}")
    if names:
        either = "|".join(names)
        variable = re.search(
            rf"\blocal (?!function)[^\n=]*\b({either})\b|\bfor [^\n]*\b({either})\b[^\n]* (?:in|=) |function[ \w]*\([^)\n]*\b({either})\b",
            "\n".join(rest),
        )
        if variable:
            raise ScriptError(f"a function has the name of a variable: {variable[0]}")
        called = re.compile(rf"(?<![\w.:'\"])({either})(?![\w'\"])")
        rest = [called.sub(r"F.\1", part).replace("local function F.", "function F.") for part in rest]
    eager = [part for part, is_lazy in zip(rest, lazy[1:], strict=True) if not is_lazy]
    later = [part for part, is_lazy in zip(rest, lazy[1:], strict=True) if is_lazy]
    if later:
        eager.insert(lazy.index(True) - 1, "\n".join((_MAKING, *later, "end", _MAKE)))
    # Each part in a function of its own within that of the part before: a function finds its own part's variables in a
    # list, one after another, and those of the parts around it at once.
    return "\n".join(("local F = {}", f"\n{_INNER}\n".join((prelude, *eager)), *[_OUTER] * len(eager)))


def _slim(text: str) -> str:
    """Leave out indents and empty lines."""
    lines = (line.strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def _used(text: str) -> str:
    """Leave out functions and rows that nothing asks for: a script makes all that it has anew at each call."""
    pieces: list[tuple[str, str]] = []  # the name by which it is asked for, if it may go; its text
    lines = iter(text.splitlines())
    for line in lines:
        match = _DEFINES.match(line)
        piece = [line]
        if match and match["rows"] is None and not line.endswith(" end"):
            for more in lines:
                piece.append(more)
                if more == "end":
                    break
        pieces.append((match["method"] or match["name"] or match["rows"] if match else "", "\n".join(piece)))
    words = [frozenset(_WORD.findall(piece)) for _, piece in pieces]
    asked = Counter(word for some in words for word in some)
    kept = dict.fromkeys(range(len(pieces)))
    while True:
        idle = [place for place in kept if pieces[place][0] and asked[pieces[place][0]] < 2]
        if not idle:
            return "\n".join(pieces[place][1] for place in kept)
        for place in idle:
            del kept[place]
            asked.subtract(words[place])
