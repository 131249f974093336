"""Makes connections, and introduces us: TLS, password, protocol, database."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Container
from functools import lru_cache
from typing import Any

from selaras._core.errors import StoreUnavailable
from selaras._stores.redis.address import Account, Endpoint
from selaras._stores.redis.errors import Meaning, Silent, meaning_of, told
from selaras._stores.redis.wire import QUIET_S, ReplyError, Wire, WireLost, pack


async def dial(
    endpoint: Endpoint,
    account: Account,
    *,
    on_quiet: Callable[[Wire], None] | None = None,
    on_lost: Callable[[Wire], None] | None = None,
    on_push: Callable[[Any], None] | None = None,
    waits_s: float = 0.0,
    let_in: set[Endpoint] | None = None,
) -> Wire:
    """Connect, and be let in.

    Args:
        waits_s: so long may the server itself wait before it answers, for its replicas.
        let_in: servers that have let this account in: whether those speak TLS is no question. This one becomes one of them.

    Raises:
        StoreUnavailable: nobody answers there, or not yet.
        StoreRefused: it does not let us in.
    """
    loop = asyncio.get_running_loop()
    known = set[Endpoint]() if let_in is None else let_in
    wire = Wire(
        loop,
        silence_s=account.silence_s + waits_s,
        quiet_s=QUIET_S + waits_s,
        on_quiet=on_quiet,
        on_lost=on_lost,
    )
    try:
        async with asyncio.timeout(account.connect_s):
            await _connect(loop, wire, endpoint, account)
            await _enter(wire, endpoint, account)
            known.add(endpoint)
            wire.on_push = on_push  # from here on: an error until now answers something
    except TimeoutError:
        is_there = wire.open
        wire.abort("it took too long")
        if is_there:
            raise Silent(
                f"{endpoint} takes connections, and does not answer: it said nothing for {account.connect_s:g} s"
            ) from None
        raise StoreUnavailable(
            f"{endpoint} does not answer: no connection within {account.connect_s:g} s{tls_doubt(endpoint, account, known)}"
        ) from None
    except ssl.SSLError as error:
        asks = "; does it ask for a certificate of ours?" if "handshake failure" in str(error).lower() else ""
        raise StoreUnavailable(f"{endpoint}: no TLS connection: {error}{asks}") from error
    except WireLost as error:
        raise StoreUnavailable(
            f"{endpoint} closed the connection at once ({error}){'' if endpoint in known else _hint(account)}"
        ) from error
    except OSError as error:
        raise StoreUnavailable(f"{endpoint} cannot be reached: {_reason(error)}") from error
    except BaseException:
        wire.abort("it was not finished")
        raise
    return wire


async def ask_once(endpoint: Endpoint, account: Account, command: tuple[str, ...]) -> Any:
    """Ask one command over a connection made for that. Raises StoreUnavailable, StoreRefused."""
    wire = await dial(endpoint, account)
    try:
        reply = await wire.send(pack(*command), 1, account.silence_s)
    except WireLost as error:
        raise StoreUnavailable(f"{endpoint}: {error}") from error
    finally:
        wire.abort("done")
    if isinstance(reply, ReplyError):
        raise told(reply, meaning_of(reply), where=str(endpoint), doing=" ".join(command[:2]))
    return reply


async def _connect(loop: asyncio.AbstractEventLoop, wire: Wire, endpoint: Endpoint, account: Account) -> None:
    if not endpoint.port:
        await loop.create_unix_connection(lambda: wire, endpoint.host)
        return
    context = _tls(account)
    transport, _ = await loop.create_connection(lambda: wire, endpoint.host, endpoint.port, ssl=context)
    connected = transport.get_extra_info("socket")
    if connected is not None:
        # A peer that is gone for good is noticed by the system, too, while nobody waits for a reply.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


@lru_cache(maxsize=16)
def _tls(account: Account) -> ssl.SSLContext | None:
    """Make the context once: it reads files, and it is what lets sessions be resumed."""
    return account.tls()


async def _enter(wire: Wire, endpoint: Endpoint, account: Account) -> None:
    """Say who we are, and what we speak; all in one trip."""
    commands: list[tuple[str, ...]] = []
    login = (account.username or "default", account.password) if account.password or account.username else ()
    if account.protocol == 3:
        commands.append(("HELLO", "3", *(("AUTH", *login) if login else ())))
    elif login:
        commands.append(("AUTH", *(login if account.username else login[1:])))
    if account.db:
        commands.append(("SELECT", str(account.db)))
    required = len(commands)
    commands.append(("CLIENT", "SETNAME", account.client_name))  # for people: it may be forbidden
    packed = b"".join(pack(*command) for command in commands)
    replies = await wire.send(packed, len(commands), account.connect_s)
    replies = replies if len(commands) > 1 else [replies]
    for place, (command, reply) in enumerate(zip(commands, replies, strict=True)):
        # A server whose house is full says so in the place of the first reply, whatever was asked.
        if isinstance(reply, ReplyError) and (place < required or meaning_of(reply) is Meaning.SOON):
            wire.abort("refused")
            raise told(reply, meaning_of(reply), where=str(endpoint), doing=command[0])


def tls_doubt(endpoint: Endpoint, account: Account, let_in: Container[Endpoint]) -> str:
    """Return what to look at if a server that should speak TLS says nothing; see `dial`."""
    if endpoint in let_in or not account.secure:
        return ""
    return "; does it speak TLS at that port? If not, the URL begins with redis://"


def _hint(account: Account) -> str:
    return "; does it speak TLS, and ask for a certificate of ours?" if account.secure else "; does it speak TLS?"


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
