"""The embedded broker: the contract, then what is its own."""

import contextlib
import os
import sqlite3
from dataclasses import replace

import pytest

from seriatim.adapters.embedded import EmbeddedBroker
from seriatim.adapters.embedded.retention import trim
from seriatim.adapters.embedded.settings import Retention, read_url
from seriatim.contract.broker import LogContract, Scene, names, numbered
from seriatim.core.broker import NoticeKind
from seriatim.core.brokers import open_broker
from seriatim.core.errors import BrokerError, ConfigurationError, SendFailed
from seriatim.core.filelock import FileLock
from seriatim.core.message import Message, Position


class TestEmbeddedBroker(LogContract):
    idle_wakeup_s = 0.02

    @pytest.fixture
    def broker_url(self, tmp_path):
        self.url = f"embedded://{tmp_path}/log.db"
        return self.url

    def recreate(self, scene):
        scene.broker.delete(scene.topic)
        scene.broker.declare(scene.topic, scene.partitions)

    def trim(self, scene, partition, keep):
        open_broker(f"{self.url}?retention_messages={keep}").trim()


@pytest.fixture
def place(tmp_path):
    """Where the log's file is."""
    return tmp_path / "log.db"


@pytest.fixture
def scene(place):
    """A topic on a log, with partitions 0 and 1."""
    with contextlib.closing(Scene(EmbeddedBroker(f"embedded://{place}"), ("0", "1"), patience_s=10)) as scene:
        yield scene


# The URL


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("embedded:///var/log.db", "/var/log.db"),
        ("embedded:/var/log.db", "/var/log.db"),
        ("embedded:///a%20b%3F%23.db", "/a b?#.db"),
        ("embedded:log.db", "{cwd}/log.db"),
        ("embedded:./data/log.db", "{cwd}/data/log.db"),
        ("embedded://./log.db", "{cwd}/log.db"),
    ],
)
def test_a_url_names_a_file(url, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(read_url(url).path) == path.format(cwd=tmp_path)


def test_links_to_one_file_are_one_log(place, tmp_path):
    """Else its users would take two locks."""
    (tmp_path / "link.db").symlink_to(place)
    assert read_url(f"embedded://{tmp_path}/link.db").path == place


def test_options_are_read():
    settings = read_url("embedded:log.db?retention_s=1.5&retention_messages=7&synchronous=normal")
    assert settings.retention == Retention(seconds=1.5, messages=7)
    assert settings.synchronous == "NORMAL"
    assert read_url("embedded:log.db").synchronous == "FULL"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("embedded:log.db?retenton_s=1", "unknown option 'retenton_s'; there are retention_messages"),
        ("embedded:log.db?retention_s=0", "'retention_s' can't be '0'"),
        ("embedded:log.db?retention_s=nan", "'retention_s' can't be 'nan'"),
        ("embedded:log.db?retention_messages=many", "'retention_messages' can't be 'many'"),
        ("embedded:log.db?synchronous=off", "give full or normal"),
        ("embedded:log.db?retention_s=1&retention_s=2", "given twice"),
        ("embedded://data/log.db", "'data' reads as another"),
        ("embedded://", "names no file"),
        ("embedded:///", "names no file"),
        ("embedded:///data/", "names no file"),
        ("embedded:a#b.db", "%23"),
    ],
)
def test_a_wrong_url_says_what_is_wrong(url, said):
    with pytest.raises(ConfigurationError) as caught:
        open_broker(url)
    assert said in str(caught.value)


# The file


def test_a_missing_folder_is_named(tmp_path):
    broker = EmbeddedBroker(f"embedded://{tmp_path}/no/log.db")
    with pytest.raises(ConfigurationError, match="no of the embedded log doesn't exist: make it"):
        broker.declare("orders", ["0"])


def test_a_missing_file_is_no_log_and_is_not_made_by_asking(place):
    broker = EmbeddedBroker(f"embedded://{place}")
    assert broker.partitions("orders") == ()
    with contextlib.closing(broker.producer()) as producer, pytest.raises(BrokerError, match="declare a topic first"):
        producer.send([("0", Message("orders", "k", "b", "t", b""))])
    with contextlib.closing(broker.consumer("orders", "g")) as consumer:
        consumer.start("0", None)
        with pytest.raises(BrokerError, match="declare a topic first"):
            consumer.poll(1, 1)
    assert not place.exists()


