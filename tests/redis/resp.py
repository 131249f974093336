"""A connection that says one command at a time and waits: enough to set a server up and to look into it.

On purpose none of the client libraries: what a test does to a server must not depend on what it tests.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Self, TypeAlias

Reply: TypeAlias = "str | int | list[Reply] | None"


class ServerError(Exception):
    """The server answered with an error; its words."""


class Connection:
    """One blocking connection; texts come back with surrogate escapes where they are not UTF-8."""

    def __init__(
        self,
        address: tuple[str, int] | str,
        *,
        tls: ssl.SSLContext | None = None,
        user: str = "",
        password: str = "",
        timeout: float = 5.0,
    ) -> None:
        self._socket = _dial(address, timeout)
        try:
            if tls:
                self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
            self._file: IO[bytes] = self._socket.makefile("rb")
            if password:
                self.call("AUTH", *([user] if user else []), password)
        except BaseException:
            self._socket.close()
            raise

    def call(self, *words: str | bytes | float) -> Reply:
        """Say one command; ServerError when the server refuses it."""
        self.send(words)
        return self._reply()

    def send(self, *commands: Sequence[str | bytes | int | float]) -> None:
        """Say commands and don't wait."""
        self._socket.sendall(b"".join(map(_packed, commands)))

    def receive(self, count: int) -> list[Reply]:
        """The next replies; errors as texts."""
        return [self._item() for _ in range(count)]

    def read_all(self) -> bytes:
        """What comes until the connection ends, however it ends."""
        read = bytearray()
        try:
            while piece := self._socket.recv(65_536):
                read += piece
        except ConnectionError:
            pass  # a reset is an end
        return bytes(read)

    def _reply(self) -> Reply:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed the connection")
        kind, rest = line[:1], line[1:-2].decode(errors="surrogateescape")
        if kind == b"+":
            return rest
        elif kind == b"-":
            raise ServerError(rest)
        elif kind == b":":
            return int(rest)
        elif kind == b"$":
            return None if rest == "-1" else self._file.read(int(rest) + 2)[:-2].decode(errors="surrogateescape")
        assert kind == b"*", line
        return None if rest == "-1" else self.receive(int(rest))

    def _item(self) -> Reply:
        try:
            return self._reply()
        except ServerError as error:  # an error among the results of EXEC or SLOWLOG stands for itself
            return f"-{error}"

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _packed(words: Sequence[str | bytes | int | float]) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode(errors="surrogateescape") for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _dial(address: tuple[str, int] | str, timeout: float) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, timeout)
    dialled = socket.socket(socket.AF_UNIX)
    dialled.settimeout(timeout)
    try:
        dialled.connect(address)
    except OSError:
        dialled.close()
        raise
    return dialled
