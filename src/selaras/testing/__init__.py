"""For tests of programs that use Selaras: the same app on a memory store, under a clock that the test moves.

from selaras.testing import harness

async def test_a_price_change_is_mailed():
async with harness(app) as t:
await change_price(42, 9.90)                # code of yours, which enqueues
t.assert_enqueued(reprice, 42, 9.90)
await t.run()                               # runs what is due, by the code of real workers
await t.advance("5m")                       # and what becomes due
assert [job.state for job in t.jobs(send_mail)] == ["succeeded"]
"""

from selaras.testing.clock import VirtualClock as VirtualClock
from selaras.testing.harness import Harness as Harness, SyncHarness as SyncHarness, harness as harness
from selaras.testing.seen import JobError as JobError, SeenJob as SeenJob

__all__ = ["Harness", "JobError", "SeenJob", "SyncHarness", "VirtualClock", "harness"]
