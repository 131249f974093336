"""What a URL says, where partitions lie, and who holds them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.redis.servers import Cluster, Sentinels

from selaras import ConfigurationError, StoreUnavailable
from selaras._app.setup.opening import address_of
from selaras._app.setup.origin import Origin
from selaras._stores.redis.address import (
    SCHEMES,
    Account,
    Endpoint,
    Names,
    masked,
    prefix_of,
    redis_address,
    slot_of,
)
from selaras._stores.redis.dialling import ask_once
from selaras._stores.redis.topology import Sentinels as Watched, redirection, topology_of


def test_a_url_names_one_server() -> None:
    address = redis_address("redis://me:p%40ss@host:7000/3?socket_timeout=2&protocol=3")

    assert address.endpoints == (Endpoint("host", 7000),)
    assert (address.shape, address.service, address.prefix) == ("single", "", "selaras")
    account = address.account
    assert (account.username, account.password, account.db) == ("me", "p@ss", 3)
    assert (account.protocol, account.silence_s, account.secure) == (3, 2.0, False)
    assert redis_address("valkey://").endpoints == (Endpoint("localhost", 6379),)
    assert redis_address("valkeys://:pw@[::1]:7/").endpoints == (Endpoint("::1", 7),)
    assert redis_address("rediss://host").account.secure
    assert redis_address("unix:///run/r%20s.sock?db=2").endpoints == (Endpoint("/run/r s.sock"),)
    assert redis_address("redis://:p?a@s#s/word@host:1/2?db=3").account.password == "p?a@s#s/word"
    assert redis_address("unix://:pw@/run/redis.sock").account.password == "pw"


@pytest.mark.parametrize("scheme", ["unix", "redis+unix", "valkey+unix", "redis+socket", "Redis+Unix"])
def test_a_server_s_socket_is_named_as_others_name_it(scheme: str) -> None:
    address = address_of(f"{scheme}://:pw@/run/redis.sock?db=2", "", Origin("shop", "")).redis

    assert address is not None
    assert (address.endpoints, address.shape) == ((Endpoint("/run/redis.sock"),), "single")
    assert (address.account.password, address.account.db) == ("pw", 2)
    assert redis_address(f"{scheme}:///run/redis@6379.sock").endpoints == (Endpoint("/run/redis@6379.sock"),)


@pytest.mark.parametrize(
    ("said", "verified"),
    [
        *(("required", True), ("CERT_REQUIRED", True), ("ssl.CERT_REQUIRED", True), ("Required", True)),
        *(("optional", True), ("CERT_OPTIONAL", True), ("none", False), ("CERT_NONE", False)),
    ],
)
def test_whether_certificates_are_verified_is_said_as_others_say_it(said: str, verified: bool) -> None:
    assert redis_address(f"rediss://host?ssl_cert_reqs={said}").account.verified is verified


def test_a_url_names_sentinels_or_nodes() -> None:
    sentinel = redis_address("redis+sentinel://:pw@a:1,b/main/2?sentinel_password=other")
    cluster = redis_address("valkeys+cluster://u:pw@a:7000,b:7001?partitions=8&prefix=shop")

    assert sentinel.endpoints == (Endpoint("a", 1), Endpoint("b", 26379))
    assert (sentinel.service, sentinel.account.db, sentinel.account.password) == ("main", 2, "pw")
    assert sentinel.sentinel_account.password == "other"
    assert not sentinel.sentinel_account.username
    assert cluster.endpoints == (Endpoint("a", 7000), Endpoint("b", 7001))
    assert (cluster.shape, cluster.partitions, cluster.prefix, cluster.account.secure) == ("cluster", 8, "shop", True)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h/0?sock=1", "unknown option 'sock'; there are client_name, db,"),
        ("redis://h/x", "'x' is no number"),
        ("redis://h:0/0", "'0' is no port"),
        ("redis://h:port/0", "'port' is no port"),
        ("redis://a,b/0", r"redis\+cluster"),
        ("redis://h/0/1", "number of a database"),
        ("redis+cluster://h/3", "one database"),
        ("redis+sentinel://h", "name the sentinels' service"),
        ("unix://run/redis.sock", "absolute path"),
        ("redis://h?protocol=4", "give 2 or 3"),
        ("redis://h?partitions=0", "whole number"),
        ("redis://h?socket_timeout=soon", "give seconds"),
        ("redis://h?ssl_ca_certs=/ca.pem", "rediss://"),
        ("rediss://h?ssl_ca_certs=/no/ca.pem", "/no/ca.pem"),
        ("rediss://h?ssl_keyfile=/k.pem", "ssl_certfile"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("redis+unix:///run/r.sock?ssl_cert_reqs=none", "no TLS over a socket"),
        ("rediss+unix:///run/r.sock", r"begins with none of .* redis\+unix://"),
        ("redis://h?sentinel_password=x", "sentinel"),
        ("redis://:a@s/b?hush&c='@h", "percent-encoded in a user name or password"),
        ("redis://h?durability=sometimes", "replicated"),
    ],
)
def test_a_url_that_makes_no_sense_is_explained_without_its_password(url: str, said: str) -> None:
    for hidden in (url, url.replace("://", "://me:hush@", 1), f"{url}{'&' if '?' in url else '?'}password=hush"):
        with pytest.raises(ConfigurationError, match=said) as error:
            redis_address(hidden)
        assert "hush" not in str(error.value)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_passwords_are_masked_in_every_form(scheme: str) -> None:
    shown = masked(f"{scheme}://us@er:p/a:s@s@a:1,b:2/x/0?sentinel_password=word&PASSWORD=hush&db=1")

    assert shown == f"{scheme}://us@er:***@a:1,b:2/x/0?sentinel_password=***&PASSWORD=***&db=1"
    assert masked(f"{scheme}://u:p?a@s#s@host:1/0?db=1") == f"{scheme}://u:***@host:1/0?db=1"
    assert "hush" not in repr(
        redis_address(
            f"{scheme}://u:hush@/x/0".replace(
                "@/x/0", "@host/x/0" if "sent" in scheme else "@/x" if scheme.endswith(("unix", "socket")) else "@host"
            )
        )
    )
    assert masked(f"{scheme}://u:p@a:s?hu&sh='@host:1/0?db=1") == f"{scheme}://***@host:1..."
    assert masked(f"{scheme}://host:1/0?client_name=a@b") == f"{scheme}://host:1/0?client_name=a@b"
    assert masked(f"{scheme}://host:1/0") == f"{scheme}://host:1/0"


def test_all_of_a_partition_lies_in_one_slot_whatever_the_prefix() -> None:
    for prefix in ("selaras", "a{b}c", "{", "}{", "100%", "é:*?[x]", ""):
        names = Names(prefix_of(prefix))
        for partition in range(20):
            for name in ("meta", "v:{x}y", "bell:7"):
                key = names.key(partition, name)
                tags = re.findall(r"\{([^}]+)\}", key)  # the first braces with something between: the hash tag
                assert tags[0] == names.tag(partition)
                assert slot_of(tags[0].encode()) == names.slot(partition)
    assert prefix_of("a{b") != prefix_of("a%7Bb")


def test_a_slot_is_what_the_cluster_says() -> None:
    assert slot_of(b"123456789") == 0x31C3
    assert slot_of(b"selaras.0") < 16_384


def test_a_redirection_names_a_server() -> None:
    asked = Endpoint("here", 1)

    assert redirection("MOVED 3999 there:7002", asked) == Endpoint("there", 7002)
    assert redirection("ASK 3999 ::1:7002", asked) == Endpoint("::1", 7002)
    assert redirection("MOVED 3999 :7002", asked) == Endpoint("here", 7002)
    assert redirection("MOVED 3999 [::1]:7002", asked) == Endpoint("::1", 7002)


@pytest.mark.parametrize("text", ["MOVED", "MOVED 3999", "MOVED 3999 there", "ASK 3999 there:", "MOVED x there:1"])
def test_a_redirection_that_names_no_server_is_an_outage_in_words(text: str) -> None:
    with pytest.raises(StoreUnavailable, match=f"here:7001 refers us to no server that could be asked: '{text}'"):
        redirection(text, Endpoint("here", 7001))


async def test_sentinels_tell_the_master_and_one_that_is_silent_is_passed_over() -> None:
    with Sentinels() as sentinels:
        address = redis_address(sentinels.url.replace("redis+sentinel://", "redis+sentinel://127.0.0.1:1,"))
        topology = topology_of(address, Names("selaras"), 1)
        assert topology.place(0) is None

        await topology.discover(ask_once)

        assert topology.place(0) == Endpoint("127.0.0.1", sentinels.master.port)
        assert not topology.doubted

        unknown = redis_address(sentinels.url.replace(f"/{Sentinels.NAME}/", "/another/"))
        with pytest.raises(StoreUnavailable, match=r"no sentinel tells the master of 'another'.*does not know it"):
            await topology_of(unknown, Names("selaras"), 1).discover(ask_once)


async def test_a_cluster_tells_who_holds_each_partition() -> None:
    with Cluster(masters=3, replicas=0) as cluster:
        names = Names("selaras")
        address = redis_address(cluster.url.replace("redis+cluster://", "redis+cluster://127.0.0.1:1,"))
        topology = topology_of(address, names, 16)

        await topology.discover(ask_once)

        for partition in range(16):
            slot = names.slot(partition)
            assert cluster.slot(names.key(partition, "meta")) == slot
            assert topology.place(partition) == Endpoint("127.0.0.1", cluster.owner(slot).port)


class Told:
    """Servers that answer as they are told, and who of them was asked."""

    def __init__(self, answers: dict[int, Any]) -> None:
        self.answers = answers
        self.asked: list[int] = []

    async def __call__(self, endpoint: Endpoint, account: Account, command: tuple[str, ...]) -> Any:
        self.asked.append(endpoint.port)
        if endpoint.port not in self.answers:
            raise StoreUnavailable(f"{endpoint} is silent")
        return self.answers[endpoint.port]


def at(port: int, host: str = "h") -> Endpoint:
    return Endpoint(host, port)


async def test_the_sentinel_that_knows_is_asked_first_the_next_time() -> None:
    topology = topology_of(redis_address("redis+sentinel://h:1,h:2,h:3/m/0"), Names("selaras"), 1)
    told = Told({2: None, 3: [b"h", b"9"]})
    doubts = [topology.doubted]

    await topology.discover(told)
    assert (topology.place(0), told.asked) == (at(9), [1, 2, 3])

    doubts.append(topology.doubted)
    for port in (8, 9):  # of one that is not the master there is nothing to find out
        topology.doubt(at(port))
        doubts.append(topology.doubted)
    assert doubts == [True, False, False, True]
    told.asked.clear()
    await topology.discover(told)
    assert told.asked == [3]

    del told.answers[3]
    with pytest.raises(StoreUnavailable, match="of 'm': h:3 is silent; h:1 is silent; h:2 does not know it"):
        await topology.discover(told)


async def test_a_node_of_a_cluster_that_is_doubted_is_asked_last_and_new_ones_are_asked_too() -> None:
    names = Names("selaras")
    slots = [names.slot(index) for index in range(3)]
    low, high, middle = sorted(slots)
    topology = topology_of(redis_address("redis+cluster://h:1,h:2"), names, 3)
    assert topology.doubted
    ranges = [
        [0, low, [b"", 11, b""], [b"h", 21, b""]],
        [low + 1, high, [b"h", 12, b""]],
        [middle, middle, [b"?", 13, b""]],
    ]
    told = Told({2: ranges})

    await topology.discover(told)
    places = dict(zip(slots, (topology.place(index) for index in range(3)), strict=True))
    assert (places, topology.doubted) == ({low: at(11), high: at(12), middle: at(13)}, False)
    assert told.asked == [1, 2]

    topology.doubt(at(11))
    assert topology.doubted
    topology.moved(0, at(14))
    topology.moved(0, at(14))
    assert [topology.place(index) == at(14) for index in range(3)] == [True, False, False]
    told.asked.clear()
    del told.answers[2]
    with pytest.raises(StoreUnavailable, match=r"no node of the cluster answers: h:21 is silent; .*; h:2 is silent"):
        await topology.discover(told)
    assert told.asked == [21, 12, 13, 11, 14, 1, 2]

    told.answers[21] = ranges
    await topology.discover(told)
    assert topology.place(0) == places[slots[0]]


async def test_who_cannot_be_reached_is_named_with_the_reason() -> None:
    address = redis_address("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable, match=r"127.0.0.1:1 cannot be reached: .*[Cc]onn"):
        await _ask(address)


async def _ask(address: Any) -> Any:
    return await ask_once(address.endpoints[0], address.account, ("PING",))


async def test_word_of_a_new_master_is_news_whoever_says_it_first() -> None:
    """A sentinel that has not heard of a failover yet says what it said before; nobody goes back for that."""
    a, b, c = (Endpoint("s", port) for port in (1, 2, 3))
    old, new = Endpoint("m", 1), Endpoint("m", 2)

    async def asked(*_: object) -> list[bytes]:
        return [b"m", b"1"]

    async def sentinels() -> Watched:
        made = topology_of(redis_address("redis+sentinel://s:1,s:2,s:3/main"), Names("p"), 1)
        assert isinstance(made, Watched)
        await made.discover(asked)
        return made

    there = await sentinels()
    assert not there.told({a: old, b: old, c: old})
    assert there.told({a: old, b: old, c: new})
    assert there.place(0) == new
    assert there.sentinels[0] == c
    assert not there.told({a: old, b: old, c: new})  # late
    assert not there.told({a: old, c: new})
    assert not there.told({a: new, b: old, c: new})
    assert not there.told({a: new, b: new, c: new})
    assert there.told({a: new, b: old, c: new})  # and back, by another failover
    assert there.place(0) == old

    there = await sentinels()  # begun while word goes round
    assert not there.told({})
    assert not there.told({a: old, b: new})
    assert there.place(0) == old
    assert there.told({a: new, b: new})
    assert there.place(0) == new
