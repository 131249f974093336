"""`selaras cache`."""

from __future__ import annotations

import json

import pytest
from tests.edges.shell import Line, Shell, everywhere

from selaras.cli.arguments import read_arguments
from selaras.cli.cache import percent_text
from selaras.cli.exits import Misused


@everywhere
def test_a_value_is_read_through_the_tiers_and_it_is_said_where_it_came_from(shell: Shell, line: Line) -> None:
    shell.enqueue()

    first = line.json("cache", "get", "product", "42")
    second = line.json("cache", "get", "product", "id=42")

    assert first["key"] == second["key"] == "product:42"
    assert first["value"] == second["value"] == {"id": 42, "price": 10.0}
    assert (first["tier"], second["tier"]) == ("loader", "shared")
    text = line("cache", "get", "product", "42", "--fresh", "strict").stdout
    assert 'value     {"id": 42, "price": 10.0}' in text
    assert "tier      shared" in text


@everywhere
def test_what_stands_in_the_shared_tier_is_shown_and_nothing_is_loaded(shell: Shell, line: Line) -> None:
    shell.enqueue()

    before = line.json("cache", "show", "product", "42")
    line.json("cache", "get", "product", "42")
    after = line.json("cache", "show", "product", "42")

    assert (before["tier"], before["value"], before["ttl"]) == ("nothing", None, None)
    assert (after["tier"], after["value"], after["ttl"]) == ("shared", {"id": 42, "price": 10.0}, 300.0)
    assert 0 < after["expires"] <= 300
    assert after["why"] == "its family says so"
    text = line("cache", "show", "product", "42").stdout
    assert "ttl       300.000 s" in text


@everywhere
def test_a_value_can_be_voided_by_arguments_key_tag_and_family(shell: Shell, line: Line) -> None:
    shell.enqueue()

    for words in (("product", "42"), ("--key", "product:42"), ("--family", "product")):
        line.json("cache", "get", "product", "42")
        assert line("cache", "invalidate", *words).exit_code == 0
        assert line.json("cache", "get", "product", "42")["tier"] == "loader", words
    assert line.json("cache", "invalidate", "--tag", "category", "7") == {"invalidated": {"tag": "category:7"}}


def test_keys_tags_and_families_can_be_voided_without_the_apps_code(shell: Shell, line: Line) -> None:
    shell.enqueue()
    store = ("--url", "sqlite:///selaras.db")
    line.json("cache", "get", "product", "42")

    assert line("cache", "invalidate", "--key", "product:42", *store, SELARAS_APP="").exit_code == 0
    assert line.json("cache", "get", "product", "42")["tier"] == "loader"
    assert line("cache", "invalidate", "--family", "product", *store, SELARAS_APP="").exit_code == 0
    assert line.json("cache", "get", "product", "42")["tier"] == "loader"

    refused = line("cache", "get", "product", "42", *store, SELARAS_APP="")
    assert refused.exit_code == 2
    assert "only the app knows" in refused.stderr


@everywhere
def test_stats_count_what_is_stored_over_all_partitions(shell: Shell, line: Line) -> None:
    shell.enqueue()
    for id in ("1", "2", "3"):
        line("cache", "get", "product", id)

    stats = line.json("cache", "stats")

    assert stats["entries"] == 3
    assert stats["intents"] == 0
    assert len(stats["logs"]) == (4 if shell.env else 1)
    assert "values         3" in line("cache", "stats").stdout


