"""From a URL to a store: what is allowed, what is meant, and what may be shown of it."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from selaras._app.setup.origin import Origin
from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.shelf import Shelf
from selaras._contracts.store import Store
from selaras._core.errors import ConfigurationError
from selaras._stores.memcached.address import address_of as shelf_address_of
from selaras._stores.memcached.shelf import MemcachedShelf
from selaras._worker.system import clock_origin

if TYPE_CHECKING:
    from selaras._stores.redis.address import RedisAddress

_KNOWN: Final = (
    "sqlite:///selaras.db (beside your module), sqlite:////absolute/path.db, memory://, redis://localhost:6379/0, "
    "rediss:// (TLS), unix:///run/redis.sock, redis+sentinel://host:26379/service/0, redis+cluster://host:7000, "
    "and valkey... likewise"
)
_SQLITE_OPTIONS: Final = frozenset({"partitions", "synchronous"})
_MEMORY_OPTIONS: Final = frozenset({"partitions"})
DEFAULT_FILE: Final = "selaras.db"


class Address(Struct, frozen=True):
    """A store, named: which kind, where, and what is said of it beside.

    Attributes:
        shown: fit for messages and logs: absolute, passwords masked.
    """

    kind: str
    path: str
    options: dict[str, str]
    shown: str
    redis: RedisAddress | None = None


def address_of(
    url: str | None, namespace: str, origin: Origin, environment: Mapping[str, str] | None = None
) -> Address:
    """Read a URL: the program's, else $SELARAS_URL, else a file beside the program.

    Raises:
        ConfigurationError: the scheme or an option is unknown; says which there are.
    """
    env = os.environ if environment is None else environment
    base = origin.folder
    if url is None:
        # A path from the environment was written by someone in a shell, who means the folder they are in.
        url, base = (env["SELARAS_URL"], Path.cwd()) if env.get("SELARAS_URL") else (f"sqlite:///{DEFAULT_FILE}", base)
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
        raise ConfigurationError(f"{url!r} is no URL of a store: give one of {_KNOWN}")
    _check_namespace(namespace)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"{mask(url)!r} is no URL: {error}") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    match parts.scheme:
        case "sqlite":
            _check_options(url, options, _SQLITE_OPTIONS)
            path = _file_of(url, parts.netloc, parts.path, namespace, base)
            return Address("sqlite", str(path), options, f"sqlite:///{path}")
        case "memory":
            _check_options(url, options, _MEMORY_OPTIONS)
            return Address("memory", namespace, options, "memory://")
        case scheme if _REDIS.fullmatch(scheme):
            return _redis(url, namespace)
        case "":
            raise ConfigurationError(f"{mask(url)!r} is no URL of a store: give one of {_KNOWN}")
        case scheme:
            raise ConfigurationError(f"{mask(url)}: there is no store {scheme!r}; give one of {_KNOWN}")


def said_partitions(address: Address, partitions: int | None) -> int | None:
    """Return how many partitions there are said to be: by the URL, else by the setting; None: by neither."""
    if address.redis is not None and address.redis.partitions is not None:
        return address.redis.partitions
    return int(address.options["partitions"]) if "partitions" in address.options else partitions


def open_store(address: Address, partitions: int | None, clock: Clock, entropy: Entropy) -> Store:
    """Make the store that an address names; not connected yet.

    How many partitions it has is fixed when it is made: of a file that is there it is read, if nobody says it.
    """
    said = said_partitions(address, partitions)
    if address.kind == "memory":
        from selaras._stores.memory.store import MemoryStore

        return MemoryStore(clock, partitions=said or 1, entropy=entropy)
    if address.redis is not None:
        return _open_redis(address.redis, said, entropy)
    from selaras._stores.sqlite.file import partitions_in
    from selaras._stores.sqlite.store import SqliteStore

    count = said or partitions_in(Path(address.path)) or 1
    match address.options.get("synchronous", "normal"):
        case ("normal" | "full") as synchronous:
            pass
        case other:
            raise ConfigurationError(f"{address.shown}: synchronous={other!r}: give 'normal' or 'full'")
    # The protocol's `partitions` is a plain attribute, which makes a store of one kind of partition look unlike it.
    return cast(
        Store, SqliteStore(Path(address.path), clock, partitions=count, entropy=entropy, synchronous=synchronous)
    )


def open_shelf(url: str, timeout_us: int) -> Shelf | None:
    """Make the shelf of the host tier, not connected yet; None: there is none to be, or this machine does not tell whose
    clocks can be compared.
    """
    if not url or not clock_origin():
        return None
    return MemcachedShelf(shelf_address_of(url), patience_us=timeout_us)


def shelf_owner(address: Address) -> bytes:
    """Return what tells apart those who use one shelf: the store, and the clock that its values' ends are of."""
    prefix = address.redis.prefix if address.redis is not None else ""
    parts = (clock_origin(), address.kind, address.path, prefix, "")
    return "\0".join(parts).encode("utf-8", "surrogatepass")


