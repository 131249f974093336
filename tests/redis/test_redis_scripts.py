"""Every script is whole: it says what it does and touches, and a server takes it."""

from __future__ import annotations

import re

import pytest
from tests.redis.servers import RedisServer

from selaras._stores.redis.scripts import FOLDER, PARTS, Head, functions, script, source, verbs


@pytest.mark.parametrize("verb", verbs())
def test_a_script_declares_the_keys_that_it_touches(verb: str) -> None:
    texts = ("prelude", *Head.of(verb, source(verb)).list("uses"), verb)
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