def test_a_file_that_is_no_database_is_left_alone(place):
    place.write_bytes(b"my thesis" * 1000)
    with pytest.raises(ConfigurationError, match="no SQLite file"):
        EmbeddedBroker(f"embedded://{place}").declare("orders", ["0"])
    assert place.read_bytes() == b"my thesis" * 1000


def test_a_database_of_another_program_is_left_alone(place):
    with contextlib.closing(sqlite3.connect(place)) as other:
        other.execute("CREATE TABLE topic (name)")
    with pytest.raises(ConfigurationError, match="a file of its own"):
        EmbeddedBroker(f"embedded://{place}").declare("orders", ["0"])


def test_a_log_of_a_later_version_is_refused(scene, place):
    with contextlib.closing(sqlite3.connect(place)) as other:
        other.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigurationError, match="version 99"):
        scene.broker.partitions(scene.topic)


def test_a_damaged_file_is_said_to_be(scene, place):
    scene.send(*numbered(1, 200))
    scene.producer.close()
    with place.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (place.stat().st_size - 4096))
    with pytest.raises((BrokerError, ConfigurationError), match="damaged"):
        scene.broker.partitions(scene.topic)


def test_a_hole_in_the_log_is_damage(scene, place):
    """Offsets have no gaps; handing out what follows would lose messages silently."""
    scene.send(*numbered(1, 5))
    with contextlib.closing(sqlite3.connect(place)) as other:
        other.execute("DELETE FROM message WHERE id = (SELECT id FROM message ORDER BY id LIMIT 1 OFFSET 2)")
        other.commit()
    reader = scene.reader("0")
    assert names(reader.take(2)) == ["m1", "m2"]
    with pytest.raises(BrokerError, match="lost message 2"):
        reader.take(1)


def test_a_write_lock_that_is_not_let_go_is_named(scene, place, monkeypatch):
    monkeypatch.setattr("seriatim.adapters.embedded.log._LOCK_TIMEOUT_S", 0.05)
    with contextlib.closing(FileLock(f"{place}.lock")) as lock, lock:
        with pytest.raises(BrokerError, match=f"held by process {os.getpid()}"):
            scene.send("m1")
        assert scene.broker.partitions(scene.topic) == ("0", "1"), "readers take no lock"
    scene.send("m2")
    assert names(scene.reader("0").take(1)) == ["m2"]


def test_another_program_in_the_file_is_said_to_lock_it(scene, place, monkeypatch):
    monkeypatch.setattr("seriatim.adapters.embedded.log._BUSY_TIMEOUT_S", 0.05)
    with contextlib.closing(sqlite3.connect(place, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(BrokerError, match="another program holds it"):
            scene.send("m1")
    scene.send("m2")
    assert names(scene.reader("0").take(1)) == ["m2"]


def test_a_full_disk_sends_nothing_and_is_said_to_be(scene, monkeypatch):
    def full(*_arguments):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("seriatim.adapters.embedded.tables.append", full)
        with pytest.raises(BrokerError, match="make room") as caught:
            scene.send("m1")
    assert not isinstance(caught.value, SendFailed)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    scene.send("m2")
    assert names(scene.reader("0").take(1)) == ["m2"]


def test_a_commit_without_an_answer_leaves_the_messages_in_doubt(scene, monkeypatch):
    """SendFailed carries them, in order; the next send works."""

    class NoAnswer(sqlite3.Connection):
        def execute(self, sql, *arguments):
            if sql == "COMMIT":
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *arguments)

    with monkeypatch.context() as patched:
        connect = sqlite3.connect
        patched.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=NoAnswer, **k))
        with pytest.raises(SendFailed) as caught:
            scene.send("m1", "m2")
    assert [message.biz_key for message in caught.value.unconfirmed] == ["m1", "m2"]
    scene.send("m3")
    assert names(scene.reader("0").take(1)) == ["m3"]