_REDIS: Final = re.compile(r"(redis|valkey)s?(\+\w+)?|unix", re.IGNORECASE)
_LOGIN: Final = re.compile(r"(?<=://)([^/:@\s]*):\S*@")  # to the last @: a password may hold anything
_NAMED_SECRET: Final = re.compile(r"(?i)\b((?:\w+_)?(?:password|passwd|secret|token|api[_-]?key))=([^&\s]+)")


def mask(url: str) -> str:
    """Return a URL without its passwords."""
    return _NAMED_SECRET.sub(r"\1=***", _LOGIN.sub(r"\1:***@", url))


def _redis(url: str, namespace: str) -> Address:
    from selaras._stores.redis.address import redis_address

    where = redis_address(url, namespace)
    servers = ",".join(map(str, where.endpoints))
    return Address("redis", f"{servers}/{where.service}{where.account.db}", {}, where.shown, where)


def _open_redis(where: RedisAddress, said: int | None, entropy: Entropy) -> Store:
    with driver_of(where):
        from selaras._stores.redis.store import RedisStore, usual_partitions
    store = RedisStore(where, partitions=said or usual_partitions(where), entropy=entropy)
    return cast(Store, store)  # as for the one on SQLite


@contextmanager
def driver_of(where: RedisAddress) -> Generator[None, None, None]:
    """Import in here what needs the driver. Raises ConfigurationError: it isn't installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "hiredis":
            raise
        raise ConfigurationError(
            f"{where.shown}: Redis and Valkey need one more: pip install 'selaras[redis]'"
        ) from error


def _file_of(url: str, host: str, path: str, namespace: str, base: Path) -> Path:
    if host:
        raise ConfigurationError(
            f"{url}: a SQLite store is a file: sqlite:///{host}{path} is relative, sqlite:////{host}{path} absolute"
        )
    name = unquote(path[1:])
    if not name:
        raise ConfigurationError(
            f"{url} names no file: sqlite:///{DEFAULT_FILE} is relative, sqlite:////data/jobs.db absolute"
        )
    if "\0" in name:
        raise ConfigurationError(f"{url!r} names no file: a file's name holds no NUL character")
    if name == ":memory:":
        raise ConfigurationError(f"{url}: a SQLite store is a file; a store in this process's memory is memory://")
    file = (base / name).resolve()
    if namespace:
        file = file.with_name(f"{file.stem}-{namespace}{file.suffix}")
    return file


def _check_namespace(namespace: object) -> None:
    if namespace is None:
        raise ConfigurationError("namespace=None: leave it out, or write namespace='', if there is to be none")
    if not isinstance(namespace, str) or not re.fullmatch(r"[\w.\-]{0,64}", namespace):
        raise ConfigurationError(f"namespace={namespace!r}: give letters, digits, '.', '-' or '_', at most 64")


def _check_options(url: str, options: Mapping[str, str], known: frozenset[str]) -> None:
    for name, value in options.items():
        if name not in known:
            raise ConfigurationError(f"{mask(url)}: unknown option {name!r}; there are {', '.join(sorted(known))}")
        if name == "partitions" and not (value.isdecimal() and int(value) > 0):
            raise ConfigurationError(f"{mask(url)}: partitions={value!r} is no whole number from 1")
