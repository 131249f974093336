"""What a reply brought is kept near, in the local and the host tier, if nothing speaks against it (P3, P6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selaras._cache.family import Slot
from selaras._cache.follower import Follower
from selaras._cache.host import HostTier
from selaras._cache.local import LocalTier
from selaras._cache.storable import local_entry


class Keeping:
    """Keeps values near. `host`: the host tier, if there is one."""

    def __init__(self, followers: Sequence[Follower], local: LocalTier) -> None:
        self._followers = followers
        self._local = local
        self.host: HostTier | None = None

    def keep(
        self,
        slot: Slot,
        value: Any,
        data: bytes,
        *,
        tags: tuple[str, ...],
        position: int,
        stamp: int,
        sent_ns: int,
        left_us: int | None,
        early_us: int = 0,
        note: bytes = b"",
        trusted: bool = True,
    ) -> bool:
        """Keep a value that is true at `position`; after the news of its reply. Returns whether the local tier did: if not,
        it is the caller's to note that it is given out (P4).

        Args:
            value: as it was decoded. It is looked at only if it may be shared.
            left_us: of its ttl; None: no end. `early_us`: how long before that it is loaded anew.
            trusted: False if the reply's news told less than lies before it.
        """
        family, follower = slot.family, self._followers[slot.partition]
        kept = False
        with self._local.lock:  # nothing is heard between the judgement and what follows from it
            is_true = (
                trusted
                # The reply may have waited for those of other partitions since it was heard.
                and position <= follower.applied.position
                and follower.trusts(sent_ns)
                and follower.untouched(slot.key, position, family.name, tags)
            )
            if family.local and is_true:
                kept = self._local.store(
                    local_entry(
                        slot,
                        value,
                        data,
                        tags=tags,
                        position=position,
                        stamp=stamp,
                        sent_ns=sent_ns,
                        left_us=left_us,
                        early_us=early_us,
                    )
                )
        if self.host is not None and is_true:
            self.host.offer(
                slot, data, tags=tags, position=position, stamp=stamp, sent_ns=sent_ns, left_us=left_us, note=note
            )
        return kept
