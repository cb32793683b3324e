"""`seriatim replay`: send a log, in its order or disturbed on purpose, and write down what was sent."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from seriatim.cli.console import err, guarded, out
from seriatim.cli.replaying.mapping import Columns, Mapper
from seriatim.cli.replaying.mixing import Mixer, Outgoing
from seriatim.cli.replaying.rows import Line, at_line, read_rows
from seriatim.cli.replaying.survey import Plan, choose, survey
from seriatim.core.broker import Broker
from seriatim.core.brokers import open_broker, redact
from seriatim.core.digest import digest
from seriatim.core.errors import BrokerError, ConfigurationError, InvalidMessage, SendFailed
from seriatim.core.manifest import Header, Sent, write_manifest
from seriatim.core.message import Message
from seriatim.core.producing import OrderedProducer
from seriatim.core.routing import numbered
from seriatim.core.settings import load_settings
from seriatim.core.topic import Topic

BATCH = 500  #: messages that are sent and confirmed together
MAX_PARTITIONS = 100_000
Advance = Callable[[int], None]


@guarded
def replay(
    file: Annotated[Path, typer.Argument(help="The log: .csv, .jsonl or .ndjson, or one of them with .gz after it.")],
    topic: Annotated[str, typer.Option(help="The topic to send to.")],
    key: Annotated[str, typer.Option(metavar="COL", help="Column of the sharding key.")],
    type_: Annotated[str, typer.Option("--type", metavar="COL", help="Column of the message type.")],
    partitions: Annotated[
        int | None, typer.Option(min=1, max=MAX_PARTITIONS, help="The topic's partitions; needed for a new topic.")
    ] = None,
    time_: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="COL",
            help="Column that becomes the produced time: ISO 8601 with an offset, or seconds since the epoch. Without "
            "it a message is produced when it is sent, and the audit's produced-to-committed times say something.",
        ),
    ] = None,
    seq: Annotated[
        str | None, typer.Option(metavar="COL", help="Column of the producer's rising number within the key.")
    ] = None,
    biz_key: Annotated[
        str | None,
        typer.Option(metavar="TEMPLATE", help="Such as '{case}:{seq}', of columns. Without it: the key and the seq."),
    ] = None,
    duplicates: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of the messages that are sent twice: half of the copies within 100 messages, half after 10,000 "
            "(or at the end).",
        ),
    ] = 0.0,
    early: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Share of the messages that overtake their predecessor.")
    ] = 0.0,
    rate: Annotated[float | None, typer.Option(min=0.01, help="Messages a second, at most.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Take only so many rows.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed disturbs the same messages.")] = 0,
    manifest: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write down what was sent (.gz: packed), for the audit.")
    ] = None,
    broker: Annotated[str | None, typer.Option(help="Broker URL.")] = None,
) -> None:
    """Send a CSV or JSON-lines log: each row is a message, its body the row as JSON.

    The whole log is read and checked first, so that a broken line means that nothing was sent.
    """
    url = load_settings(broker=broker).broker
    opened = open_broker(url)
    try:
        target = Topic(topic, _partitions(opened, url, topic, partitions))
        job = _Job(
            file, limit, Mapper(target, Columns.of(key, type_, time_, seq, biz_key)), seed, duplicates, early, rate
        )
        job.check_folder(manifest)
        job.run(opened, manifest)
    finally:
        opened.close()


def _partitions(broker: Broker, url: str, topic: str, wanted: int | None) -> tuple[str, ...]:
    """The topic's partitions, which are those it has at the broker, if it has any."""
    there = broker.partitions(topic)
    if wanted is None:
        if not there:
            raise ConfigurationError(f"topic {topic!r} isn't at broker {redact(url)} yet: say --partitions")
        return there
    ids = numbered(wanted)
    if there and set(there) != set(ids):
        raise ConfigurationError(
            f"topic {topic!r} has {len(there)} partitions at broker {redact(url)}, and --partitions says {wanted}: "
            "keys would move between partitions and overtake themselves; leave it out, or send to another topic"
        )
    return ids


