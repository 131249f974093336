"""What a worker says when it starts: where it works, what it can run, by which rules, and how to stop it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from selaras._app.app import Selaras
from selaras._app.declared.specs import FamilySpec, TaskSpec
from selaras._app.setup.settings import Settings
from selaras._core.durations import format_us
from selaras.cli.output import one_line

_ALL_MOST = 30


def introduction(app: Selaras, reference: str, settings: Settings, queues: Sequence[str], fleet: int) -> list[str]:
    """Return the start lines. `fleet`: how many processes work side by side."""
    tasks, families = app.registry.tasks.values(), app.registry.families.values()
    partitions = len(app.process().store.partitions)
    store = f"{app.url} ({partitions} partitions)" if partitions > 1 else app.url
    lines = [
        ("app", reference),
        ("store", store),
        *([("host tier", _host_tier(app, settings))] if settings.host_tier else []),
        ("queues", ", ".join(queues)),
        *_block("tasks", [_task(task, queues) for task in tasks]),
        *_block("families", [_family(family, settings) for family in families] or [("none",)]),
        ("at once", _room(settings, fleet)),
        *([("ahead", _ahead(app, settings))] if settings.warm_ahead else []),
        ("jobs", _policy(settings)),
        ("lease", f"{format_us(settings.lease)}, renewed every {format_us(settings.heartbeat)}"),
        ("stop", f"Ctrl-C or SIGTERM: running jobs get {format_us(settings.grace)} to finish; again: at once"),
    ]
    wide = max(len(name) for name, _ in lines)
    return [f"{name:<{wide}}  {one_line(text)}" for name, text in lines]


def hints(app: Selaras, queues: Sequence[str]) -> list[str]:
    """Return what is probably a mistake: a queue that no task uses, one that is not served."""
    used = sorted({task.queue for task in app.registry.tasks.values()})
    said: list[str] = []
    for queue in queues:
        if queue not in used:
            near = difflib.get_close_matches(queue, used, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"tasks use {', '.join(map(repr, used))}"
            said.append(f"no task of the app uses queue {queue!r}; {hint}")
    unserved = [queue for queue in used if queue not in queues]
    if unserved:
        said.append(f"this worker does not serve {', '.join(map(repr, unserved))}, which tasks of the app use")
    return said


def facts(app: Selaras, settings: Settings, queues: Sequence[str], fleet: int) -> dict[str, Any]:
    """Return what the start lines say, for programs."""
    return {
        "store": app.url,
        "queues": list(queues),
        "tasks": [
            {
                "name": task.name,
                "queue": task.queue,
                "mode": task.mode.value,
                "writes": task.written(),
                "line": _line(task) or None,
            }
            for task in app.registry.tasks.values()
        ],
        "families": [
            {"name": spec.name, "ttl_seconds": None if spec.family.ttl_us is None else spec.family.ttl_us / 1_000_000}
            for spec in app.registry.families.values()
        ],
        "processes": fleet,
        "settings": {name: value for name, value, _ in settings.shown()},
    }


def _block(name: str, rows: Iterable[tuple[str, ...]]) -> list[tuple[str, str]]:
    """Align rows of words under one name; the rest of a long list is counted."""
    every = list(rows)
    shown = every[:_ALL_MOST]
    widths = [max(len(row[at]) for row in shown if at < len(row)) for at in range(max(map(len, shown)))]
    texts = ["  ".join(f"{word:<{widths[at]}}" for at, word in enumerate(row)).rstrip() for row in shown]
    if len(every) > len(shown):
        texts.append(f"and {len(every) - len(shown)} more")
    return [(name if not at else "", text) for at, text in enumerate(texts)]


def _task(task: TaskSpec, queues: Sequence[str]) -> tuple[str, ...]:
    where = {"loop": "async", "thread": "thread", "process": "process"}[task.mode.value]
    served = "" if task.queue in queues else ", not served here"
    written = ", ".join(task.written())
    line = _line(task)
    return (
        one_line(task.name),
        where,
        f"queue {one_line(task.queue)}{served}",
        ", ".join([*([f"writes {written}"] if written else []), *([f"in line {one_line(line)}"] if line else [])]),
    )


def _line(task: TaskSpec) -> str:
    if task.line is None:
        return ""
    return task.line.text or (f"of its {task.line.key.family.name}" if task.line.key else "")


def _host_tier(app: Selaras, settings: Settings) -> str:
    if app.process().cache.host is None:
        return "left out: this system does not tell whose clocks can be compared"
    return f"{settings.host_tier}, left alone for a while if it does not answer in {format_us(settings.host_timeout)}"


def _family(spec: FamilySpec, settings: Settings) -> tuple[str, ...]:
    family = spec.family
    ttl = (
        "ttl none"
        if family.ttl_us is None
        else "not stored"
        if not family.ttl_us
        else f"ttl {format_us(family.ttl_us)}"
    )
    held = (
        ("local", family.local),
        ("host", family.host and bool(settings.host_tier)),
        ("shared", family.shared_tier),
    )
    tiers = [name for name, is_held in held if is_held]
    named = " and ".join([", ".join(tiers[:-1]), tiers[-1]] if len(tiers) > 1 else tiers or ["no"])
    return (one_line(spec.name), ttl, f"{named} tier{'s' if len(tiers) > 1 else ''}")


def _room(settings: Settings, fleet: int) -> str:
    each = f"{settings.concurrency} async, {settings.threads} threads, {settings.children} child processes"
    return f"{fleet} processes of {each}" if fleet > 1 else each


def _ahead(app: Selaras, settings: Settings) -> str:
    if not any(task.reads_first for task in app.registry.tasks.values()):
        return "nothing: no task says what it reads, by Read(...) or reads="
    return f"while there is no room, what the next {settings.warm_ahead} jobs will read"


def _policy(settings: Settings) -> str:
    most = format_us(settings.backoff_most)
    timeout = format_us(settings.timeout) if settings.timeout else "none"
    return (
        f"retries {settings.retries}, {format_us(settings.backoff)} to {most} apart; timeout {timeout}; results kept "
        f"{format_us(settings.result_ttl)}, failed jobs {format_us(settings.failed_ttl)} (unless a task says otherwise)"
    )
