"""Every option of an app and its default, once: with its unit, its environment variable and its reason."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, TypedDict

from msgspec import Struct

from selaras._core.cache.key import checked_name
from selaras._core.durations import Duration, duration_us, format_us
from selaras._core.errors import ConfigurationError
from selaras._stores.memcached.address import address_of

UNBOUNDED: Final = 2**62
"""A size that nothing reaches."""

Kind: TypeAlias = Literal["time", "count", "bytes", "text", "memcached"]


class Option(Struct, frozen=True):
    """One option: what it is called, what it is by default, and why that."""

    name: str
    default: Duration | int | str
    kind: Kind
    why: str

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"SELARAS_{self.name.upper()}"

    def read(self, value: Any, origin: str) -> int | str:
        """Return `value` in the option's unit: times in microseconds.

        Raises:
            ConfigurationError: naming `origin`, where the value came from.
        """
        if self.kind == "time":
            return duration_us(value, name=origin)
        if self.kind == "text":
            return checked_name(value, what=origin)
        if self.kind == "memcached":
            return address_of(value, origin).shown if value else ""
        number = _count(value, origin)
        if number < 1 and self.name in _AT_LEAST_ONE:
            raise ConfigurationError(f"{origin}={value!r}: give at least 1")
        return number

    def show(self, value: int | str) -> str:
        """Say a value for people."""
        if self.kind == "time":
            return format_us(int(value))
        if self.kind == "bytes":
            return _format_bytes(int(value))
        if self.kind == "memcached":
            return str(value) or "none"
        return str(value)


OPTIONS: Final[tuple[Option, ...]] = (
    Option("queue", "default", "text", "one queue is enough until somebody needs two"),
    Option("priority", 0, "count", "higher runs earlier"),
    Option("retries", 3, "count", "up to 4 runs: outlives a restart of what the body talks to"),
    Option("backoff", 1, "time", "the first retry's delay; doubles from there, with jitter"),
    Option("backoff_most", "5m", "time", "no retry waits longer"),
    Option(
        "timeout",
        "10m",
        "time",
        "a body that hangs must end some day; 0: never (a coroutine that blocks its loop cannot be told)",
    ),
    Option(
        "max_lost", 3, "count", "a job whose workers keep dying is probably what kills them; not counted in retries"
    ),
    Option("result_ttl", "1h", "time", "results are for whoever waits, not an archive"),
    Option("failed_ttl", "7d", "time", "a weekend and some days to look at what failed"),
    Option("max_payload", 1 << 20, "bytes", "arguments name data, they do not carry it; 0: no bound"),
    Option("max_result", 1 << 20, "bytes", "results name data, they do not carry it; 0: no bound"),
    Option("lease", 15, "time", "a lost worker's jobs go on after so long, and a grace"),
    Option("heartbeat", 5, "time", "a third of the lease: two beats may be lost"),
    Option("grace", 25, "time", "orchestrators kill 30 s after they ask"),
    Option("concurrency", 100, "count", "coroutine jobs at once"),
    Option("threads", 16, "count", "plain-function jobs at once"),
    Option("children", 2, "count", "executor='process' jobs at once, in child processes"),
    Option(
        "warm_ahead",
        0,
        "count",
        "waiting jobs a worker with no room looks at, to load what they will read. Only slow loaders gain by it, and of "
        "many workers that look at the same jobs one gets each: so it is asked for",
    ),
    Option("ttl", "5m", "time", "cached values: only a backstop, for what changes the datastore unannounced"),
    Option("max_value", 1 << 20, "bytes", "a cached value beyond it is served and not kept; 0: no bound"),
    Option(
        "compress_threshold",
        16 << 10,
        "bytes",
        "cached values from this size on are packed in the shared tier (zlib), if that saves an eighth; 0: never",
    ),
    Option("max_lag", 1, "time", "a process cut off from the log stops serving its local tier after so long"),
    Option(
        "shared_timeout", 1, "time", "reads go to the loader if the shared tier does not answer in so long; 0: never"
    ),
    Option("local_bytes", 64 << 20, "bytes", "the local tier, a process"),
    Option("local_entries", 100_000, "count", "the local tier, a process"),
    Option(
        "host_tier",
        "",
        "memcached",
        "a memcached on this machine that its processes share, between the local and the shared tier: "
        "`unix:///run/memcached/memcached.sock` or `memcached://127.0.0.1:11211`",
    ),
    Option("host_timeout", "5ms", "time", "a memcached that does not answer in so long is left alone for a while"),
    Option("lineage", 50, "count", "jobs a second whose reads are noted for `selaras explain`, a process; 0: none"),
    Option("partitions", 1, "count", "each is a unit of order of its own; fixed when the store is made"),
)
LEASE_LEAST_US: Final = 500_000
_AT_LEAST_ONE: Final = frozenset({"concurrency", "threads", "children", "partitions"})
"""Of these none at all would leave jobs lying, with nobody told."""

OPTION: Final = {option.name: option for option in OPTIONS}
"""The same by their names."""


class Settings(Struct, frozen=True, kw_only=True):
    """The values in force. Times in microseconds, sizes in bytes. `origins`: where each that isn't the default came from."""

    queue: str
    priority: int
    retries: int
    backoff: int
    backoff_most: int
    timeout: int
    max_lost: int
    result_ttl: int
    failed_ttl: int
    max_payload: int
    max_result: int
    lease: int
    heartbeat: int
    grace: int
    concurrency: int
    threads: int
    children: int
    warm_ahead: int
    ttl: int
    max_value: int
    compress_threshold: int
    max_lag: int
    shared_timeout: int
    local_bytes: int
    local_entries: int
    host_tier: str
    host_timeout: int
    lineage: int
    partitions: int
    origins: dict[str, str]

    @property
    def said_partitions(self) -> int | None:
        """How many partitions the program or its environment says there are; None: neither says it."""
        return self.partitions if "partitions" in self.origins else None

    def shown(self) -> list[tuple[str, str, str]]:
        """Return (name, value, origin) of every option, for people; origin "" is the default."""
        return [
            (option.name, option.show(getattr(self, option.name)), self.origins.get(option.name, ""))
            for option in OPTIONS
        ]


