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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Raw, Struct

from selaras._contracts import limits
from selaras._contracts.partition import Fill, Invalidation, Owner, ReadRequest
from selaras._core.jobs.job import Attempt, Edge, Fate, JobKind, OnConflict, Parent, Put, Refusal, UniqueUntil
from selaras._core.jobs.lifecycle import FINAL, SETTLING, TRANSITIONS, UNCOUNTED, WAITING, ending
from selaras._core.jobs.reasons import Reason
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import Scope
from selaras._core.routing import id_entry
from selaras._stores.redis import records
from selaras._stores.redis.records import STATES

FOLDER: Final = Path(__file__).parent / "lua"

PARTS: Final = (
    *("prelude", "log", "rows", "cells"),
    *("jobs", "lines", "parents", "admission", "claims", "attempts", "ends", "workers"),
    *("mending", "plain"),
)
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
    "INTENT": records.Standing,
    "FLOOR": records.Floor,
    "NAME": records.Name,
    "DEPENDENT": records.Dependent,
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
    "REASON": Reason,
    "CONFLICT": OnConflict,
    "UNTIL": UniqueUntil,
    "FATE": Fate,
    "SCOPE": Scope,
}
"""Enumerations, by the names of their members."""

_HEAD: Final = re.compile(r"-- (\w[\w ]*): (.*)")
_KEY: Final = re.compile(r"\bK\.(\w+)")
_NAME: Final = re.compile(r"\b([A-Z]+)\.(\w+)\b")
_ROWS: Final = re.compile(r"\bhash\(K\.(\w+)\)")
_COMMENT: Final = re.compile(r"(^|[^\S\n])-- .*", re.MULTILINE)
_DEFINES: Final = re.compile(
    r"local function (?P<name>\w+)\(|function (?P<kind>\w+):(?P<method>\w+)\(|local (?P<rows>\w+) = (?:hash|index)\(K\.\w+\)$"
    r"|local (?P<class>[A-Z]\w+) = { __index = .*}$|(?P<index>[A-Z]\w+)\.__index = "
)
_WORD: Final = re.compile(r"\w+")
_CALLED: Final = re.compile(r"(?<![\w.:'\"])([A-Za-z_]\w*)(?![\w'\"])")
_FUNCTION: Final = re.compile(r"^local function (\w+)\(", re.MULTILINE)
_FIELD: Final = re.compile(r"^function F\.(\w+)\(", re.MULTILINE)
_MAKING: Final = "MAKERS[#MAKERS + 1] = function()"
_MAKE: Final = """local made = 0
setmetatable(F, {__index = function(_, name)
while made < #MAKERS do
made = made + 1
MAKERS[made]()
local found = rawget(F, name)
if found then return found end
end
end})
"""
_WITH_THE_ONE_BEFORE: Final = "with the part before it"
_INNER: Final = "return (function()"
_OUTER: Final = "end)()"
_STATE_SETS: Final = {"FINAL": FINAL, "WAITING": WAITING}
_EVENT_SETS: Final = {"SETTLING": SETTLING, "UNCOUNTED": UNCOUNTED}
_FLAGS: Final = frozenset({"allow-oom", "no-writes"})


class ScriptError(Exception):
    """A script's text is at fault."""


