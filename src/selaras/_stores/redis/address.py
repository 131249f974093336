"""Where a store is, and how one gets in: what a URL of Redis or Valkey says.

    redis://user:password@host:6379/0        one server            rediss://  over TLS
    unix:///run/redis.sock?db=0              one server, by its socket
    redis+sentinel://h1:26379,h2/service/0   the master of a service, found by sentinels
    redis+cluster://h1:7000,h2:7001          a cluster, found by any of its nodes

and `valkey`, `valkeys` in the place of `redis`, `rediss`. All of them take the same options.
"""

from __future__ import annotations

import re
import ssl
from binascii import crc_hqx
from typing import Final, Literal, NoReturn
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from selaras._core.errors import ConfigurationError

Shape = Literal["single", "sentinel", "cluster"]

_SOCKETS: Final = frozenset({"unix", "redis+unix", "valkey+unix", "redis+socket"})
"""Schemes of one server by its socket: as redis-py, others of its kind, and Celery spell it."""

_VERIFIED: Final = {"required": True, "optional": True, "none": False}
"""Whether a certificate must be good, as redis-py has it: a client that is shown one asks no less by `optional`."""

_SHAPES: Final[tuple[tuple[str, Shape], ...]] = (("", "single"), ("+sentinel", "sentinel"), ("+cluster", "cluster"))


def _schemes() -> dict[str, tuple[Shape, bool]]:
    found: dict[str, tuple[Shape, bool]] = dict.fromkeys(sorted(_SOCKETS), ("single", False))
    for family in ("redis", "valkey"):
        for suffix, shape in _SHAPES:
            found[f"{family}{suffix}"] = (shape, False)
            found[f"{family}s{suffix}"] = (shape, True)
    return found


SCHEMES: Final = _schemes()
"""Scheme -> how many servers there are, and whether by TLS."""

OPTIONS: Final[dict[str, str]] = {
    # In brackets, what holds where nothing is said.
    "partitions": "units of order of their own; fixed when the store is made (1; a cluster: 16)",
    "prefix": "what all keys begin with, before the namespace if there is one ('selaras' if there is neither)",
    "durability": "'replicated': enqueues and ends of attempts are answered when a replica has them, too ('local')",
    "replicated_within": "seconds that a replica may take for that (1)",
    "protocol": "2 or 3: the version of RESP (2)",
    "db": "the number of the database, also behind the host (0)",
    "username": "also user:password@ before the host",
    "password": "likewise; masked wherever it might be shown",
    "sentinel_username": "of the sentinels, if theirs is another one",
    "sentinel_password": "likewise",
    "ssl_ca_certs": "file of the authorities that sign the servers' certificates",
    "ssl_certfile": "file of our own certificate, where the servers ask for one",
    "ssl_keyfile": "file of its key",
    "ssl_cert_reqs": "'none', or CERT_NONE, trusts any certificate ('required', or CERT_REQUIRED)",
    "ssl_check_hostname": "'false' takes a certificate of another name ('true')",
    "socket_timeout": "seconds a server may be silent while a reply is waited for (5)",
    "socket_connect_timeout": "seconds that connecting may take (5)",
    "client_name": "what CLIENT LIST shows ('selaras')",
}

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
DEFAULT_PREFIX: Final = "selaras"
CLUSTER_PARTITIONS: Final = 16
"""Of a cluster, unless it is said: enough for all of a few masters to share the work."""

_SLOTS: Final = 16_384


class Endpoint(Struct, frozen=True):
    """A server: a host and a port, or the path of a socket."""

    host: str
    port: int = 0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else self.host


