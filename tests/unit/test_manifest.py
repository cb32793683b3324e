"""Manifests come back as they were written, appear whole or not at all, and say when they are damaged."""

import gzip
from pathlib import Path

import pytest

from seriatim.core.errors import ConfigurationError
from seriatim.core.manifest import Header, Sent, read_manifest, write_manifest

MESSAGES = [
    Sent("k:0", "k", "created", "3", 0, bytes(range(32))),
    Sent("ключ:1", "ключ", "paid", "broker-a:3", None, b"\xff" * 32, copies=2, early=True),
]
HEADER = Header("orders", ("3", "broker-a:3"), messages=2, sent=3, early=1, arguments={"seed": 7})


def written(path, header=HEADER, messages=MESSAGES):
    with write_manifest(path, header) as add:
        for message in messages:
            add(message)
    return path


@pytest.mark.parametrize("name", ["manifest.jsonl", "manifest.jsonl.gz"])
def test_a_manifest_comes_back_as_it_was_written(tmp_path, name):
    header, messages = read_manifest(written(tmp_path / name))

    assert header == HEADER
    assert list(messages) == MESSAGES
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_same_messages_give_the_same_bytes(tmp_path):
    one, other = written(tmp_path / "one.gz"), written(tmp_path / "other.gz")

    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("name", ["manifest.jsonl", "manifest.jsonl.gz"])
def test_when_sending_fails_the_old_manifest_stays_and_no_half_of_a_new_one(tmp_path, name):
    path = written(tmp_path / name)
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        written(path, messages=(message if message.seq == 0 else 1 / 0 for message in MESSAGES))

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_said(tmp_path):
    with pytest.raises(ConfigurationError, match="can't be written: No such file"):
        written(tmp_path / "nowhere" / "manifest.jsonl")


@pytest.mark.parametrize("name", ["manifest.jsonl", "manifest.jsonl.gz"])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, name, monkeypatch):
    monkeypatch.setattr(Path, "with_name", lambda self, name: tmp_path / "full")
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(ConfigurationError, match="No space left"):
        written(tmp_path / name, messages=MESSAGES * 5000)

    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_sender_is_never_taken_for_one_of_the_file(tmp_path):
    with pytest.raises(ConnectionError), write_manifest(tmp_path / "manifest.jsonl", HEADER):
        raise ConnectionError("the broker's socket")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda lines: lines[:-1], "says 2 messages and it has 1"),
        (lambda lines: [*lines, lines[-1]], "says 2 messages and it has 3"),
        (lambda lines: [lines[0], lines[1][:-9], lines[2]], "line 2"),
        (lambda lines: [lines[0], b'["k"]\n', lines[2]], "line 2: it isn't a message"),
        (lambda lines: [b'{"seriatim-manifest":1}\n', *lines[1:]], "header is damaged"),
        (lambda lines: lines[1:], "isn't a manifest of this version"),
        (lambda lines: [], "isn't a manifest of this version"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, damage, says):
    path = written(tmp_path / "manifest.jsonl")
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))

    with pytest.raises(ConfigurationError, match=says):
        list(read_manifest(path)[1])


def test_a_gzip_cut_short_is_refused(tmp_path):
    path = written(tmp_path / "manifest.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-12])

    with pytest.raises(ConfigurationError, match="cut or damaged"):
        list(read_manifest(path)[1])


def test_what_is_no_gzip_or_not_there_is_refused(tmp_path):
    (tmp_path / "plain.gz").write_bytes(b"{}")
    with pytest.raises(ConfigurationError, match="cut or damaged"):
        read_manifest(tmp_path / "plain.gz")
    with pytest.raises(ConfigurationError, match="can't be read: No such file"):
        read_manifest(tmp_path / "nowhere.jsonl")


def test_a_manifest_is_read_as_it_is_asked_for(tmp_path):
    path = tmp_path / "manifest.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(
            b'{"seriatim-manifest":1,"topic":"t","partitions":[],"messages":1,"sent":1,"early":0,"arguments":{}}\n'
        )
        file.write(b"no message\n")

    header, messages = read_manifest(path)
    assert header.topic == "t"
    with pytest.raises(ConfigurationError, match="line 2"):
        next(messages)
