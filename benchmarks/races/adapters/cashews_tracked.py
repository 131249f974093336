"""With its client-side cache, over RESP2: under RESP3 it hears no invalidation."""
# /// script
# dependencies = ["cashews[redis]"]
# [tool.peer]
# shown = ["cashews", "redis"]
# ///

from benchmarks.races.adapters import cashews

LOCAL, ALONE = True, False
TTL_S = cashews.TTL_S


async def open(url, name, load):
    return await cashews.open(url, name, load, client_side=True, protocol=2)
