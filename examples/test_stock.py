"""How a program is tested: the same app, on a store in memory, under a clock of the test's own."""

from stock import announce, app, discount

from selaras.testing import harness


async def test_a_discount_is_announced() -> None:
    async with harness(app) as t:
        job = await discount.enqueue(42, 10)
        await t.run()  # all that is due, by the code of real workers; `await t.advance("5m")` moves time
        assert await job.result() == 9.0
        assert [job.state for job in t.jobs(announce)] == ["succeeded"]
