"""What the rows prove. Pure code over values: it is shown every record, key by key, then asked for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from seriatim.core.audit.evidence import Entry, ParkedRow, PartitionRow
from seriatim.core.audit.report import Report, Violation
from seriatim.core.decision import SET_ASIDE, Outcome, Reason, Status
from seriatim.core.manifest import Sent

_APPLIED, _ALREADY, _STALE = Outcome.APPLIED.value, Outcome.ALREADY.value, Outcome.STALE.value
_REJECTED, _EARLY, _PARKED = Outcome.REJECTED.value, Outcome.EARLY.value, Outcome.PARKED.value


@dataclass(frozen=True, slots=True)
class Known:
    """What is known besides the records.

    `sent` are the manifest's messages by biz_key, in the order of first sending; None without a manifest. `ignored` are
    the message types that the topic ignores. `acted_on` are the biz_keys that an operator did something about.
    """

    parked: Sequence[ParkedRow]
    partitions: Mapping[str, PartitionRow]
    acted_on: frozenset[str] = frozenset()
    sent: Mapping[str, Sent] | None = None
    ignored: frozenset[str] = frozenset()


@dataclass(slots=True)
class Judge:
    """Judges one group's records of one topic.

    The order that must come out is that of first sending where a manifest tells it, else that of the producer's `seq`.
    Messages that were early, were set aside, or that an operator acted on are exceptions, as the records say.
    """

    report: Report
    known: Known
    _orders: dict[str, int] = field(default_factory=dict)  # biz_key: its place in the order of sending
    _found: bytearray = field(default_factory=bytearray)  # by that place
    _waiting: dict[str, ParkedRow] = field(default_factory=dict)
    _dead: set[str] = field(default_factory=set)
    _queues: dict[str, list[ParkedRow]] = field(default_factory=dict)
    _recorded: set[str] = field(default_factory=set)  # biz_keys of parked rows that have a record
    _reached: dict[str, tuple[int, str]] = field(default_factory=dict)  # key: the last in order that was applied
    _read: dict[str, int] = field(default_factory=dict)  # partition: the last in order that was handled

    def __post_init__(self) -> None:
        self._orders = {biz_key: place for place, biz_key in enumerate(self.known.sent or ())}
        self._found = bytearray(len(self._orders))
        for row in self.known.parked:
            self._take(row)

    def _take(self, row: ParkedRow) -> None:
        report, biz_key = self.report, row.biz_key
        report.dead += row.dead
        report.conflicts += row.reason == Reason.CONFLICT.value
        report.unreadable += not row.waits and row.reason == Reason.MALFORMED.value
        report.parked += row.blocks and not row.dead
        report.aside += row.waits and not row.blocks
        if row.blocks and row.sharding_key is not None:
            self._queues.setdefault(row.sharding_key, []).append(row)
        if biz_key is not None and row.waits:
            self._waiting[biz_key] = row
        if biz_key is not None and row.dead:
            self._dead.add(biz_key)
        if biz_key is not None and (row.waits or row.dead):
            self._mark_found(biz_key, row.partition)

    # -- key by key

    def key(self, sharding_key: str | None, entries: Sequence[Entry]) -> None:
        """Judge the records of one sharding key, in the order of their effects."""
        for entry in entries:
            self._entry(entry)
        if sharding_key is None:
            return
        places = sorted({entry.partition for entry in entries})
        if len(places) > 1:
            self.report.findings.add(Violation.MISPLACED, key=sharding_key, partitions=places)
        applied = [entry for entry in entries if entry.outcome == _APPLIED]
        self._doubles(sharding_key, applied)
        self._order(sharding_key, applied)
        self._passed(sharding_key, {entry.biz_key for entry in entries if self._is_exception(entry)})

    def _doubles(self, sharding_key: str, applied: Iterable[Entry]) -> None:
        """Two effects of one message: its number within the key was applied under two biz_keys."""
        applied = list(applied)
        times = Counter(entry.seq for entry in applied if entry.seq is not None)
        if len(times) == sum(times.values()):
            return
        for seq in sorted(seq for seq, count in times.items() if count > 1):
            biz_keys = [entry.biz_key for entry in applied if entry.seq == seq]
            self.report.findings.add(Violation.DOUBLE, key=sharding_key, seq=seq, biz_keys=biz_keys)

    def _order(self, sharding_key: str, applied: Iterable[Entry]) -> None:
        last: tuple[int, str] | None = None
        for entry in applied:
            place = self._place(entry.biz_key, entry.seq)
            if place is None or self._is_exception(entry):
                continue
            if last is not None and place < last[0]:
                self.report.findings.add(
                    Violation.ORDER, key=sharding_key, biz_key=entry.biz_key, seq=entry.seq, applied_after=last[1]
                )
            elif last is None or place > last[0]:
                last = (place, entry.biz_key)
        if last is not None:
            self._reached[sharding_key] = last

    def _passed(self, sharding_key: str, exceptions: set[str]) -> None:
        """Messages that wait in the queue of their key while a later one has been applied."""
        last = self._reached.get(sharding_key)
        for row in self._queues.get(sharding_key, ()) if last is not None else ():
            place = self._place(row.biz_key, row.seq)
            if place is None or row.biz_key in exceptions or row.biz_key in self.known.acted_on:
                continue
            if last is not None and place < last[0]:
                self.report.findings.add(
                    Violation.ORDER, key=sharding_key, biz_key=row.biz_key, seq=row.seq, waits_behind=last[1]
                )

    def _place(self, biz_key: str | None, seq: int | None) -> int | None:
        """Where a message stands in the order that must come out; None where nothing tells."""
        if self.known.sent is None:
            return seq
        return None if biz_key is None else self._orders.get(biz_key)

    def _is_exception(self, entry: Entry) -> bool:
        return entry.first_outcome in {_EARLY, SET_ASIDE} or entry.biz_key in self.known.acted_on

    # -- one record

    def _entry(self, entry: Entry) -> None:
        report = self.report
        report.messages += 1
        report.early += entry.first_outcome == _EARLY
        if entry.biz_key in self._waiting or entry.biz_key in self._dead:
            self._recorded.add(entry.biz_key)
        self._mark_found(entry.biz_key, entry.partition)
        self._compare(entry)
        if entry.status == Status.SUCCESS:
            self._succeeded(entry)
        elif entry.status == Status.FAILED:
            self._failed(entry)
        elif entry.biz_key not in self._waiting:  # a crash mark may stand for one that went behind
            self._begun(entry)

    def _succeeded(self, entry: Entry) -> None:
        report = self.report
        report.applied += entry.outcome == _APPLIED
        report.already += entry.outcome == _ALREADY
        report.stale += entry.outcome == _STALE
        report.illegal += entry.illegal
        if entry.settled_at is not None:
            report.received_to_committed.add(entry.settled_at - entry.received_at)
            report.produced_to_committed.add(entry.settled_at - entry.produced_at)
        row = self.known.partitions.get(entry.partition)
        if entry.effect is None or row is None or entry.effect > row.effect:
            self.report.findings.add(
                Violation.UNFENCED,
                biz_key=entry.biz_key,
                partition=entry.partition,
                effect=entry.effect,
                given_out=None if row is None else row.effect,
            )

    def _failed(self, entry: Entry) -> None:
        if entry.outcome == _REJECTED:
            self.report.rejected += 1
            if entry.biz_key not in self._dead and entry.biz_key not in self.known.acted_on:
                self.report.findings.add(
                    Violation.UNEXPLAINED, biz_key=entry.biz_key, key=entry.sharding_key, seq=entry.seq
                )
        elif entry.biz_key not in self._waiting:
            self.report.findings.add(
                Violation.LOST, biz_key=entry.biz_key, key=entry.sharding_key, recorded_as=entry.outcome
            )

    def _begun(self, entry: Entry) -> None:
        row = self.known.partitions.get(entry.partition)
        if row is not None and row.owned:
            self.report.in_hand += 1
        else:
            self.report.findings.add(
                Violation.UNFINISHED, biz_key=entry.biz_key, key=entry.sharding_key, partition=entry.partition
            )

    # -- against the manifest

    def _mark_found(self, biz_key: str, partition: str) -> None:
        place = self._orders.get(biz_key)
        if place is not None:
            self._found[place] = 1
            self._read[partition] = max(place, self._read.get(partition, -1))

    def _compare(self, entry: Entry) -> None:
        if self.known.sent is None:
            return
        sent = self.known.sent.get(entry.biz_key)
        if sent is None:
            self.report.beyond_manifest += 1
            return
        if sent.digest not in (entry.digest, entry.first_digest):
            self._altered(entry.biz_key, "body", None, None)
        if sent.type != entry.type:
            self._altered(entry.biz_key, "type", sent.type, entry.type)
        if sent.sharding_key != entry.sharding_key:
            self._altered(entry.biz_key, "key", sent.sharding_key, entry.sharding_key)
        if sent.partition != entry.partition:
            self.report.findings.add(
                Violation.MISPLACED, biz_key=entry.biz_key, sent_to=sent.partition, recorded_in=entry.partition
            )

    def _altered(self, biz_key: str, what: str, sent: str | None, recorded: str | None) -> None:
        self.report.findings.add(Violation.ALTERED, biz_key=biz_key, differs=what, sent=sent, recorded=recorded)

    # -- at the end

    def finish(self, repeated_effects: Iterable[tuple[str, int]]) -> None:
        """Judge what only shows once every record was seen."""
        for partition, effect in repeated_effects:
            self.report.findings.add(Violation.UNFENCED, partition=partition, effect=effect, times="several")
        for row in self.known.parked:
            self._unrecorded_row(row)
        for biz_key, place in self._orders.items():
            if not self._found[place]:
                self._missing(biz_key, place)

    def _unrecorded_row(self, row: ParkedRow) -> None:
        """A message that only the parking table knows: behind a head, or not readable."""
        if row.biz_key is None:
            self.report.messages += 1
        elif (row.waits or row.dead) and row.biz_key not in self._recorded:
            self.report.messages += 1
            sent = None if self.known.sent is None else self.known.sent.get(row.biz_key)
            if sent is not None and sent.digest != row.digest:
                self._altered(row.biz_key, "body", None, None)

    def _missing(self, biz_key: str, place: int) -> None:
        sent = (self.known.sent or {})[biz_key]
        if sent.type in self.known.ignored:
            self.report.ignored += 1
            return
        unread = place > self._read.get(sent.partition, -1)
        self.report.maybe_unread += unread
        self.report.findings.add(
            Violation.LOST,
            biz_key=biz_key,
            key=sent.sharding_key,
            partition=sent.partition,
            maybe_unread=unread or None,
        )
        last = self._reached.get(sent.sharding_key)
        if last is not None and place < last[0] and not sent.early:
            self.report.findings.add(
                Violation.ORDER, key=sent.sharding_key, biz_key=biz_key, seq=sent.seq, never_settled_but_applied=last[1]
            )


@dataclass(slots=True)
class LedgerJudge:
    """Compares business tables with what is recorded as applied."""

    report: Report
    applied: set[str]
    _missing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._missing = set(self.applied)

    def ledger(self, table: str, biz_keys: Iterable[str]) -> None:
        """Judge one table: the biz_keys in it, each as often as it is there."""
        times: Counter[str] = Counter()
        for biz_key in biz_keys:
            times[biz_key] += 1
            if biz_key not in self.applied and times[biz_key] == 1:
                self.report.findings.add(Violation.UNRECORDED_EFFECT, biz_key=biz_key, table=table)
        for biz_key, count in times.items():
            if count > 1:
                self.report.findings.add(Violation.DOUBLE, biz_key=biz_key, table=table, times=count)
        self._missing.difference_update(times)

    def finish(self) -> None:
        """Judge what no table has."""
        for biz_key in sorted(self._missing):
            self.report.findings.add(Violation.LOST_EFFECT, biz_key=biz_key)
