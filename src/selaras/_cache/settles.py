"""What the answer to a settle teaches: puts that were stored are known here, and what it voided is not served (P3, P5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from selaras._cache.family import Slot
from selaras._cache.histories import Seen
from selaras._cache.keeping import Keeping
from selaras._cache.lineage import Lineage
from selaras._cache.session import Session
from selaras._cache.storable import Storable
from selaras._cache.warming import Warming
from selaras._core.cache.lifetimes import note_of
from selaras._core.cache.lineage import What
from selaras._core.cache.packing import unpacked
from selaras._core.jobs.job import Settled


class Settles:
    """Hears what became of settles. `told`: somebody here was told of an end; `drop`: keys that the local tier drops."""

    def __init__(
        self,
        keeping: Keeping,
        storable: Storable,
        warming: Warming,
        *,
        told: Callable[[], None],
        drop: Callable[[Iterable[str]], None],
        lineage: Lineage | None,
    ) -> None:
        self._keeping = keeping
        self._storable = storable
        self._warming = warming
        self._told = told
        self._drop_keys = drop
        self._lineage = lineage

    def heard(self, session: Session, settled: Settled, *, partition: int, sent_ns: int) -> None:
        """Hear what became of a session's settle, after its news: puts that were stored enter the local tier, each at
        its own position (P3). `partition`: the one that answered. `sent_ns`: when the settle was sent.
        """
        self._warming.ended(session)
        stored = {key: (position, stamp) for key, position, stamp in settled.stored}
        if self._lineage is not None:
            self._note_settle(self._lineage, session, settled, {key: position for key, (position, _) in stored.items()})
        self._drop_keys(key for written in (session.own, session.serves) for key in written if key not in stored)
        if session.opens:
            self._told()
        for key, (position, stamp) in stored.items():
            pending = session.puts.get(key)
            if pending is None or pending.slot.partition != partition:
                continue
            put = pending.put
            self.learned(
                pending.slot,
                unpacked(put.value, 0),
                position=position,
                stamp=stamp,
                sent_ns=sent_ns,
                tags=put.tags,
                expires_in_us=put.expires_in_us,
                note=put.note,
            )
            if pending.slot.family.adaptive is not None:
                seen = Seen(note_of(put.note).past, sent_ns, put.checksum, position)
                self._storable.histories.saw(key, seen)

    def _note_settle(self, lineage: Lineage, session: Session, settled: Settled, stored: Mapping[str, int]) -> None:
        kind = What.RESOLVED if settled.refusal is None else What.REFUSED
        task = session.task or session.kind.name.lower()
        for key in session.own:
            position = stored.get(key)
            if position is not None:
                lineage.note(What.STORED, key, job=settled.job, task=task, position=position)
            else:
                # From its intent on nothing else was stored there, and that was the key's last event (L3, L4).
                lineage.note(kind, key, job=settled.job, task=task, position=session.position or None)

    def learned(
        self,
        slot: Slot,
        data: bytes,
        *,
        position: int,
        stamp: int,
        sent_ns: int,
        tags: tuple[str, ...] = (),
        expires_in_us: int = 0,
        note: bytes = b"",
    ) -> None:
        """Take a value into the local tier that a reply says was stored, true at `position`; after the reply's news."""
        codec = slot.family.codec
        left_us = note_of(note).left_us(expires_in_us)
        if not self._keeping.keep(
            slot,
            codec.decode(data) if codec.shared and slot.family.local else None,
            data,
            tags=tags,
            position=position,
            stamp=stamp,
            sent_ns=sent_ns,
            left_us=left_us,
            early_us=slot.family.early_us(0, self._storable.chance()) if left_us is not None else 0,
            note=note,
        ):
            self._drop_keys((slot.key,))