@dataclass(frozen=True, slots=True)
class Script:
    """A verb as the server gets it. `keys`: the names of those it touches, in the order of KEYS. `writes`: it may."""

    name: str
    text: str
    keys: tuple[str, ...]
    sha: str
    writes: bool


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


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text that stays or goes as a whole: a script makes all that it has anew at each call.

    Attributes:
        name: by which others ask for it; "": it always stays.
        asks: all words in it, and so what it asks for.
        kind: of the objects whose method it is: it stays where something makes such.
    """

    name: str
    text: str
    asks: frozenset[str]
    kind: str = ""


@cache
def script(name: str) -> Script:
    """Put a verb's script together."""
    head = Head.of(name, source(name))
    flags = head.list("flags")
    if not _FLAGS.issuperset(flags):
        raise ScriptError(f"{name}.lua: flags {flags}; there are {sorted(_FLAGS)}")
    parts = ("prelude", *used(name), name)
    kept = _asked_for([pieces(part) for part in parts])
    made = [Head.of(part, source(part)).said.get("made", "") if "rows" in parts else "" for part in parts]
    writes = "no-writes" not in flags
    body = _joined(name, kept, made, reads_only=not writes)
    keys = tuple(sorted(set(_KEY.findall(body))))
    places = {key: number for number, key in enumerate(keys, 1)}
    body = _KEY.sub(lambda match: f"KEYS[{places[match[1]]}]", body)
    text = f"#!lua flags={','.join(flags)}\n{body}" if flags else f"#!lua\n{body}"
    return Script(name, text, keys, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), writes)


@cache
def pieces(part: str) -> tuple[Piece, ...]:
    """Return a text in pieces, with all in it that is the same in every script.

    Functions of the parts, but for the prelude's, become fields of a table: Lua bears 200 locals, and pays for each in each closure.
    """
    text = _ROWS.sub(_kind_of_rows, _COMMENT.sub("", source(part)))
    own = _FUNCTION.findall(text) if part != "prelude" else ()
    known = functions() if part in PARTS else functions(used(part))
    called = {*known, *own, *(f"IS_{name}" for name in _stored())}
    if part != "prelude":
        words = _CALLED.split(text)
        words[1::2] = map({name: f"F.{name}" for name in called}.get, words[1::2], words[1::2])
        text = "".join(words)
    found: list[Piece] = []
    lines = iter(text.splitlines())
    for line in lines:
        match = _DEFINES.match(line.replace("local function F.", "local function "))
        piece = [line]
        if match and (match["name"] or match["method"]) and not line.endswith(" end"):
            for more in lines:
                piece.append(more)
                if more == "end":
                    break
        made = _slim("\n".join(piece)).replace("local function F.", "function F.")
        name = next(one for one in match.group("method", "name", "rows", "class", "index") if one) if match else ""
        if made:
            constant = _NAME.sub(lambda match: _constant(part, match), made)
            kind = (match["kind"] or "") if match else ""
            found.append(Piece(name, constant, frozenset(_WORD.findall(made)), kind))  # events have names of functions
    return tuple(found)


@cache
def functions(parts: tuple[str, ...] = PARTS[1:]) -> frozenset[str]:
    """Return the names of all functions of parts that are made fields of a table: the prelude's are not."""
    return frozenset(name for part in parts for name in _FUNCTION.findall(source(part)))


@cache
def used(name: str) -> tuple[str, ...]:
    """Return the parts that a text uses, in order. One that is written in several files (`-- of: jobs`) comes whole."""
    said = Head.of(name, source(name)).list("uses")
    return tuple(part for part in PARTS[1:] if not {part, Head.of(part, source(part)).said.get("of")}.isdisjoint(said))


def _kind_of_rows(match: re.Match[str]) -> str:
    kind = records.HASHES[match[1]]
    words = (str(kind.is_packed).lower(), *(_quoted(word) if word else "nil" for word in (kind.check, kind.mend)))
    return f"hash(K.{match[1]}, {', '.join(words)})"