def test_a_file_that_is_deleted_is_noticed_by_all(scene, place):
    """Nothing is sent into a file that nobody will ever find."""
    scene.send("m1")
    reader = scene.reader("0")
    reader.take(1)
    for file in place.parent.glob("log.db*"):
        file.unlink()
    with pytest.raises(BrokerError, match="no embedded log"):
        scene.send("m2")
    with pytest.raises(BrokerError, match="no embedded log"):
        reader.poll(10, 1)
    scene.broker.declare(scene.topic, ["0"])
    scene.send("m3")
    assert reader.notice(NoticeKind.REWOUND)
    assert names(reader.take(1)) == ["m3"]


@pytest.mark.parametrize("again", [0, 3], ids=["shorter", "with other messages"])
def test_a_file_restored_from_a_backup_is_noticed(scene, place, again):
    """The same log, but not the message that was handled last: rewound to the earliest kept."""
    scene.send("m1", "m2")
    with (
        contextlib.closing(sqlite3.connect(place)) as source,
        contextlib.closing(sqlite3.connect(f"{place}.old")) as backup,
    ):
        source.backup(backup)
    scene.send("m3")
    reader = scene.reader("0")
    reader.take(3)
    reader.notice(NoticeKind.READ_THROUGH)
    place.with_name("log.db.old").replace(place)
    for leftover in ("log.db-wal", "log.db-shm"):
        place.with_name(leftover).unlink()
    if again:
        scene.send(*[f"n{number}" for number in range(again)])
    assert "cut" in reader.notice(NoticeKind.REWOUND).detail
    assert names(reader.take(2)) == ["m1", "m2"]


def test_a_position_of_another_broker_is_noticed(scene):
    scene.send("m1")
    reader = scene.reader("0", after=Position("0/16B3748", "rabbit"))
    assert "none of an embedded log" in reader.notice(NoticeKind.REWOUND).detail
    assert names(reader.take(1)) == ["m1"]


def test_the_same_message_in_its_place_is_what_a_position_asks_for(scene, place):
    """The digest is of the very message: another body under the same offset is another log."""
    scene.send(*numbered(1, 3))
    taken = scene.reader("0").take(2)
    with contextlib.closing(sqlite3.connect(place)) as other:
        other.execute("UPDATE message SET body = x'00' WHERE id % 4294967296 = 1")
        other.commit()
    assert scene.reader("0", after=taken[1].position).notice(NoticeKind.REWOUND)
    assert names(scene.reader("0", after=taken[0].position).take(2)) == ["m2", "m3"]


def test_another_log_is_noticed_though_the_position_is_trimmed_away_in_it(scene, place):
    """There is no message left to compare; the identity of the log tells."""
    scene.send(*numbered(1, 5))
    taken = scene.reader("0").take(5)
    scene.broker.delete(scene.topic)
    scene.broker.declare(scene.topic, ["0"])
    scene.send(*numbered(1, 9))
    EmbeddedBroker(f"embedded://{place}?retention_messages=4").trim()
    assert scene.reader("0", after=taken[4].position).notice(NoticeKind.REWOUND)


def test_more_partitions_leave_the_log_what_it_is(scene):
    scene.send("m1", "m2")
    (first, _) = scene.reader("0").take(2)
    scene.broker.declare(scene.topic, ["0", "1", "2"])
    assert scene.broker.partitions(scene.topic) == ("0", "1", "2")
    assert names(scene.reader("0", after=first.position).take(1)) == ["m2"]


def test_a_partition_that_is_not_declared_is_lost_and_the_others_go_on(scene):
    scene.send("m1")
    reader = scene.reader("7", "0")
    assert "has no partition '7'" in reader.notice(NoticeKind.LOST).detail
    assert names(reader.take(1)) == ["m1"]


def test_a_deleted_topic_is_lost(scene):
    reader = scene.reader("0")
    reader.notice(NoticeKind.READ_THROUGH)
    scene.broker.delete(scene.topic)
    assert reader.notice(NoticeKind.LOST).partition == "0"
    assert scene.broker.partitions(scene.topic) == ()


