"""RabbitMQ: a server of the tests' own ends, starves, changes its mind, and shows certificates."""

import contextlib
import time

import pytest

from seriatim.adapters.rabbitmq import producer as producing
from seriatim.contract.broker import numbered
from seriatim.core.broker import NoticeKind
from seriatim.core.brokers import open_broker
from seriatim.core.errors import BrokerError, ConfigurationError

from .certificates import Authority
from .rabbit import OwnRabbit
from .watching import consuming, first_batch, follow, scene_at, send_again, trouble_of, until

QUEUES = ("quorum", "classic")
EVERY_TYPE = (*QUEUES, "stream")


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A folder with an authority and the certificate of a server called localhost."""
    folder = tmp_path_factory.mktemp("certificates")
    Authority(folder).issue(folder / "server.pem", folder / "server.key", "localhost")
    return folder


@pytest.fixture(scope="module")
def own_server(tmp_path_factory, tls):
    server = OwnRabbit(tmp_path_factory.mktemp("rabbit"), tls)
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("way", ["restarted", "killed"])
def test_a_server_that_ends_loses_nothing(own_server, way):
    """Consumer and producer say so while it is away, and go on by themselves when it is back; all three types."""
    with contextlib.ExitStack() as stack:
        scenes = [stack.enter_context(scene_at(own_server.url, kind, "&confirm_timeout_s=3")) for kind in EVERY_TYPE]
        consumers = [stack.enter_context(consuming(scene)) for scene in scenes]
        for scene, consumer in zip(scenes, consumers, strict=True):
            scene.send(*numbered(1, 5))
            consumer.settle(first_batch(consumer, 1), 1)
        end(own_server, way)
        for scene, consumer in zip(scenes, consumers, strict=True):
            assert "away" in trouble_of(consumer)
            with pytest.raises(BrokerError):
                scene.send("m6")
        own_server.start()
        for scene, consumer in zip(scenes, consumers, strict=True):
            send_again(scene, "m7")
            taken, _ = follow(consumer, "m7")
            expected = [*numbered(1, 5), "m7"]
            taken = list(dict.fromkeys(name for name in taken if name != "m6"))  # m7 may have been sent again
            assert taken == expected[expected.index(taken[0]) :]
            assert expected.index(taken[0]) <= 1


def end(server, way):
    if way == "restarted":
        server.stop()
    else:
        time.sleep(12)  # 3.10 forgets who leads a queue that was just made: nothing to ask it tells when that is safe
        server.kill()


@pytest.mark.parametrize("queue_type", QUEUES)
def test_a_channel_that_the_server_closes_for_a_slow_handler_is_opened_again(own_server, queue_type):
    """FC-P5: consumer_timeout counts what is only prefetched too; LOST says so, and everything comes again in order."""
    own_server.ctl("eval", "application:set_env(rabbit, consumer_timeout, 1000).")
    own_server.ctl("eval", "application:set_env(rabbit, channel_tick_interval, 500).")
    try:
        with scene_at(own_server.url, queue_type) as scene:
            scene.send(*numbered(1, 5))
            with consuming(scene) as consumer:
                batch = first_batch(consumer, 1)
                until(lambda: batch.deliveries[0].handle[1].is_closed, "the end of the channel")
                own_server.ctl("eval", "application:unset_env(rabbit, consumer_timeout).")
                consumer.settle(batch, 1)
                taken, notices = follow(consumer, "m5")
                assert taken == numbered(1, 5)
                assert "timed out" in notices[0].detail
                assert {notice.kind for notice in notices} == {NoticeKind.LOST}
    finally:
        own_server.ctl("eval", "application:unset_env(rabbit, consumer_timeout).")
        own_server.ctl("eval", "application:set_env(rabbit, channel_tick_interval, 60000).")


@pytest.mark.parametrize("queue_type", ["classic", "stream"])
def test_a_server_that_blocks_publishers_is_named(own_server, monkeypatch, queue_type):
    """A memory alarm: no send hangs, the error says why, and consumers go on."""
    monkeypatch.setattr(producing, "_BLOCKED_S", 0.5)
    with scene_at(own_server.url, queue_type, "&confirm_timeout_s=3") as scene, consuming(scene) as consumer:
        scene.send("m1")
        own_server.ctl("set_vm_memory_high_watermark", "0.00001")
        try:
            began = time.monotonic()
            with pytest.raises(BrokerError):
                scene.send("m2")  # the server says that it blocks when something is sent
            with pytest.raises(BrokerError, match="blocks publishers"):
                scene.send("m3")
            assert time.monotonic() - began < 10
            assert follow(consumer, "m1")[0] == ["m1"]
        finally:
            own_server.ctl("set_vm_memory_high_watermark", "0.6")
        send_again(scene, "m4")
        assert follow(consumer, "m4")[0][-1] == "m4"


def test_credentials_that_are_refused_from_now_on_are_named_until_they_are_right_again(own_server):
    """The password is changed under a consumer: it says so at its next connection, and goes on when it is put right."""
    own_server.ctl("add_user", "shop", "s3cr3t")
    own_server.ctl("set_permissions", "shop", ".*", ".*", ".*")
    url = own_server.url.replace("guest:guest", "shop:s3cr3t")
    with scene_at(url, "classic") as scene, consuming(scene) as consumer:
        scene.send("m1")
        assert follow(consumer, "m1")[0] == ["m1"]
        own_server.ctl("change_password", "shop", "another")
        consumer._link.cut()  # noqa: SLF001 - as a network does
        until(lambda: "refused the credentials of user 'shop'" in trouble_of(consumer), "the refusal")
        own_server.ctl("change_password", "shop", "s3cr3t")
        send_again(scene, "m2")
        assert follow(consumer, "m2")[0] == ["m2"]


@pytest.mark.parametrize("queue_type", EVERY_TYPE)
def test_a_right_that_was_taken_away_is_named(own_server, queue_type):
    """The user may no longer read the queue: LOST says so, though nothing was in hand; given it back, it goes on."""
    own_server.ctl("add_user", "reader", "s3cr3t")
    own_server.ctl("set_permissions", "reader", ".*", ".*", ".*")
    url = own_server.url.replace("guest:guest", "reader:s3cr3t")
    try:
        with scene_at(url, queue_type) as scene, consuming(scene) as consumer:
            scene.send("m1")
            assert follow(consumer, "m1")[0] == ["m1"]
            own_server.ctl("set_permissions", "reader", ".*", ".*", "^$")
            consumer._link.cut()  # noqa: SLF001 - as a network does
            lost = until(lambda: [note for note in notices_of(consumer) if "set_permissions" in note.detail], "LOST")
            assert lost[0].kind is NoticeKind.LOST
            own_server.ctl("set_permissions", "reader", ".*", ".*", ".*")
            scene.send("m2")
            assert follow(consumer, "m2")[0] == ["m2"]
    finally:
        own_server.ctl("delete_user", "reader")


def notices_of(consumer):
    """A notice, if the next poll gives one."""
    with contextlib.suppress(BrokerError):
        found = consumer.poll(0.2, 1)
        return [found] if hasattr(found, "kind") else []
    return []


# TLS


def at(server, host, **options):
    query = "&".join(f"{name}={value}" for name, value in {"queue_type": "classic", **options}.items())
    return f"amqps://guest:guest@{host}:{server.tls_port}/%2F?{query}"


def test_a_certificate_of_the_right_host_by_a_trusted_authority_is_accepted(own_server, tls):
    """amqps:// with ca_file=; by both kinds of connection, producer and consumer."""
    authority = tls / "authority.pem"
    with contextlib.closing(open_broker(at(own_server, "localhost", ca_file=authority))) as broker:
        assert broker.partitions("nothing") == ()
    server, _, query = at(own_server, "localhost", ca_file=authority).partition("?queue_type=classic")
    with scene_at(server, "classic", query) as scene, consuming(scene) as consumer:
        scene.send("m1")
        assert follow(consumer, "m1")[0] == ["m1"]


