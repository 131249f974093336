"""What a server's error means: to whom it is told, and whether the same command may be sent again.

Each of these errors says that the command was not carried out, so to send it again, there or elsewhere, repeats nothing.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from selaras._core.errors import StoreRefused, StoreUnavailable
from selaras._stores.redis.rights import commands_in
from selaras._stores.redis.wire import ReplyError

RIGHTS_PAGE: Final = "docs/redis.md#rights"


class Loading(StoreUnavailable):
    """The server was started and reads what it had kept: it is there, and will answer."""


class Passing(StoreUnavailable):
    """Somebody is there, and what came between passes by itself: a connection that was cut, a master that is being replaced."""


class Crowded(Passing):
    """It has as many clients as it takes."""


class Silent(StoreUnavailable):
    """Somebody takes connections there, and says nothing."""


# The store tells them apart; to a program, and in its logs, they are what is documented.
for _kind in (Loading, Passing, Crowded, Silent):
    _kind.__module__, _kind.__name__ = StoreUnavailable.__module__, StoreUnavailable.__name__
    _kind.__qualname__ = StoreUnavailable.__qualname__


class Meaning(Enum):
    """What to do about an error."""

    MOVED = auto()
    """Another server of the cluster has the slot now."""
    ASK = auto()
    """The slot is on its way to another server: ask there, this once."""
    UNLOADED = auto()
    """The server does not know the script: load it, and send the command again."""
    GONE = auto()
    """The partition lost its memory: greet it, and send the command again."""
    MISTYPED = auto()
    """A script broke off, maybe half done, at a key of another type: somebody else wrote there. Greeted, the partition is mended."""
    SOON = auto()
    """It passes by itself, usually within seconds: wait, and send the command again."""
    DEMOTED = auto()
    """It is not the master any more: find out who is, and send the command there."""
    FULL = auto()
    """Its memory is full."""
    REFUSED = auto()
    """Password, rights or the number of the database: somebody must change them."""
    FAULT = auto()
    """A script went wrong: that is a fault of ours."""
    OTHER = auto()
    """Something we do not know."""


FINAL: Final = frozenset({Meaning.FULL, Meaning.REFUSED, Meaning.FAULT, Meaning.OTHER})
"""What the same command would meet again."""

_MEANINGS: Final = {
    "MOVED": Meaning.MOVED,
    "ASK": Meaning.ASK,
    "NOSCRIPT": Meaning.UNLOADED,
    "SELARASGONE": Meaning.GONE,
    "TRYAGAIN": Meaning.SOON,
    "LOADING": Meaning.SOON,
    "BUSY": Meaning.SOON,
    "CLUSTERDOWN": Meaning.SOON,
    "NOREPLICAS": Meaning.SOON,
    "READONLY": Meaning.DEMOTED,
    "MASTERDOWN": Meaning.DEMOTED,
    "UNBLOCKED": Meaning.DEMOTED,
    "OOM": Meaning.FULL,
    "MISCONF": Meaning.FULL,
    "NOPERM": Meaning.REFUSED,
    "NOAUTH": Meaning.REFUSED,
    "WRONGPASS": Meaning.REFUSED,
    "DENIED": Meaning.REFUSED,
}

_FULL_HOUSE: Final = "max number of clients"
_NO_SUCH_DB: Final = re.compile(r"DB index is out of range|SELECT is not allowed in cluster mode")
_SCRIPT_FAULT: Final = re.compile(r"user_script|user_function|running script|script: [0-9a-f]{40}")


def meaning_of(error: Exception) -> Meaning:
    """Read an error reply. An error that a script met and passed on counts as itself."""
    text = str(error)
    found = _MEANINGS.get(text.partition(" ")[0])
    if found is not None:
        return found
    if _FULL_HOUSE in text:
        return Meaning.SOON
    if "invalid username-password pair" in text or "invalid password" in text or "AUTH" in text:
        return Meaning.REFUSED
    if _NO_SUCH_DB.search(text):
        return Meaning.REFUSED
    if _SCRIPT_FAULT.search(text):
        if is_mistyped(error):
            return Meaning.MISTYPED
        # A script that is not allowed a command, or meets a full memory, says so in the middle of its own words.
        inner = next((meaning for word, meaning in _INNER if word in text), None)
        return inner or Meaning.FAULT
    return Meaning.OTHER


_INNER: Final = (
    ("NOPERM", Meaning.REFUSED),
    ("ACL failure", Meaning.REFUSED),
    ("The user executing the script can't", Meaning.REFUSED),
    ("No permissions", Meaning.REFUSED),
    ("OOM ", Meaning.FULL),
    ("-READONLY", Meaning.DEMOTED),
)


def is_mistyped(reply: object) -> bool:
    """Say whether a command met a key of another type than its own: somebody else wrote there."""
    return isinstance(reply, ReplyError) and str(reply).startswith("WRONGTYPE")


def told(error: Exception, meaning: Meaning, *, where: str, doing: str, script: str = "") -> Exception:
    """Put an error into words for people.

    Args:
        where: the server. doing: what it was asked, such as "turn of partition 0". script: its text.
    """
    text = str(error)
    match meaning:
        case Meaning.REFUSED:
            return StoreRefused(_refusal(text, where, doing, script))
        case Meaning.FULL if text.startswith("MISCONF"):
            return StoreUnavailable(
                f"{where} takes no writes because it could not save to its disk ({doing}): make room there, or see its log"
            )
        case Meaning.FULL:
            return StoreUnavailable(
                f"{where} is out of memory ({doing}): raise its maxmemory, or let it evict cached values only "
                "(maxmemory-policy volatile-lru); nothing was done"
            )
        case Meaning.SOON if text.startswith("LOADING"):
            return Loading(f"{where} is loading its data ({doing}); nothing was done")
        case Meaning.SOON if _FULL_HOUSE in text:
            return Crowded(f"{where} takes no more clients: raise its maxclients, or end some; nothing was done")
        case Meaning.MISTYPED:
            return StoreUnavailable(
                f"{where}: somebody has written over a whole key of the store ({doing} broke off there, and may have been done "
                "in part): it is mended at the next call; selaras doctor tells which"
            )
        case Meaning.FAULT:
            return RuntimeError(f"{doing} at {where}: {text}")
        case _ if "invalid bulk length" in text:
            return StoreUnavailable(
                f"{where} takes no message of that size ({doing}): send less at a time, or raise its proto-max-bulk-len; "
                "nothing was done"
            )
        case _:
            return StoreUnavailable(f"{where} answered {text!r} ({doing}); nothing was done")


def _refusal(text: str, where: str, doing: str, script: str) -> str:
    if "NOAUTH" in text or "HELLO must be called" in text:
        return f"{where} asks for a password: give it in the URL, redis://user:password@host"
    if "WRONGPASS" in text or "invalid username-password pair" in text or "without any password configured" in text:
        return f"{where} refuses this user name or password ({text})"
    if "DENIED" in text:
        return f"{where} is in protected mode and takes no clients from elsewhere: give it a password or bind it"
    if _NO_SUCH_DB.search(text):
        return f"{where} has no database of the number that the URL ends with ({text}): give another, or leave it out"
    # Some servers do not say which command of a script it was.
    used = ", ".join(sorted(commands_in(script)))
    return f"{where} does not allow {doing}: {text}{f' (it uses {used})' if used else ''}. All rights: {RIGHTS_PAGE}"