@everywhere
def test_stats_tell_how_consistent_audited_families_were_and_what_was_found_stale(shell: Shell, line: Line) -> None:
    shell.write(
        "audited.py",
        """
        import asyncio
        from selaras import Read, Selaras

        app = Selaras()
        rows = {1: "old"}

        @app.cached(audit=1.0)
        async def row(id: int) -> str:
            return rows[id]

        @app.task(retries=0)
        async def look(id: int) -> str:
            return await row(id)

        async def main() -> None:
            async with app:
                await row(1)
                await row(1)  # the first hit draws which is audited next
                await row(1)
                await asyncio.sleep(0.1)
                rows[1] = "new"  # and nobody is told
                await look.enqueue(1)
                await app.worker(burst=True).run()
                while "shared     nothing" not in await row.key(1).explain():  # the audit voids what it finds
                    await asyncio.sleep(0.01)
                await row(1)

        if __name__ == "__main__":
            asyncio.run(main())
        """,
    )
    shell.python("import runpy; runpy.run_path('audited.py', run_name='__main__')")
    env = {"SELARAS_APP": "audited:app"}

    stats = line.json("cache", "stats", **env)
    text = line("cache", "stats", **env).stdout

    rows = {(row["family"], row["task"], row["pool"]): row for row in stats["audits"]}
    assert rows["row", "", ""]["audited"] >= 1
    assert rows["row", "", ""]["stale"] == 0
    job = rows["row", "look", "default"]
    assert (job["stale"], job["consistency"]) == (1, 0.0)
    assert stats["stale_reads"][0]["key"] == "row:1"
    assert stats["entries"] == 1, "what is noted for people is no value"
    assert "(look) from the local tier" in text
    assert "nothing told the cache of the change" in text


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (None, "-"),
        (1.0, "100 %"),
        (0.5, "50.00 %"),
        (1 - 3e-7, "99.999970 %"),
        (1 - 2.996e-6, "99.99970 %"),
    ],
)
def test_a_share_of_nearly_all_is_said_as_exactly_as_it_is_known(share: float | None, said: str) -> None:
    assert percent_text(share) == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("get", "prodct", "42"), "did you mean 'product'?"),
        (("get", "product", "x"), "id='x' is no int"),
        (("get", "product"), "missing"),
        (("get", "product", "1", "2"), "one argument too many"),
        (("get", "product", "1", "--fresh", "soon"), "units are"),
        (("invalidate",), "say what to void"),
        (("invalidate", "product", "1", "--key", "product:1"), "one thing at a time"),
        (("invalidate", "--tag", "a", "1", "2"), "one VALUE at most"),
        (("invalidate", "--family", "prodct"), "did you mean 'product'?"),
    ],
)
def test_mistakes_are_told_in_a_line_without_a_traceback(
    shell: Shell, line: Line, words: tuple[str, ...], said: str
) -> None:
    shell.enqueue()

    result = line("cache", *words)

    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_arguments_are_read_as_the_loaders_types(shell: Shell, line: Line) -> None:
    shell.write(
        "typed.py",
        """
        import datetime, uuid
        from selaras import Selaras

        app = Selaras()

        @app.cached
        async def echo(a: str, b: int | None, c: list[int], d: datetime.date, e: uuid.UUID, f: bool, g=None) -> list[str]:
            return [repr(x) for x in (a, b, c, d, e, f, g)]
        """,
    )
    shell.enqueue(module="typed")
    some = "00000000-0000-0000-0000-000000000001"

    value = line.json(
        "cache", "get", "echo", "42", "7", "[1, 2]", "2026-01-31", some, "true", 'g={"x": 1}', SELARAS_APP="typed:app"
    )["value"]

    assert value == ["'42'", "7", "[1, 2]", "datetime.date(2026, 1, 31)", f"UUID('{some}')", "True", "{'x': 1}"]


def test_a_loader_that_fails_is_told_with_its_own_error(shell: Shell, line: Line) -> None:
    shell.write(
        "failing.py",
        """
        from selaras import Selaras

        app = Selaras()

        @app.cached
        async def gone(id: int) -> int:
            raise LookupError(f"no row {id}")
        """,
    )
    shell.enqueue(module="failing")

    result = line("cache", "get", "gone", "1", SELARAS_APP="failing:app")

    assert result.exit_code == 1
    assert "LookupError: no row 1" in result.stderr
    assert "Traceback" not in result.output


def test_a_tag_typed_as_it_is_declared_is_told_how_to_be_typed(shell: Shell, line: Line) -> None:
    shell.write(
        "tagged.py",
        """
        from selaras import Selaras

        app = Selaras()


        @app.cached(tags="category:{id}")
        async def product(id: int) -> int:
            return id
        """,
    )

    shell.enqueue(module="tagged")

    joined = line("cache", "invalidate", "--tag", "category:7", "--app", "tagged:app")
    apart = line("cache", "invalidate", "--tag", "category", "7", "--app", "tagged:app")

    assert joined.exit_code == 2
    assert "--tag category 7" in joined.stderr
    assert apart.exit_code == 0


_METHODS = """
from selaras import Selaras

app = Selaras()


class Shop:
    def __init__(self, region: str) -> None:
        self.region = region

    @app.cached(self_key="region")
    async def product(self, id: int) -> str:
        return f"{self.region} {id}"

    @app.cached(self_key=None)
    async def vat(self, country: str) -> float:
        return 0.2
"""


