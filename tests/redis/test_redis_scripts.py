"""Every script is whole: it says what it does and touches, and a server takes it."""

from __future__ import annotations

import pytest
from tests.redis.servers import RedisServer

from selaras._stores.redis.scripts import FOLDER, PARTS, Head, script, source, verbs


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


@pytest.mark.parametrize("verb", verbs())
def test_a_server_compiles_a_script(verb: str, redis_server: RedisServer) -> None:
    made = script(verb)
    assert redis_server.call("SCRIPT", "LOAD", made.text) == made.sha
