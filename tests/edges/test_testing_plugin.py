"""The pytest plugin, in test suites of its own."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

APP = """
    from selaras import Selaras

    app = Selaras()

    @app.task
    async def double(n: int) -> int:
        return 2 * n
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("SELARAS_APP", raising=False)
    pytester.makepyfile(doubling=APP)
    pytester.makeini("[pytest]\nselaras_app = doubling:app\nasyncio_default_fixture_loop_scope = function\n")
    return pytester


def test_a_coroutine_test_gets_the_harness_of_the_app_that_is_configured(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        from doubling import double

        @pytest.mark.asyncio
        async def test_it(selaras_harness):
            await double.enqueue(21)
            selaras_harness.assert_enqueued(double, 21)
            assert [job.result for job in await selaras_harness.run()] == [42]
        """
    )

    suite.runpytest_subprocess("-q").assert_outcomes(passed=1)


def test_without_pytest_asyncio_it_serves_plain_tests(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\nselaras_app = doubling:app\n")
    suite.makepyfile(
        """
        import asyncio
        from doubling import double
        from selaras.testing import harness

        def test_it(selaras_harness):
            asyncio.run(enqueue())
            assert [job.result for job in selaras_harness.sync.run()] == [42]

        async def enqueue():
            await double.enqueue(21)
        """
    )

    suite.runpytest_subprocess("-q", "-p", "no:asyncio").assert_outcomes(passed=1)


def test_the_app_may_be_a_fixture(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        from selaras.blocking import Selaras

        @pytest.fixture
        def selaras_app():
            app = Selaras()

            @app.task
            def triple(n: int) -> int:
                return 3 * n

            app.triple = triple
            return app

        def test_it(selaras_app, selaras_harness):
            selaras_app.triple.enqueue(2)
            assert [job.result for job in selaras_harness.sync.run()] == [6]
        """
    )

    suite.runpytest_subprocess("-q").assert_outcomes(passed=1)
    suite.runpytest_subprocess("-q", "-p", "no:asyncio", "-o", "asyncio_mode=").assert_outcomes(passed=1)


def test_without_an_app_it_says_how_to_name_one(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\n")
    suite.makepyfile("def test_it(selaras_harness): pass")

    result = suite.runpytest_subprocess("-q", "-p", "no:asyncio")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(['*which app? Set `selaras_app = "shop:app"`*'])


def test_a_suite_that_does_not_use_it_does_not_notice_it(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import sys

        def test_it():
            assert "selaras.cli" not in sys.modules
            assert "selaras._worker.worker" not in sys.modules
        """
    )

    suite.runpytest_subprocess("-q", "-W", "error").assert_outcomes(passed=1)