def test_a_certificate_of_another_host_is_refused_unless_told_otherwise(own_server, tls):
    authority = tls / "authority.pem"
    refused(at(own_server, "127.0.0.1", ca_file=authority), "127.0.0.1.*verify_hostname=no")
    with contextlib.closing(
        open_broker(at(own_server, "127.0.0.1", ca_file=authority, verify_hostname="no"))
    ) as broker:
        assert broker.partitions("nothing") == ()


def test_a_certificate_of_an_authority_that_isn_t_trusted_is_refused(own_server):
    refused(at(own_server, "localhost"), "isn't trusted.*ca_file=")


def test_a_certificate_that_has_expired_is_refused(own_server, tls):
    authority = Authority(make_folder(tls, "another"))
    try:
        authority.issue(tls / "server.pem", tls / "server.key", "localhost", expired=True)
        own_server.ctl("eval", "ssl:clear_pem_cache().")
        refused(at(own_server, "localhost", ca_file=authority.certificate), "expired.*renew")
    finally:
        authority.issue(tls / "server.pem", tls / "server.key", "localhost")
        own_server.ctl("eval", "ssl:clear_pem_cache().")


def test_tls_to_a_port_that_doesn_t_speak_it_is_named(own_server, tls):
    url = own_server.url.replace("amqp:", "amqps:").replace("127.0.0.1", "localhost")
    with (
        contextlib.closing(open_broker(f"{url}?ca_file={tls / 'authority.pem'}")) as broker,
        pytest.raises(ConfigurationError, match="TLS"),
    ):
        broker.partitions("t")


def make_folder(beside, name):
    folder = beside / name
    folder.mkdir()
    return folder


def refused(url, told):
    """By what asks, and by what consumes."""
    with contextlib.closing(open_broker(url)) as broker:
        with pytest.raises(ConfigurationError, match=told):
            broker.partitions("t")
        with contextlib.closing(broker.consumer("t", "warehouse")) as consumer:
            consumer.start("0", None)
            assert "certificate" in trouble_of(consumer)
