"""Every script is whole: it says what it does and touches, and a server takes it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from tests.redis.resp import ServerError
from tests.redis.servers import RedisServer

from selaras._core.jobs.job import NewJob, Settlement
from selaras._core.jobs.states import JobEvent
from selaras._stores.redis.address import Names
from selaras._stores.redis.cells import Values
from selaras._stores.redis.packing import Packing
from selaras._stores.redis.scripts import FOLDER, PARTS, Head, functions, script, source, used, verbs
from selaras._stores.redis.store import FORMAT


@pytest.mark.parametrize("verb", verbs())
def test_a_script_declares_the_keys_that_it_touches(verb: str) -> None:
    texts = ("prelude", *used(verb), verb)
    declared = {key for text in texts for key in Head.of(text, source(text)).list("keys")}
    assert set(script(verb).keys) <= declared


@pytest.mark.parametrize("verb", verbs())
def test_a_script_says_what_it_costs(verb: str) -> None:
    said = Head.of(verb, source(verb)).said
    assert {"uses", "keys", "cost", "flags"} <= set(said)


@pytest.mark.parametrize("part", [part for part in PARTS if (FOLDER / f"{part}.lua").exists()])
def test_a_part_says_what_it_is(part: str) -> None:
    assert Head.of(part, source(part)).said[part]


def test_no_two_functions_have_one_name_and_none_that_of_a_variable() -> None:
    """Functions become fields of one table: whatever else has their name would be taken for them."""
    own = {verb: re.findall(r"^local function (\w+)\(", source(verb), re.MULTILINE) for verb in verbs()}
    of_parts = [
        name
        for part in PARTS
        if part != "prelude"  # its functions are none of these
        for name in re.findall(r"^local function (\w+)\(", source(part), re.MULTILINE)
    ]
    assert set(of_parts) == functions()
    for text in (*PARTS[1:], *verbs()):
        names = [*of_parts, *own.get(text, ())]
        assert len(set(names)) == len(names), text
        either = "|".join(names)
        variable = re.search(
            rf"\blocal (?!function)[^\n=]*\b({either})\b|\bfor [^\n]*\b({either})\b[^\n]* (?:in|=) "
            rf"|function[ \w]*\([^)\n]*\b({either})\b",
            source(text),
        )
        assert variable is None, f"{text}: {variable[0]}"


@pytest.mark.parametrize("verb", verbs())
def test_a_server_compiles_a_script(verb: str, redis_server: RedisServer) -> None:
    made = script(verb)
    assert redis_server.call("SCRIPT", "LOAD", made.text) == made.sha


def test_a_script_makes_no_objects_but_those_it_uses() -> None:
    text = script("void").text
    assert "HMGET" in text
    assert not re.search(r"function \w+:|__index", text)  # it keeps no unit of work
    assert "function Hash:get(" in script("read").text


def test_every_process_has_the_same_scripts() -> None:
    """A server keeps all scripts it was ever given: texts that differ from process to process would fill it by and by."""
    code = "from selaras._stores.redis.scripts import script, verbs; print([script(verb).sha for verb in verbs()])"
    said = {
        subprocess.check_output([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed})
        for seed in ("1", "2", "3")
    }
    assert said == {f"{[script(verb).sha for verb in verbs()]}\n".encode()}


def test_plain_jobs_need_nothing_that_is_made_when_it_is_asked_for(redis_server: RedisServer) -> None:
    """Most of the scripts' functions are the long way's: to make them anew at each call costs more than all the rest."""
    packing, names = Packing(0, 1), Names("short")

    def run(verb: str, *request: Any, short: bool = True) -> Any:
        made = script(verb)
        text = made.text.replace("MAKERS[made]()", "error('made for ' .. name)") if short else made.text
        keys = [names.key(0, key) for key in made.keys]
        return redis_server.call("EVAL", text, len(keys), *keys, 0, 1, 0, 0, msgspec.msgpack.encode(request))

    def turn(number: int, *settlements: Settlement) -> Any:
        settled = packing.settlements_of(settlements, Values())
        return run("turn", "i", number, number - 1, settled, ("default",), ("t",), 10, True, (), ())

    run("greet", FORMAT, 1, 0, "run", 0, -1, False)
    run("enroll", "i", 15_000_000, ("default",), "bell", "i", short=False)
    assert turn(1)[3] == []
    admitted = run("enqueue", *packing.groups_of([NewJob(id=f"job-{n}", task="t") for n in range(3)]))
    assert admitted[1] == [3]
    claims = turn(2)[3]
    assert claims[::3] == ["job-0", "job-1", "job-2"]
    ends = [Settlement(claims[at], int(claims[at + 1], 16), JobEvent.SUCCEED) for at in range(0, 9, 3)]
    assert turn(3, *ends)[2] == [3]
    assert run("enqueue", *packing.groups_of([NewJob(id="later", task="t", delay_us=1)]))[1] == [1]
    assert turn(4)[3][::3] == ["later"]

    with pytest.raises(ServerError, match="made for"):
        run("cancel", "later", "")
