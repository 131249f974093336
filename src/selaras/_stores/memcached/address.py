"""Where a memcached is: `unix:///run/memcached.sock`, `memcached://127.0.0.1:11211`."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from selaras._core.errors import ConfigurationError

PORT: Final = 11211

_FORMS: Final = "give unix:///run/memcached/memcached.sock, or memcached://127.0.0.1:11211"


class Address(Struct, frozen=True):
    """A path, or a host and a port."""

    path: str = ""
    host: str = ""
    port: int = PORT

    @property
    def shown(self) -> str:
        """Return it as it is given."""
        if self.path:
            return f"unix://{self.path}"
        return f"memcached://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def address_of(url: object, origin: str = "host_tier") -> Address:
    """Read a URL. `origin`: where it came from. Raises ConfigurationError, saying what to write instead."""
    if not isinstance(url, str):
        raise ConfigurationError(f"{origin}={url!r} is no text: {_FORMS}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigurationError(f"{origin}={url!r}: {error}: {_FORMS}") from None
    if parts.query or parts.fragment or parts.username:
        raise ConfigurationError(f"{origin}={url!r}: a memcached has no options and no users here: {_FORMS}")
    if parts.scheme == "unix" and not parts.netloc and len(parts.path) > 1:
        return Address(path=unquote(parts.path))
    if parts.scheme == "memcached" and host and parts.path in ("", "/") and port != 0:
        return Address(host=host, port=PORT if port is None else port)
    raise ConfigurationError(f"{origin}={url!r} names no memcached: {_FORMS}")