def test_large_bodies_come_in_batches_that_fit_in_memory(scene):
    body = bytes(6 << 20)
    scene.producer.send([("0", replace(scene.message(name), body=body)) for name in numbered(1, 5)])
    reader = scene.reader("0")
    assert len(reader.batch(limit=100).deliveries) == 3
    reader.settle()
    assert names(reader.take(2)) == ["m4", "m5"]


# Retention


def test_a_producer_trims_by_count_a_slice_at_a_time(place):
    """The newest are kept, at least as many as were asked for; each partition for itself."""
    broker = EmbeddedBroker(f"embedded://{place}?retention_messages=100")
    with contextlib.closing(Scene(broker, ("0", "1"), 10)) as scene:
        scene.send("quiet", partition="1")
        for first in range(1, 5001, 500):
            scene.send(*numbered(first, first + 499))
            with contextlib.closing(sqlite3.connect(place)) as other:
                assert other.execute("SELECT count(*) FROM message").fetchone()[0] >= 101
        broker.trim()
        reader = scene.reader()
        assert sorted(names(reader.take(101))) == sorted([*numbered(4901, 5000), "quiet"])
        assert broker.trim() == 0


def test_a_slice_removes_no_more_than_its_limit(scene, place):
    scene.send(*numbered(1, 50))
    scene.send(*numbered(1, 50), partition="1")
    with contextlib.closing(sqlite3.connect(place)) as connection:
        keep_ten = Retention(messages=10)
        removed = [trim(connection, keep_ten, now=0, limit=30) for _ in range(4)]
    assert removed == [30, 30, 20, 0]


def test_trimming_by_age_removes_what_is_old_and_no_more(scene, place):
    scene.send(*numbered(1, 4))
    with contextlib.closing(sqlite3.connect(place)) as connection:
        connection.execute("UPDATE message SET appended_at = 1000.0 + id % 4294967296")
        assert trim(connection, Retention(seconds=60), now=1062.0, limit=100) == 2
        connection.commit()
    assert names(scene.reader("0").take(2)) == ["m3", "m4"]


def test_without_retention_nothing_is_removed(scene):
    scene.send(*numbered(1, 10))
    assert scene.broker.trim() == 0
    assert names(scene.reader("0").take(10)) == numbered(1, 10)


def test_the_space_of_trimmed_messages_is_used_again(place):
    broker = EmbeddedBroker(f"embedded://{place}?retention_messages=100&synchronous=normal")
    with contextlib.closing(Scene(broker, ("0",), 10)) as scene:
        for _ in range(40):
            scene.send(*numbered(1, 500))
            broker.trim()
        with contextlib.closing(sqlite3.connect(place)) as other:
            pages = other.execute("PRAGMA page_count").fetchone()[0]
            size = other.execute("PRAGMA page_size").fetchone()[0]
        assert pages * size < 1 << 20, "20,000 messages would need 7 MiB"


def test_a_consumer_that_is_trimmed_while_it_reads_says_so(scene, place):
    scene.send(*numbered(1, 10))
    reader = scene.reader("0")
    reader.take(2)
    EmbeddedBroker(f"embedded://{place}?retention_messages=3").trim()
    assert "2 to 6" in reader.notice(NoticeKind.TRIMMED).detail
    reader.quiet()


# Processes


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_the_file_that_was_open(scene):
    """SQLite's locks are wrong in such a child; the parent goes on."""
    scene.send("m1")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            scene.send("m2")
        except BrokerError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        assert b"was open when this process was forked" in said.read()
    scene.send("m3")
    assert names(scene.reader("0").take(2)) == ["m1", "m3"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_was_forked_before_the_file_was_open_is_welcome(scene):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            scene.send("m1")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert names(scene.reader("0").take(1)) == ["m1"]


def test_a_consumer_or_producer_that_was_closed_says_so(scene):
    producer, consumer = scene.broker.producer(), scene.broker.consumer(scene.topic, "g")
    producer.close()
    consumer.close()
    consumer.start("0", None)
    with pytest.raises(BrokerError, match="was closed"):
        producer.send([("0", scene.message("m1"))])
    with pytest.raises(BrokerError, match="was closed"):
        consumer.poll(0, 1)