def verbs() -> tuple[str, ...]:
    """Return the names of all verbs."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.lua") if path.stem not in PARTS))


@cache
def source(name: str) -> str:
    """Return a text as it was written."""
    return (FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _asked_for(texts: Sequence[Sequence[Piece]]) -> list[list[Piece]]:
    """Leave out what nothing asks for."""
    called: dict[str, list[Piece]] = {}
    for text in texts:
        for piece in text:
            called.setdefault(piece.name, []).append(piece)
    for name, table in tables().items():
        called.setdefault(name, []).append(table)
    asked, todo = {""}, [""]
    methods: dict[str, list[Piece]] = {}  # asked for by name, of kinds that nothing has made yet
    while todo:
        name = todo.pop()
        for piece in (*called[name], *methods.pop(name, ())):
            if piece.kind not in asked:
                methods.setdefault(piece.kind, []).append(piece)
                continue
            new = [word for word in piece.asks if word in called and word not in asked]
            asked.update(new)
            todo += new
    return [[piece for piece in text if piece.name in asked and piece.kind in asked] for text in texts]


def _joined(name: str, kept: Sequence[Sequence[Piece]], made: Sequence[str], *, reads_only: bool) -> str:
    """Join the texts, each in a function of its own within that of the one before: a function finds its own part's variables
    in a list, one after another, and those of the parts around it at once. Parts that are made when they are asked for are
    made, in turn, until there is what was called.
    """
    eager: list[Sequence[Piece]] = []
    later: list[list[Piece]] = []
    first = 0
    for text, when in zip(kept, made, strict=True):
        if not when:
            eager.append(text)
        elif when == _WITH_THE_ONE_BEFORE:
            later[-1] += text
        else:
            first = first or len(eager)
            later.append(list(text))
    at_once = _tables_for(eager, ())
    local = "".join(table.text for table in at_once if table.text.startswith("local "))
    others = "".join(table.text for table in at_once if not table.text.startswith("local "))
    prelude, *rest = ["".join(piece.text for piece in text) for text in eager]
    own = _FIELD.findall("".join((others, *rest)))
    if later:
        makers = [_maker([*_tables_for([text], at_once), *text]) for text in later]
        rest.insert(first - 1, f"local MAKERS = {{}}\n{''.join(makers)}{_MAKE}")
    header = (
        f"local F = {{{', '.join(f'{name} = false' for name in own)}}}\n"  # it does not grow, which costs more than all of it
        f"local SCRIPT, READS_ONLY = '{name}', {str(reads_only).lower()}\n"
        f"local LEDGER, LEDGER_SIZE = '>{'d' * len(LEDGER)}', {8 * len(LEDGER)}\n"
    )
    body = f"{_INNER}\n".join((f"{header}{local}{prelude}{others}", *rest))
    return body + f"{_OUTER}\n" * len(rest)


def _maker(made: Iterable[Piece]) -> str:
    return f"{_MAKING}\n{''.join(piece.text for piece in made)}end\n"


def _tables_for(texts: Sequence[Sequence[Piece]], but: Sequence[Piece]) -> list[Piece]:
    asked = {word for text in texts for piece in text for word in piece.asks}
    return [table for table in tables().values() if table.name in asked and table not in but]


@cache
def tables() -> Mapping[str, Piece]:
    """Return what stands for the words in capitals, by word."""
    made = {word: _set_of(str(STATES[state]) for state in states) for word, states in _STATE_SETS.items()}
    made |= {word: _set_of(_quoted(event) for event in events) for word, events in _EVENT_SETS.items()}
    moves = [
        f"{STATES[state]}{event.value}{STATES[end]}" for (state, event), ends in TRANSITIONS.items() for end in ends
    ]
    made["NAMES_OF_STATES"] = "{" + ", ".join(f"[{STATES[one]}] = '{one}'" for one in JobState) + "}"
    made["MOVES"] = _set_of(_quoted(move) for move in moves)
    made["ENDINGS"] = _endings()
    made["ID_ENTRY"] = _quoted(id_entry(""))
    made["USUAL_PROFILE"] = _bytes_of(msgspec.msgpack.encode(records.UNKNOWN))
    made["CORRUPT"] = _bytes_of(records.CORRUPT.encode())
    made["WHY_CORRUPT"] = _bytes_of(f"{records.CORRUPT.type}: {records.CORRUPT.message}".encode())
    found = {word: Piece(word, f"local {word} = {table}\n", frozenset()) for word, table in made.items()}
    for name in _stored():
        check = f"function F.IS_{name}(r)\nreturn type(r) == 'table' and {sound(STRUCTS[name])}\nend\n"
        found[f"IS_{name}"] = Piece(f"IS_{name}", check, frozenset(_WORD.findall(check)))
    return found


@cache
def _stored() -> tuple[str, ...]:
    """Return of which records the scripts ask whether what is stored is one; in the same order in every process, for texts
    that differ are scripts of their own to a server, which keeps all it was ever given.
    """
    said = {kind.check or "" for kind in records.HASHES.values()}
    texts = " ".join((*said, *(source(part) for part in (*PARTS, *verbs()))))
    return tuple(name for name in STRUCTS if f"IS_{name}" in texts)


def sound(struct: type[Struct]) -> str:
    """Return what Lua asks of `r` to see whether it is such an array; fields at the end may be left out if they have a default."""
    hints = get_type_hints(struct, include_extras=True)
    asked: list[str] = []
    needed = len(struct.__struct_fields__) - len(struct.__struct_defaults__)
    for place, name in enumerate(struct.__struct_fields__, 1):
        one = _sound(hints[name], f"r[{place}]")
        if one:
            asked.append(one if place <= needed else f"(r[{place}] == nil or {one})")
    return " and ".join(asked)


def _sound(hint: Any, value: str) -> str:
    """Return what Lua asks of a value of this type; "": nothing."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        asked = [_sound(arguments[0], value)]
        for meta in arguments[1:]:
            if isinstance(meta, Meta) and meta.ge is not None:
                asked.append(f"{value} >= {meta.ge} and {value} <= {meta.le}")
            elif isinstance(meta, Meta) and meta.pattern:
                asked.append(f"is_id({value})")
        return " and ".join(asked)
    if origin in (Union, UnionType):
        return "(" + " or ".join(_sound(argument, value) for argument in arguments) + ")"
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        inner = _sound(arguments[0], "v")
        return f"each_is({value}, function(v) return {inner} end)" if inner else f"type({value}) == 'table'"
    if origin is tuple:
        inner = " and ".join(filter(None, (_sound(one, f"{value}[{at}]") for at, one in enumerate(arguments, 1))))
        return f"type({value}) == 'table' and {inner}"
    if hint is bool:
        return f"type({value}) == 'boolean'"
    if hint is int:
        return f"type({value}) == 'number' and {value} % 1 == 0 and {value} < 9.3e18"
    if hint is Raw:
        return f"({value} == false or type({value}) == 'string')"
    if isinstance(hint, type) and issubclass(hint, (str, bytes)):
        return f"type({value}) == 'string'"
    return ""