class SettingValues(TypedDict, total=False):
    """The options as a program gives them."""

    queue: str
    priority: int
    retries: int
    backoff: Duration
    backoff_most: Duration
    timeout: Duration
    max_lost: int
    result_ttl: Duration
    failed_ttl: Duration
    max_payload: int
    max_result: int
    lease: Duration
    heartbeat: Duration
    grace: Duration
    concurrency: int
    threads: int
    children: int
    warm_ahead: int
    ttl: Duration
    max_value: int
    compress_threshold: int
    max_lag: Duration
    shared_timeout: Duration
    local_bytes: int
    local_entries: int
    host_tier: str
    host_timeout: Duration
    lineage: int
    partitions: int


def settings_from(given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
    """Resolve every option: what the program says, else its environment variable, else the default.

    Raises:
        ConfigurationError: an unknown name, or a value that can't be read.
    """
    env = os.environ if environment is None else environment
    unknown = sorted(set(given) - set(OPTION))
    if unknown:
        known = ", ".join(sorted(OPTION))
        raise ConfigurationError(f"unknown option {unknown[0]!r}; the options are {known}")
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for option in OPTIONS:
        if option.name in given:
            values[option.name] = option.read(given[option.name], option.name)
            origins[option.name] = "app"
        elif env.get(option.variable):
            values[option.name] = option.read(env[option.variable], option.variable)
            origins[option.name] = option.variable
        else:
            values[option.name] = option.read(option.default, option.name)
    check_lease(values["lease"], values["heartbeat"])
    return Settings(**values, origins=origins)


def check_lease(lease_us: int, heartbeat_us: int) -> None:
    """Raise ConfigurationError unless a worker that is busy for a moment keeps its jobs."""
    if lease_us < LEASE_LEAST_US:
        raise ConfigurationError(
            f"lease={format_us(lease_us)}: give at least {format_us(LEASE_LEAST_US)}, or a worker that is busy for"
            " a moment loses its jobs"
        )
    if not 0 < heartbeat_us * 2 <= lease_us:
        raise ConfigurationError(
            f"heartbeat={format_us(heartbeat_us)}: give at most half of the lease of {format_us(lease_us)}, or one late"
            " beat loses every job"
        )


def _count(value: Any, origin: str) -> int:
    try:
        # Environments hold text. What int() would round, and what only counts as a number, is a slip.
        number = int(value) if isinstance(value, str) else operator.index(value)
        if isinstance(value, bool):
            raise TypeError(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{origin}={value!r}: give a whole number") from None
    if number < 0 and "priority" not in origin.lower():
        raise ConfigurationError(f"{origin}={value!r} is negative")
    return number


def _format_bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} B"