@dataclass(slots=True)
class _Job:
    """One run of the command."""

    file: Path
    limit: int | None
    mapper: Mapper
    seed: int
    duplicates: float
    early: float
    rate: float | None

    def check_folder(self, manifest: Path | None) -> None:
        """Say now, not after all was sent, that a manifest has nowhere to go."""
        if manifest is not None and not manifest.parent.is_dir():
            raise ConfigurationError(f"manifest {manifest}: the folder {manifest.parent} doesn't exist; make it first")

    def run(self, broker: Broker, manifest: Path | None) -> None:
        """Look through the log, then send it."""
        with _progress() as progress:
            plan = self._plan(progress)
            topic = self.mapper.topic
            broker.declare(topic.name, topic.partitions)
            producer = OrderedProducer(broker, {topic.name: topic})
            started = time.monotonic()
            try:
                task = progress.add_task("sending", total=plan.sent)
                with self._manifest(manifest, plan) as note:
                    self._send(producer, plan, note, lambda count: progress.advance(task, count))
            finally:
                producer.close()
        _report(plan, topic.name, time.monotonic() - started, manifest)

    def _plan(self, progress: Progress) -> Plan:
        task = progress.add_task("checking", total=self.limit)
        lines = progress.track(read_rows(self.file, self.limit), task_id=task)
        found = survey(self.file, lines, self.mapper)
        progress.remove_task(task)
        return choose(found, self.duplicates, self.early, random.Random(f"{self.seed}/plan"))

    def _manifest(self, path: Path | None, plan: Plan) -> AbstractContextManager[Callable[[Sent], None]]:
        if path is None:
            return nullcontext(lambda _: None)
        topic = self.mapper.topic
        return write_manifest(
            path, Header(topic.name, topic.partitions, plan.messages, plan.sent, len(plan.overtaken), self._arguments())
        )

    def _arguments(self) -> dict[str, Any]:
        columns = self.mapper.columns
        return {
            "file": str(self.file),
            "key": columns.key,
            "type": columns.type,
            "time": columns.time,
            "seq": columns.seq,
            "biz_key": columns.biz_key,
            "duplicates": self.duplicates,
            "early": self.early,
            "rate": self.rate,
            "limit": self.limit,
            "seed": self.seed,
        }

    def _send(self, producer: OrderedProducer, plan: Plan, note: Callable[[Sent], None], advance: Advance) -> None:
        stream = Mixer(plan, random.Random(f"{self.seed}/mix")).mix(self._messages())
        pace = _Pace(self.rate)
        sent = 0
        while batch := list(islice(stream, pace.batch)):
            pace.wait(sent)
            try:
                producer.send(*(outgoing.message for outgoing in batch))
            except BrokerError as error:
                raise _stopped(error, sent, plan) from error
            for outgoing in batch:
                if not outgoing.copy:
                    note(self._noted(outgoing, plan))
            sent += len(batch)
            advance(len(batch))

    def _messages(self) -> Iterator[Message]:
        for line in read_rows(self.file, self.limit):
            yield self._message(line)

    def _message(self, line: Line) -> Message:
        try:
            return self.mapper.message(line.row)
        except InvalidMessage as error:  # it was a message when the log was looked through
            raise at_line(self.file, line.number, f"{error}; the log has changed while it was being sent") from error

    def _noted(self, outgoing: Outgoing, plan: Plan) -> Sent:
        message, topic = outgoing.message, self.mapper.topic
        return Sent(
            biz_key=message.biz_key,
            sharding_key=message.sharding_key,
            type=message.type,
            partition=topic.routing.route(message.sharding_key, topic.partitions),
            seq=message.seq,
            digest=digest(message.body),
            copies=plan.copies(outgoing.index),
            early=outgoing.early,
        )


class _Pace:
    """Keeps to a rate: batches of a tenth of a second, each begun when it is due."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self.batch = BATCH if rate is None else max(1, min(BATCH, int(rate / 10)))

    def wait(self, sent: int) -> None:
        """Wait until the message after `sent` is due."""
        if self._rate is not None:
            time.sleep(max(0.0, self._started + sent / self._rate - time.monotonic()))


def _stopped(error: BrokerError, sent: int, plan: Plan) -> BrokerError:
    unclear = f", {len(error.unconfirmed)} more may have arrived" if isinstance(error, SendFailed) else ""
    return BrokerError(
        f"{error} ({sent} of {plan.sent} messages are confirmed{unclear}; run the same command again: the biz_keys "
        "make what was sent before harmless copies)"
    )


@contextmanager
def _progress() -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as progress:
        yield progress


def _report(plan: Plan, topic: str, seconds: float, manifest: Path | None) -> None:
    rate = plan.sent / max(seconds, 1e-6)
    where = "" if manifest is None else f"; manifest: {manifest}"
    out.print(
        f"sent {plan.sent} messages to topic {topic} in {seconds:.1f} s ({rate:,.0f}/s): {plan.messages} distinct, "
        f"{plan.sent - plan.messages} sent again, {len(plan.overtaken)} early{where}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