def _endings() -> str:
    """What the end of an attempt comes to, by its event and then 0 or 1 for: a scope; asked to cancel; lost too often."""
    rows: list[str] = []
    answers = (False, True)
    for event, scope, asked, spent in itertools.product(sorted(SETTLING | {JobEvent.LOSE}), answers, answers, answers):
        happens, final = ending(event, scope=scope, asked=asked, spent=spent)
        end = "false" if final is None else STATES[final]
        rows.append(f"['{event}{scope:d}{asked:d}{spent:d}'] = {{{_quoted(happens)}, {end}}}")
    return "{" + ", ".join(rows) + "}"


def _bytes_of(data: bytes) -> str:
    """Return bytes as Lua writes them."""
    return "'" + "".join(f"\\{byte:03d}" for byte in data) + "'"


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
            name: str(getattr(records, name))
            for name in (
                *("PAGE", "MENDED_LEASE_US", "MENDED_AT_ONCE", "LOOKED_AT", "ARRANGED_AT_ONCE", "PUSHED_MOST"),
                *("EXPIRED_PER_TURN", "TAKEN_AT_ONCE", "OWNERS_MOST"),
            )
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
    return "'" + value.replace("'", "\\'") + "'" if isinstance(value, str) else str(value)


def _slim(text: str) -> str:
    """Leave out indents and empty lines."""
    lines = (line.strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line)
