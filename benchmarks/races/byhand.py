"""What a program does around a cache that knows nothing of transactions and jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


class ByHand:
    """Commit, then delete: what each library's users are told to do. A job is a call that a worker makes."""

    async def get(self, key: str = "row") -> int:
        """Read through."""
        raise NotImplementedError

    async def put(self, value: int) -> None:
        """Write through."""
        raise NotImplementedError

    async def delete(self) -> None:
        """Invalidate."""
        raise NotImplementedError

    async def write(self, commit: Callable[[], None]) -> None:
        """Commit, then delete."""
        commit()
        await self.delete()

    async def write_in_transaction(self, meanwhile: Callable[[], Awaitable[int]], commit: Callable[[], None]) -> None:
        """Delete where the row is changed; the commit comes at the end of the request."""
        await self.delete()
        await meanwhile()
        commit()

    async def commit_and_die(self, commit: Callable[[], None]) -> None:
        """The delete is never reached."""
        commit()

    async def commit_and_follow(self, commit: Callable[[], None], worker: Any) -> int:
        """What is to happen after the commit happens one after the other: the job was first."""
        commit()
        value: int = await worker.get()
        await self.delete()
        return value

    async def enqueue_and_commit(self, commit: Callable[[], None], worker: Any) -> int:
        """The job is fast, the commit is not; a row that is new was never cached: nothing to delete."""
        value: int = await worker.get()
        commit()
        return value

    async def put_and_fail(self, value: int) -> None:
        """What was written through stays."""
        await self.put(value)

    async def put_late(self, old: int, commit: Callable[[], None], new: int, other: Any) -> None:
        """The second attempt is through, then the first one wakes."""
        commit()
        await other.put(new)
        await self.put(old)