def test_a_negative_number_that_looks_like_an_option_is_helped(shell: Shell, line: Line) -> None:
    shell.enqueue()

    wrong = line("cache", "get", "product", "-1")

    assert wrong.exit_code == 2
    assert "a negative number is written after `--`, or with its name, as in id=-1" in wrong.stderr
    for right in (("--", "-1"), ("id=-1",)):
        assert json.loads(line("cache", "get", "product", "--json", *right).stdout)["value"]["id"] == -1


def test_a_name_that_no_parameter_has_is_told(shell: Shell, line: Line) -> None:
    shell.enqueue()

    wrong = line("cache", "get", "product", "idd=42")

    assert wrong.exit_code == 2
    assert "there is no parameter 'idd': it takes id" in wrong.stderr


def test_a_text_that_begins_like_a_name_is_a_text_where_it_is_said_so() -> None:
    def search(query: str, /, words: str, *more: str) -> None:
        """Its first parameter has no name for callers, and the last ones have none at all."""

    types = {"query": str, "words": str, "more": str}

    with pytest.raises(Misused, match=r"there is no parameter 'b': .*write words=b=c"):
        read_arguments(search, types, ["a=b", "b=c"])

    assert read_arguments(search, types, ["a=b", "words=b=c"]) == (("a=b",), {"words": "b=c"})
    assert read_arguments(search, types, ["a=b", "1=2", "c=d"]) == (("a=b", "1=2", "c=d"), {})


def test_a_methods_values_are_named_by_what_stands_for_its_object(shell: Shell, line: Line) -> None:
    shell.write("methods.py", _METHODS)
    shell.python("""
        import asyncio
        from methods import Shop, app

        async def main():
            async with app:
                print(await Shop("eu").product(1), await Shop("eu").vat("de"))

        asyncio.run(main())
    """)
    app = ("--app", "methods:app")

    for words in (("eu", "1"), ("region=eu", "1"), ("self=eu", "id=1"), ("id=1", "eu"), ("id=1", "region=eu")):
        assert line.json("cache", "get", "Shop.product", *words, *app)["value"] == "eu 1"
    assert line.json("cache", "get", "Shop.vat", "de", *app)["value"] == 0.2
    assert "eu 1" in line("cache", "show", "Shop.product", "eu", "1", *app).stdout
    assert line("explain", "Shop.product", "eu", "1", *app).exit_code == 0

    assert line.json("cache", "invalidate", "Shop.product", "eu", "1", *app)["invalidated"] == {
        "key": "Shop.product:'eu,1"
    }
    refusals: list[tuple[str, tuple[str, ...], str]] = [
        ("get", ("eu", "1"), "Shop.product is a method, and loading a value needs its object"),
        ("warm", ("eu", "1"), "warm them in it, with app.warm(...)"),
        ("get", ("id=1",), "its first argument, 'region', says of which object, as in Shop.product REGION ID"),
        ("get", ("eu",), "missing a required argument: 'id'"),
        ("get", ("eu", "1", "2"), "'2' is one argument too many: it takes 1 (id)"),
    ]
    for command, given, said in refusals:
        refused = line("cache", command, "Shop.product", *given, *app)
        assert refused.exit_code == 2
        assert said in refused.stderr


def test_a_value_is_warmed_by_its_arguments(shell: Shell, line: Line) -> None:
    shell.enqueue()

    first = line.json("cache", "warm", "product", "42")
    second = line("cache", "warm", "product", "id=42")

    assert first == {
        "family": "product", "asked": 1, "held": 0, "shared": 0, "loaded": 1, "unkept": 0, "failed": 0, "error": None,
    }  # fmt: skip
    assert "there already  1" in second.stdout
    assert line.json("cache", "get", "product", "42")["tier"] == "shared"


def test_values_are_warmed_by_the_lines_of_the_standard_input(shell: Shell, line: Line) -> None:
    shell.enqueue()

    warmed = line("cache", "warm", "product", "--json", stdin="1\n2\n\nid=3\n")
    wrong = line("cache", "warm", "product", stdin="1\nprice=3\n")
    unclear = line("cache", "warm", "product", stdin="'1\n")

    assert json.loads(warmed.stdout)["loaded"] == 3
    assert line.json("cache", "get", "product", "3")["tier"] == "shared"
    assert (wrong.exit_code, unclear.exit_code) == (2, 2)
    assert "line 2 of the standard input: there is no parameter 'price': it takes id" in wrong.stderr
    assert "nothing was loaded" in wrong.stderr
    assert "line 1 of the standard input: No closing quotation" in unclear.stderr
