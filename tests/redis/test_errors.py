"""What servers say when they refuse, and what is told of it."""

from __future__ import annotations

import pytest

from selaras import StoreRefused, StoreUnavailable
from selaras._stores.redis.errors import Loading, Meaning, meaning_of, told

SCRIPT = "script: d6be26f2ea43db7c1f6de33a53b2b5ea31fcd4c1, on @user_script:5."

SAID = {
    "MOVED 3999 127.0.0.1:6381": Meaning.MOVED,
    "NOSCRIPT No matching script. Please use EVAL.": Meaning.UNLOADED,
    "ERR max number of clients reached": Meaning.SOON,
    "READONLY You can't write against a read only replica.": Meaning.DEMOTED,
    f"OOM command not allowed when used memory > 'maxmemory'. {SCRIPT}": Meaning.FULL,
    f"ERR user_script:5: -OOM command not allowed when used memory > 'maxmemory'. {SCRIPT}": Meaning.FULL,
    f"ERR user_script:5: -READONLY You can't write against a read only replica. {SCRIPT}": Meaning.DEMOTED,
    f"ERR The user executing the script can't run this command or subcommand {SCRIPT}": Meaning.REFUSED,
    f"ERR user_script:5: attempt to index a nil value (local 'row') {SCRIPT}": Meaning.FAULT,
    "NOAUTH Authentication required.": Meaning.REFUSED,
    "WRONGPASS invalid username-password pair or user is disabled.": Meaning.REFUSED,
    "ERR invalid password": Meaning.REFUSED,
    "ERR invalid username-password pair": Meaning.REFUSED,
    "ERR Client sent AUTH, but no password is set": Meaning.REFUSED,
    "ERR DB index is out of range": Meaning.REFUSED,
    "ERR SELECT is not allowed in cluster mode": Meaning.REFUSED,
    "ERR value is not an integer or out of range": Meaning.OTHER,
}


@pytest.mark.parametrize("text", SAID)
def test_what_a_server_says_means_what_is_to_be_done(text: str) -> None:
    assert meaning_of(Exception(text)) is SAID[text]


REFUSED = {
    "NOAUTH Authentication required.": "h:1 asks for a password",
    "ERR HELLO must be called with the client already authenticated": "h:1 asks for a password",
    "WRONGPASS Wrong.": "h:1 refuses this user name or password",
    "ERR invalid username-password pair": "h:1 refuses this user name or password",
    "ERR AUTH <password> called without any password configured for the default user.": "h:1 refuses this user name or",
    "DENIED Redis is running in protected mode": "h:1 is in protected mode",
    "ERR DB index is out of range": "h:1 has no database of the number",
    "NOPERM this user has no permissions to run the 'get' command": r"h:1 does not allow turn: NOPERM .* \(it uses hget\)",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_refusal_says_what_is_to_be_changed(text: str) -> None:
    error = told(
        Exception(text), Meaning.REFUSED, where="h:1", doing="turn", script="redis.call('HGET', K.meta, 'ledger')"
    )
    with pytest.raises(StoreRefused, match=REFUSED[text]):
        raise error


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("MISCONF Redis is configured to save RDB snapshots", StoreUnavailable, "could not save to its disk"),
        ("OOM command not allowed", StoreUnavailable, "is out of memory .* nothing was done"),
        ("LOADING Redis is loading the dataset in memory", Loading, "is loading its data .* nothing was done"),
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            StoreUnavailable,
            "answered 'TRYAGAIN .* nothing was",
        ),
        (f"ERR user_script:5: attempt to index {SCRIPT}", RuntimeError, "turn at h:1: ERR user_script:5"),
        (
            "ERR Protocol error: invalid bulk length",
            StoreUnavailable,
            "no message of that size .* proto-max-bulk-len; nothing was done",
        ),
        ("ERR value is not an integer", StoreUnavailable, "answered 'ERR value is not an integer'"),
    ],
)
def test_what_else_a_server_refuses_is_told_in_words(text: str, kind: type[Exception], words: str) -> None:
    error = told(Exception(text), meaning_of(Exception(text)), where="h:1", doing="turn")

    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise error