class Account(Struct, frozen=True, kw_only=True):
    """How one gets in at a server."""

    username: str = ""
    password: str = ""
    db: int = 0
    protocol: int = 2
    client_name: str = "selaras"
    secure: bool = False
    ca_certs: str = ""
    certfile: str = ""
    keyfile: str = ""
    verified: bool = True
    named: bool = True
    connect_s: float = 5.0
    silence_s: float = 5.0

    def __repr__(self) -> str:
        return f"Account(username={self.username!r}, db={self.db})"  # no password in a traceback or a log

    def tls(self) -> ssl.SSLContext | None:
        """Make what TLS needs; None without. Raises ConfigurationError: a file cannot be read."""
        if not self.secure:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_certs or None)
            if self.certfile:
                context.load_cert_chain(self.certfile, self.keyfile or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (self.ca_certs, self.certfile, self.keyfile) if name)
            raise ConfigurationError(f"the certificates ({files}) cannot be used: {error}") from error
        if not (self.named and self.verified):
            context.check_hostname = False
        if not self.verified:
            context.verify_mode = ssl.CERT_NONE
        return context


class RedisAddress(Struct, frozen=True, kw_only=True):
    """A store on Redis or Valkey.

    Attributes:
        endpoints: the server; or sentinels, or nodes to find the others by.
        service: what the sentinels call the master.
        prefix: what all keys begin with, as it stands in them.
        partitions: None: not said.
        replicas_ms: wait so long for a replica to have what was settled or enqueued; 0: do not.
        shown: the URL, fit for messages and logs.
    """

    shape: Shape
    endpoints: tuple[Endpoint, ...]
    account: Account
    sentinel_account: Account
    shown: str
    service: str = ""
    prefix: str = DEFAULT_PREFIX
    partitions: int | None = None
    replicas_ms: int = 0


