"""One connection: replies in order, deadlines, cancellation, back-pressure, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest
from tests.redis.servers import RedisServer, until

from selaras._stores.redis.address import Account, Endpoint
from selaras._stores.redis.dialling import ask_once, dial
from selaras._stores.redis.wire import BUFFER_MOST, ReplyError, Wire, WireLost, pack, tail

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def wired(port: int, **options: float) -> AsyncIterator[Wire]:
    loop = asyncio.get_running_loop()
    wire = Wire(loop, **options)  # type: ignore[arg-type] # numbers only
    await loop.create_connection(lambda: wire, "127.0.0.1", port)
    yield wire
    wire.abort("the test is over")


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """A server that does as it is told."""
    tasks: list[asyncio.Task[None]] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())  # type: ignore[arg-type] # there is one
        try:
            await serve(reader, writer)
        except (asyncio.CancelledError, OSError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks)
    await asyncio.sleep(0)


async def test_what_is_said_in_one_turn_of_the_loop_goes_out_in_one_write() -> None:
    reads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            reads.append(data)
            writer.write(b"+OK\r\n" * data.count(b"PING"))

    async with serving(serve) as port, wired(port) as wire:
        replies = await asyncio.gather(*(wire.send(pack("PING"), 1, 5) for _ in range(50)))

    assert replies == [b"OK"] * 50
    assert len(reads) == 1


async def test_replies_are_matched_in_order_whatever_their_kind(redis_server: RedisServer) -> None:
    async with wired(redis_server.port) as wire:
        wire.send(pack("SET", "a", b"\x00\r\n\xff"), 1, 5)
        two = wire.send(pack("GET", "a") + pack("GET", "b"), 2, 5)
        wrong = wire.send(pack("INCR", "a"), 1, 5)
        nested = wire.send(pack("EVAL", "return {1, {'x', false}, redis.error_reply('NO such thing')}", 0), 1, 5)
        last = wire.send(pack("ECHO", "last"), 1, 5)

        assert await two == [b"\x00\r\n\xff", None]
        assert isinstance(await wrong, ReplyError)
        answer = await nested
        assert answer[:2] == [1, [b"x", None]]
        assert str(answer[2]) == "NO such thing"
        assert await last == b"last"


async def test_a_cancelled_caller_does_not_shift_the_replies_of_others(redis_server: RedisServer) -> None:
    chance = Random(1)
    async with wired(redis_server.port) as wire:

        async def ask(number: int) -> int:
            if number % 5:
                return int(await wire.send(pack("ECHO", number), 1, 5))
            first, second = await wire.send(pack("ECHO", number) + pack("ECHO", -number), 2, 5)
            assert int(second) == -int(first)
            return int(first)

        for _ in range(20):
            tasks = [asyncio.create_task(ask(number)) for number in range(100)]
            await asyncio.sleep(0)
            for task in chance.sample(tasks, 30):
                task.cancel()
            for number, reply in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
                assert reply == number or isinstance(reply, asyncio.CancelledError)


async def test_a_caller_waits_no_longer_than_it_said_and_the_next_reply_is_not_its_own() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        await asyncio.sleep(0.3)
        writer.write(b"+late\r\n+second\r\n")

    async with serving(serve) as port, wired(port) as wire:
        patient = wire.send(pack("A"), 1, 0.1), wire.send(pack("B"), 1, 5)

        with pytest.raises(WireLost, match=r"no reply within 0.1 s") as lost:
            await patient[0]
        assert lost.value.sent
        assert await patient[1] == b"second"


async def test_a_server_that_says_nothing_is_given_up_and_somebody_is_told_before() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    quiet: list[Wire] = []
    async with serving(serve) as port:
        loop = asyncio.get_running_loop()
        wire = Wire(loop, silence_s=0.4, quiet_s=0.1, on_quiet=quiet.append)
        await loop.create_connection(lambda: wire, "127.0.0.1", port)
        await asyncio.sleep(0.6)  # nobody waits: it may say nothing as long as it likes
        assert wire.open
        assert not quiet

        with pytest.raises(WireLost, match=r"no reply for 0.4 s"):
            await wire.send(pack("PING"), 1, 5)
        assert quiet == [wire]
        assert not wire.open


async def test_a_lost_connection_says_of_each_call_whether_it_was_sent() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.close()

    async with serving(serve) as port, wired(port) as wire:
        sent = wire.send(pack("A"), 1, 5)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        unsent = wire.send(pack("B"), 1, 5)
        wire.abort("cut")
        late = wire.send(pack("C"), 1, 5)

        told = await asyncio.gather(sent, unsent, late, return_exceptions=True)
    assert [(str(one), one.sent) for one in told if isinstance(one, WireLost)] == [
        ("cut", True),
        ("cut", False),
        ("cut", False),
    ]


async def test_what_a_server_does_not_read_is_kept_up_to_a_bound() -> None:
    gate = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        while data := await reader.read(1 << 20):
            writer.write(b"+OK\r\n" * data.count(b"PING"))

    big = pack("PING", b"x" * (1 << 20))
    async with serving(serve) as port, wired(port, silence_s=30) as wire:
        replies = []
        while not wire.stuffed:
            replies.append(wire.send(big, 1, 30))
            await asyncio.sleep(0)
            assert len(replies) < 100
        assert len(replies) * len(big) > BUFFER_MOST
        room = asyncio.create_task(wire.room())
        await asyncio.sleep(0.05)
        assert not room.done()

        gate.set()

        await asyncio.wait_for(room, 10)
        assert await asyncio.gather(*replies) == [b"OK"] * len(replies)


async def test_one_who_does_not_speak_the_protocol_is_left() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(serve) as port, wired(port) as wire:
        with pytest.raises(WireLost, match="does not speak the protocol"):
            await wire.send(pack("PING"), 1, 5)


async def test_what_is_said_before_there_is_a_connection_was_never_sent() -> None:
    with pytest.raises(WireLost, match="not connected") as lost:
        await Wire(asyncio.get_running_loop()).send(pack("PING"), 1, 5)
    assert not lost.value.sent


async def test_a_connection_that_ends_without_a_word_has_a_reason_all_the_same() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-\r\n")  # an error without a text, which answers nothing
        await reader.read()

    async with serving(serve) as port, wired(port) as wire:
        async with asyncio.timeout(5):
            while wire.open:
                await asyncio.sleep(0)
        assert wire.reason == "it ended without a word"


@pytest.mark.parametrize("protocol", [2, 3])
async def test_what_is_pushed_is_not_taken_for_a_reply(redis_server: RedisServer, protocol: int) -> None:
    pushed: list[object] = []
    account = Account(protocol=protocol)
    wire = await dial(Endpoint("127.0.0.1", redis_server.port), account, on_push=pushed.append)

    wire.tell(pack("SUBSCRIBE", "news"))
    await wire.send(pack("PING"), 1, 5)
    redis_server.call("PUBLISH", "news", "7")
    while len(pushed) < 2:
        await wire.send(pack("PING"), 1, 5)

    assert [list(one) for one in pushed] == [[b"subscribe", b"news", 1], [b"message", b"news", b"7"]]  # type: ignore[call-overload] # lists
    wire.abort("done")


async def test_a_connection_is_watched_by_the_system_while_nobody_waits(redis_server: RedisServer) -> None:
    wire = await dial(Endpoint("127.0.0.1", redis_server.port), Account())
    assert wire._transport is not None
    connected = wire._transport.get_extra_info("socket")

    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
    wire.abort("the test is over")


async def test_a_connection_for_one_question_ends_with_its_answer(redis_server: RedisServer) -> None:
    account = Account(client_name="asks-once")

    assert await ask_once(Endpoint("127.0.0.1", redis_server.port), account, ("PING",)) == b"PONG"

    await asyncio.to_thread(until, lambda: "asks-once" not in str(redis_server.call("CLIENT", "LIST")), "it has ended")


def test_a_command_is_its_count_and_its_words() -> None:
    assert pack("A", 1, b"\xff") == b"*3\r\n" + tail(("A", 1, b"\xff"))
