"""One connection to a memcached that answers in pieces, or nonsense: everybody is told something, and nothing is raised."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from selaras._contracts.shelf import Found, ShelfDown
from selaras._stores.memcached.line import Classic, Line, Meta, Tongue


class Heard(asyncio.Transport):
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.said = b""
        self.aborted = False

    def write(self, data: Any) -> None:
        self.said += data

    def abort(self) -> None:
        self.aborted = True


def a_line(tongue: Tongue, asked: int, put: int = 0) -> tuple[Line, list[Found | ShelfDown | None], Heard]:
    loop = asyncio.get_running_loop()
    line, told, transport = Line(loop, patience_s=60, lost=lambda _: None), list[Any](), Heard()
    line._tongue = tongue
    line.connection_made(transport)
    for _ in range(put):
        line.put(b"n", b"v", 1, None)
    for _ in range(asked):
        line.ask(b"n", told.append)
    return line, told, transport


META = b"EN\r\nVA 3 c7\r\nE\r\n\r\nVA 0 c8\r\n\r\n"
CLASSIC = b"END\r\nVALUE n 0 3 7\r\nE\r\n\r\nEND\r\nVALUE n 0 0 8\r\n\r\nEND\r\n"
TOLD = [None, Found(b"E\r\n", 7), Found(b"", 8)]


@pytest.mark.parametrize(("tongue", "answer"), [(Meta(), META), (Classic(), CLASSIC)], ids=["meta", "classic"])
async def test_answers_come_in_any_pieces(tongue: Tongue, answer: bytes) -> None:
    for size in range(1, len(answer) + 1):
        line, told, _ = a_line(tongue, asked=3)
        for at in range(0, len(answer), size):
            line.data_received(answer[at : at + size])
        assert told == TOLD
        line.abort("done")


async def test_puts_are_answered_between() -> None:
    line, told, transport = a_line(Meta(), asked=1, put=3)

    line.data_received(b"HD\r\nNS \r\nSERVER_ERROR out of memory storing object\r\nEN\r\n")

    assert (told, transport.aborted) == ([None], False)
    line.abort("done")


@pytest.mark.parametrize("nonsense", [b"ERROR\r\n", b"CLIENT_ERROR bad data chunk\r\n", b"VA x c1\r\n", b"VA " + b"1" * 5_000 + b" c1\r\n", b"VA 1\r\n", b"HD\r\n",
                                      b"VA 1 c1\r\nxyz\r\n", b"EN\r\nEN\r\nEN\r\n", b"-ERR unknown command\r\n"])  # fmt: skip
async def test_nonsense_ends_the_connection_and_everybody_is_told(nonsense: bytes) -> None:
    line, told, transport = a_line(Meta(), asked=2)

    line.data_received(nonsense)

    assert transport.aborted
    assert len(told) == 2
    assert all(one is None or isinstance(one, ShelfDown) for one in told)
    line.data_received(b"EN\r\n")  # what still comes is nobody's
    line.ask(b"n", told.append)
    await asyncio.sleep(0)
    assert isinstance(told[2], ShelfDown)


@given(
    st.lists(
        st.one_of(st.binary(max_size=20), st.sampled_from([b"VA 2 c1\r\n", b"EN\r\n", b"xy\r\n", b"HD\r\n"])),
        max_size=12,
    )
)
def test_whatever_comes_nothing_is_raised_and_nobody_waits_for_ever(pieces: list[bytes]) -> None:
    async def run() -> None:
        for tongue in (Meta(), Classic()):
            line, told, _ = a_line(tongue, asked=3, put=1)
            for piece in pieces:
                line.data_received(piece)
            line.connection_lost(None)
            assert len(told) == 3

    asyncio.run(run())
