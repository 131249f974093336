"""`durability=replicated`: what is answered is on a replica."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.redis.servers import RedisServer

from selaras import Selaras, StoreUnavailable


async def test_a_wait_for_replicas_that_was_broken_off_is_not_asked_again_over_another_connection() -> None:
    """A master that finds itself replaced breaks it off; asked anew, where nothing had been written, it was answered at once."""
    with RedisServer() as server, server.replica() as replica:
        app = Selaras(server.url_for(query="durability=replicated&replicated_within=10"))

        @app.task
        async def note() -> None: ...

        async with app:
            await note.enqueue()
            replica.pause()
            enqueueing = asyncio.create_task(note.enqueue())
            async with asyncio.timeout(5):
                while not (
                    blocked := re.search(
                        r"^id=(\d+) .* flags=b .* cmd=wait ", str(server.call("CLIENT", "LIST")), re.MULTILINE
                    )
                ):
                    await asyncio.sleep(0.01)
            server.call("CLIENT", "UNBLOCK", blocked[1], "ERROR")

            with pytest.raises(StoreUnavailable, match="no replica had it"):
                await enqueueing
        replica.resume()
