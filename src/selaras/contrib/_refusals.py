"""What a COMMIT that raised came to."""

from __future__ import annotations

from typing import Final

_UNKNOWN: Final = ("08", "57P", "40003")
"""States of SQL that say nothing of the transaction: the connection failed, the server went down, outcome unknown."""


def is_refusal(error: BaseException) -> bool:
    """Say whether this is the datastore's own answer that it did not commit. Anything else leaves it open: a time-out, a
    lost connection, a cancelled call.
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        said = _answer(one)
        if said is not None:
            return said
        original = getattr(one, "orig", None)  # as SQLAlchemy wraps it; Django says it by the cause
        one = original if isinstance(original, BaseException) else one.__cause__
    return False


def _answer(error: BaseException) -> bool | None:
    for name in ("sqlstate", "pgcode"):
        state = getattr(error, name, None)
        if isinstance(state, str) and state:
            return not state.startswith(_UNKNOWN)
    code = getattr(error, "sqlite_errorname", None)
    if isinstance(code, str):
        return code.startswith(("SQLITE_BUSY", "SQLITE_CONSTRAINT", "SQLITE_ERROR", "SQLITE_LOCKED"))
    # A name that the Python database API gives to answers alone.
    return True if any(one.__name__ == "IntegrityError" for one in type(error).__mro__) else None
