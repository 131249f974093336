"""`selaras explain`."""

from __future__ import annotations

import pytest
from tests.edges.shell import Line, Shell, everywhere


def ids_of(line: Line) -> dict[str, str]:
    return {job["task"]: job["id"] for job in line.json("jobs", "list")}


@everywhere
def test_a_job_is_explained_by_what_it_read_and_who_made_that(shell: Shell, line: Line) -> None:
    shell.write("shop.py", (shell.directory / "shop.py").read_text() + LOOK)
    shell.enqueue("reprice.call(42, 2.0)")
    shell.work()
    shell.enqueue("look.call(42)")
    shell.work()
    ids = ids_of(line)

    explained = line.json("explain", ids["look"])
    text = line("explain", ids["look"]).stdout

    (read,) = explained["reads"]
    assert (explained["task"], explained["state"]) == ("look", "succeeded")
    assert read["key"] == "product:42"
    assert read["made_by"]["job"] == ids["reprice"]
    assert f"job {ids['reprice']} (reprice), resolved at" in text
    did = line.json("explain", ids["reprice"])["did"]
    assert [one["what"] for one in did][:1] == ["planted"]
    assert [one["what"] for one in did][-1:] == ["resolved"]


@everywhere
def test_a_value_that_was_there_before_anything_changed_is_not_said_to_be_the_attempts_own(
    shell: Shell, line: Line
) -> None:
    shell.write("shop.py", (shell.directory / "shop.py").read_text() + LOOK)
    shell.enqueue("look.call(42)")
    line.json("cache", "get", "product", "42")
    shell.work()

    text = line("explain", ids_of(line)["look"]).stdout

    (read,) = line.json("explain", ids_of(line)["look"])["reads"]
    assert (read["tier"], read["position"]) == ("shared", 0)
    assert "product:42\tshared\t0\tno change of it was noted" in text


@everywhere
def test_a_value_is_explained_by_what_stands_there_and_what_happened_to_it(shell: Shell, line: Line) -> None:
    shell.enqueue("reprice.call(42, 2.0)")
    shell.work()

    explained = line.json("explain", "product", "42")
    text = line("explain", "product", "id=42").stdout

    assert explained["key"] == "product:42"
    assert {one["what"] for one in explained["happened"]} >= {"planted", "resolved", "read"}
    assert "intent" not in text.partition("WHEN")[0]
    assert "planted" in text
    assert line.json("cache", "stats")["entries"] == 0, "what is noted for people is no value"


@everywhere
def test_a_job_that_read_what_a_tag_or_a_family_had_voided_is_told_so(shell: Shell, line: Line) -> None:
    shop = (shell.directory / "shop.py").read_text().replace("ttl=300", 'ttl=300, tags="shelf:{id}"')
    shell.write("shop.py", shop + LOOK)
    shell.enqueue("look.call(42)")
    line.json("cache", "get", "product", "42")
    assert line("cache", "invalidate", "--tag", "shelf", "42").exit_code == 0
    shell.work()

    (look,) = line.json("jobs", "list")
    (read,) = line.json("explain", look["id"])["reads"]
    text = line("explain", look["id"]).stdout

    assert read["made_by"]["key"] == "tag shelf:42"
    assert "code outside of jobs, voided with tag shelf:42 at" in text


def test_what_runs_in_a_child_process_is_explained_too(shell: Shell, line: Line) -> None:
    shell.write("shop.py", (shell.directory / "shop.py").read_text() + LOOK.replace("@app.task", APART))
    shell.enqueue("look.call(42)")
    shell.work()

    (read,) = line.json("explain", ids_of(line)["look"])["reads"]

    assert (read["key"], read["tier"]) == ("product:42", "loader")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("0123",), 1, "there is no job 0123"),
        (("prodct", "42"), 2, "did you mean 'product'?"),
        (("product", "x"), 2, "id='x' is no int"),
        ((), 2, "Missing argument"),
    ],
)
def test_mistakes_are_told_in_a_line(shell: Shell, line: Line, words: tuple[str, ...], code: int, said: str) -> None:
    shell.enqueue()

    result = line("explain", *words)

    assert result.exit_code == code
    assert said in result.stderr
    assert "Traceback" not in result.output


LOOK = """

@app.task
async def look(id: int) -> float:
    return (await product(id)).price
"""
APART = '@app.task(executor="process")'


@everywhere
def test_what_the_command_line_did_is_explained_too(shell: Shell, line: Line) -> None:
    shell.enqueue()
    assert line("cache", "get", "product", "42").exit_code == 0
    assert line("cache", "invalidate", "product", "42").exit_code == 0
    assert line("cache", "get", "product", "42").exit_code == 0

    happened = [one["what"] for one in line.json("explain", "product", "42")["happened"]]

    assert sorted(happened) == ["filled", "filled", "voided"]


@everywhere
def test_an_invalidation_by_the_text_of_a_key_is_explained_though_no_app_was_named(
    shell: Shell, line: Line, url: str
) -> None:
    shell.enqueue()
    at = (url or "sqlite:///selaras.db") if url else ""

    assert line("cache", "invalidate", "--key", "product:42", *(("-u", at) if at else ())).exit_code == 0

    (happening,) = line.json("explain", "product", "42")["happened"]
    assert (happening["what"], happening["key"]) == ("voided", "product:42")
    assert happening["position"] > 0


@everywhere
def test_what_voided_a_tag_or_a_family_is_told_at_the_position_of_the_key_s_own_partition(
    shell: Shell, line: Line
) -> None:
    shell.write("shop.py", (shell.directory / "shop.py").read_text().replace("ttl=300", 'ttl=300, tags="shelf:{id}"'))
    shell.enqueue()
    assert line("cache", "invalidate", "--tag", "shelf", "3").exit_code == 0
    for id in range(5):
        assert line("cache", "invalidate", "product", str(id)).exit_code == 0  # the logs are of different lengths now
    assert line("cache", "invalidate", "--family", "product").exit_code == 0
    for id in range(5):
        assert line("cache", "invalidate", "product", str(id)).exit_code == 0

    events: dict[str, int] = {}
    for id in range(5):
        explained = line.json("explain", "product", str(id))
        wide = {one["key"]: one["position"] for one in explained["happened"] if one["key"] != f"product:{id}"}
        last = max(one["position"] for one in explained["happened"])
        partition = explained["standing"][0].partition(" in ")[2].partition(",")[0]
        events[partition] = events.get(partition, 0) + 1
        assert set(wide) == ({"family product", "tag shelf:3"} if id == 3 else {"family product"})
        assert wide["family product"] + events[partition] == last
    assert "voided with tag shelf:3" in line("explain", "product", "3").stdout