class Names:
    """The names of a store's keys and channels: all of a partition under one hash tag, so all in one slot."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def key(self, partition: int, name: str) -> str:
        """Return a key of a partition."""
        return f"{self.stem(partition)}{name}"

    def stem(self, partition: int) -> str:
        """Return what all keys and channels of a partition begin with."""
        return f"{self.prefix}:{{{self.tag(partition)}}}:"

    def tag(self, partition: int) -> str:
        """Return what stands between the braces."""
        return f"{self.prefix}.{partition}"

    def slot(self, partition: int) -> int:
        """Return the slot of a cluster in which a partition lies."""
        return slot_of(self.tag(partition).encode())


def slot_of(tag: bytes) -> int:
    """Return the slot of a hash tag: CRC-16/XMODEM of it. Source: the Redis Cluster specification."""
    return crc_hqx(tag, 0) % _SLOTS


def prefix_of(text: str) -> str:
    """Return a prefix as it stands in keys: a brace would begin or end the hash tag."""
    return re.sub("[{}%]", lambda mark: f"%{ord(mark[0]):02X}", text)


def redis_address(url: str, namespace: str = "") -> RedisAddress:
    """Read a URL.

    Raises:
        ConfigurationError: it cannot be understood; says what to change, and shows no password.
    """
    return _Url(url).address(namespace)


def masked(url: str) -> str:
    """Return a URL of any of the forms without its passwords."""
    scheme, separator, rest = url.partition("://")
    place, mark, query = _split(rest)
    if _holds_password(query):
        host = re.split("[/?&]", rest.rpartition("@")[2])[0]
        return f"{scheme}{separator}***@{host}..."
    login, at, hosts = place.rpartition("@")
    if at:
        user, colon, _ = login.partition(":")
        place = f"{user}{':***' if colon else ''}@{hosts}"
    if mark:
        said = (part.partition("=") for part in query.split("&"))
        query = "&".join(f"{name}{sign}{'***' if 'password' in name.lower() else value}" for name, sign, value in said)
    return f"{scheme}{separator}{place}{mark}{query}"


def _holds_password(query: str) -> bool:
    """Whether the end of a password with a question mark may be taken for options: where it ends nobody can say."""
    return "@" in query and not all(part.partition("=")[0].lower() in OPTIONS for part in query.split("&"))


def _split(rest: str) -> tuple[str, str, str]:
    """Return what stands before the options, the question mark, and the options. One in a password is none."""
    place, mark, query = rest.partition("?")
    while "@" in query.partition("=")[0]:
        more, mark, query = query.partition("?")
        place = f"{place}?{more}"
    return place, mark, query


class _Url:
    """The parts of a URL, while it is read."""

    def __init__(self, url: str) -> None:
        scheme, slashes, rest = url.partition("://")
        self.shown = (
            masked(url) if slashes else f"{url.partition(':')[0]}:..."
        )  # without them nobody knows what a password is
        self.scheme = scheme.lower()
        self.shape: Shape
        if self.scheme not in SCHEMES:
            self.refuse(f"it begins with none of {', '.join(f'{one}://' for one in sorted(SCHEMES))}")
        self.shape, self.secure = SCHEMES[self.scheme]
        rest, _, query = _split(rest)
        self.options: dict[str, str] = {}
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name not in OPTIONS:
                if _holds_password(query):
                    self.refuse(
                        "what means something in a URL is percent-encoded in a user name or password: ? is %3F, @ is %40"
                    )
                self.refuse(f"unknown option {name!r}; there are {', '.join(sorted(OPTIONS))}")
            self.options[name] = value
        is_path = rest.startswith("/")  # of a socket: its name may hold an @, and its user stands before it
        self.login, _, place = ("", "", rest) if is_path else rest.rpartition("@")
        self.hosts, _, self.path = place.partition("/")

    def refuse(self, why: str) -> NoReturn:
        raise ConfigurationError(f"{self.shown}: {why}")

    def address(self, namespace: str) -> RedisAddress:
        username, _, password = self.login.partition(":")
        options = self.options
        parts = [unquote(part) for part in self.path.split("/")] if self.path else []
        endpoints, service, db = self._where(parts)
        account = self._account(unquote(username), unquote(password), db)
        sentinels = self._sentinel_account(account)
        account.tls()  # an unreadable file is told here, where the URL was written
        prefix = ":".join(part for part in (options.get("prefix", ""), namespace) if part) or DEFAULT_PREFIX
        return RedisAddress(
            shape=self.shape,
            endpoints=endpoints,
            account=account,
            sentinel_account=sentinels,
            shown=self.shown,
            service=service,
            prefix=prefix_of(prefix),
            partitions=self._partitions(),
            replicas_ms=self._replicas_ms(),
        )

    def _where(self, parts: list[str]) -> tuple[tuple[Endpoint, ...], str, str]:
        """Return the servers, the sentinels' service and the database that the path names."""
        if self.scheme in _SOCKETS:
            if self.hosts or not any(parts):
                self.refuse("a socket is named by its absolute path: unix:///run/redis.sock")
            return (Endpoint("/" + "/".join(parts)),), "", ""
        port = SENTINEL_PORT if self.shape == "sentinel" else PORT
        endpoints = tuple(self._endpoint(host, port) for host in self.hosts.split(","))
        if self.shape == "sentinel":
            if not parts or not parts[0] or len(parts) > 2:
                self.refuse(f"name the sentinels' service: {self.scheme}://host:26379/mymaster/0")
            return endpoints, parts[0], parts[1] if len(parts) == 2 else ""
        if len(endpoints) > 1 and self.shape == "single":
            self.refuse(
                f"several servers are a cluster, or sentinels: {self.scheme}+cluster://… or {self.scheme}+sentinel://…"
            )
        if len(parts) > 1:
            self.refuse(f"after the host comes the number of a database: {self.scheme}://host:6379/0")
        db = parts[0] if parts else ""
        if self.shape == "cluster" and (db or self.options.get("db", "0")) not in ("", "0"):
            self.refuse("a cluster has one database, 0")
        return endpoints, "", db

    def _endpoint(self, text: str, port: int) -> Endpoint:
        host, named = text, ""
        if text.startswith("["):
            host, _, named = text[1:].partition("]")
            named = named.removeprefix(":")
        elif text.count(":") == 1:
            host, _, named = text.partition(":")
        if named and not (named.isdecimal() and 0 < int(named) < 65_536):
            self.refuse(f"{named!r} is no port")
        return Endpoint(unquote(host) or "localhost", int(named) if named else port)

    def _account(self, username: str, password: str, db: str) -> Account:
        options = self.options
        protocol = options.get("protocol", "2")
        if protocol not in ("2", "3"):
            self.refuse(f"protocol={protocol!r}: give 2 or 3")
        database = options.get("db") or db or "0"
        if not database.isdecimal():
            self.refuse(f"{database!r} is no number of a database")
        reqs = options.get("ssl_cert_reqs", "required")
        verified = _VERIFIED.get(reqs.lower().removeprefix("ssl.").removeprefix("cert_"))
        if verified is None:
            self.refuse(f"ssl_cert_reqs={reqs!r}: give 'required' or 'none'")
        if any(name.startswith("ssl_") for name in options) and not self.secure:
            if self.scheme in _SOCKETS:
                self.refuse("there is no TLS over a socket: leave options ssl_… out")
            self.refuse(
                f"options ssl_… need TLS: {self.scheme.replace('redis', 'rediss').replace('valkey', 'valkeys')}://…"
            )
        if options.get("ssl_keyfile") and not options.get("ssl_certfile"):
            self.refuse("ssl_keyfile is the key of a certificate: give ssl_certfile, too")
        return Account(
            username=options.get("username", username),
            password=options.get("password", password),
            db=int(database),
            protocol=int(protocol),
            client_name=options.get("client_name", "selaras"),
            secure=self.secure,
            ca_certs=options.get("ssl_ca_certs", ""),
            certfile=options.get("ssl_certfile", ""),
            keyfile=options.get("ssl_keyfile", ""),
            verified=verified,
            named=self._truth("ssl_check_hostname", default=True),
            connect_s=self._seconds("socket_connect_timeout", 5.0),
            silence_s=self._seconds("socket_timeout", 5.0),
        )

    def _sentinel_account(self, account: Account) -> Account:
        username, password = (self.options.get(f"sentinel_{name}", "") for name in ("username", "password"))
        if (username or password) and self.shape != "sentinel":
            self.refuse("options sentinel_… need sentinels: redis+sentinel://host:26379/service/0")
        return Account(
            username=username,
            password=password,
            protocol=2,
            client_name=account.client_name,
            secure=account.secure,
            ca_certs=account.ca_certs,
            certfile=account.certfile,
            keyfile=account.keyfile,
            verified=account.verified,
            named=account.named,
            connect_s=min(account.connect_s, 1.0),  # one of several: the next one is asked soon
            silence_s=min(account.silence_s, 1.0),
        )

    def _replicas_ms(self) -> int:
        durability = self.options.get("durability", "local")
        if durability not in ("local", "replicated"):
            self.refuse(f"durability={durability!r}: give 'replicated', or leave it out")
        within_s = self._seconds("replicated_within", 1.0)
        return round(within_s * 1_000) if durability == "replicated" else 0

    def _partitions(self) -> int | None:
        text = self.options.get("partitions")
        if text is None:
            return None
        if not (text.isdecimal() and int(text) > 0):
            self.refuse(f"partitions={text!r} is no whole number from 1")
        return int(text)

    def _seconds(self, name: str, default: float) -> float:
        text = self.options.get(name)
        if text is None:
            return default
        try:
            seconds = float(text)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < 3_600:
            self.refuse(f"{name}={text!r}: give seconds, such as 5")
        return seconds

    def _truth(self, name: str, *, default: bool) -> bool:
        text = self.options.get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
            self.refuse(f"{name}={text!r}: give 'true' or 'false'")
        return text.lower() in ("true", "1", "yes")
