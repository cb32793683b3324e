"""What a lane does: claim, (subscribe,) fence and decide, commit, settle; and what may befall it.

A transaction is two steps. The first fences (locks the partition_owner row, if the token is still the
lane's), looks up and decides; nobody else may change anything of the partition until the second, the
commit. A lost lease is a claim by the other lane, possible whenever the row is unlocked: the lease is never
a reason for safety. A pause is a lane that isn't chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import promises
from .decisions import Draft, plan_batch, plan_drain, plan_early
from .scenario import Scenario
from .state import OUT, Change, Lane, Pending, Phase, State, Writes
from .steps import Step, cleared, row_free, with_lane, written

MAX_EPOCH = 4


class Lanes:
    """The steps of the two lanes."""

    def __init__(self, scenario: Scenario) -> None:
        """Prepare the steps of a scenario."""
        self.sc = scenario
        self.queue = scenario.mode == "queue"
        self.tracks_epoch = scenario.budget.failover > 0

    def steps(self, s: State, i: int) -> Iterator[Step]:
        """Yield what one lane may do, or suffer, next."""
        lane, who = s.lanes[i], "AB"[i]
        if lane.phase != "out":
            yield Step(f"{who} crashes", with_lane(s, i, OUT), fault=True)
        if lane.phase in ("decided", "waiting"):
            rolled_back = with_lane(s, i, cleared(lane))
            yield Step(f"{who} is rolled back by the server", rolled_back, fault=True)
        if lane.subscribed:
            yield Step(
                f"broker drops the channel of {who}",
                with_lane(s, i, lane._replace(subscribed=False)),
                fault=True,
            )
        if lane.phase == "out":
            yield from self._claim(s, i)
        elif lane.phase == "subscribing":
            yield from self._subscribe(s, i, lane)
        elif lane.phase in ("idle", "peeked"):
            yield from self._begin(s, i, lane)
        elif lane.phase == "decided":
            yield from self._commit(s, i, lane)
        else:
            yield from self._afterwards(s, i, lane)

    def _claim(self, s: State, i: int) -> Iterator[Step]:
        """Take the partition: a new token, whoever had it."""
        if not (row_free(s) or self.sc.lacks("claim_locks")) or s.epoch >= MAX_EPOCH:
            return
        other = s.lanes[1 - i]
        epoch = s.epoch + 1 if self.tracks_epoch else 0
        mine = Lane("subscribing" if self.queue else "idle", owns=True, epoch=epoch)
        mine = mine._replace(cursor=0 if self.queue else s.tables.position)
        theirs = other._replace(owns=False, owned_before=self.tracks_epoch and other.owns)
        pending = s.pending and s.pending._replace(current=False)
        s = s._replace(epoch=epoch, fresh_claim=self.tracks_epoch, pending=pending)
        yield Step(f"{'AB'[i]} claims", with_lane(with_lane(s, 1 - i, theirs), i, mine))

    def _subscribe(self, s: State, i: int, lane: Lane) -> Iterator[Step]:
        """Subscribe only when nobody else is subscribed, after reading the lease again."""
        other, who = s.lanes[1 - i], "AB"[i]
        if not lane.owns and not self.sc.lacks("fence"):
            yield Step(f"{who} is not owner, drops out", with_lane(s, i, OUT))
        elif not other.subscribed:
            yield Step(
                f"{who} subscribes",
                with_lane(s, i, lane._replace(phase="idle", subscribed=True, cursor=s.acked)),
            )
        elif self.sc.lacks("hand_over_quiet"):
            behind_theirs = max(s.acked, other.cursor + max(other.size, 1))
            mine = lane._replace(phase="idle", subscribed=True, cursor=behind_theirs)
            yield Step(f"{who} subscribes beside the other", with_lane(s, i, mine))

    def _begin(self, s: State, i: int, lane: Lane) -> Iterator[Step]:
        """Fence, look up and decide: the first step of a transaction."""
        who = "AB"[i]
        if self.queue and not lane.subscribed and lane.phase == "idle":
            yield Step(
                f"{who} sees its channel closed",
                with_lane(s, i, lane._replace(phase="subscribing", cursor=0)),
            )
        if not (row_free(s) or self.sc.lacks("fence")):
            return
        if not self._is_owner(s, lane):
            yield Step(f"{who} fences: not owner, drops out", with_lane(s, i, OUT))
            return
        if lane.phase == "idle":
            yield from self._begin_batch(s, i, lane)
            yield from self._begin_early(s, i, lane)
        yield from self._begin_drain(s, i, lane)

    def _begin_batch(self, s: State, i: int, lane: Lane) -> Iterator[Step]:
        for size in range(1, min(self.sc.batch, len(self.sc.log) - lane.cursor) + 1):
            end = lane.cursor + size
            batch, t = self.sc.log[lane.cursor : end], s
            if self.sc.lacks("position_inside_before"):
                t = s._replace(tables=s.tables._replace(position=end))
            drafts = plan_batch(self.sc, s.tables, batch, s.budget)
            if not self.queue and not self.sc.lacks("position_inside_before", "position_inside_after"):
                drafts = [draft.then(Change("position", end)) for draft in drafts]
            after: Phase = "settling" if self.queue and not self.sc.lacks("ack_after_commit") else "idle"
            after = "positioning" if self.sc.lacks("position_inside_after") else after
            ready = lane._replace(size=size, after=after)
            if any(self._key_row_locked(s, self.sc.messages[b].key) for b in batch):
                waiting = ready._replace(phase="waiting", locks=True)
                yield Step(f"{'AB'[i]} fences, waits for a key row", with_lane(t, i, waiting))
            else:
                yield from self._decided(t, i, ready, drafts)

    def _begin_early(self, s: State, i: int, lane: Lane) -> Iterator[Step]:
        read_through = lane.cursor == len(self.sc.log)
        for b, place, _ in s.tables.parked:
            if place == "aside":
                drafts = plan_early(self.sc, s.tables, b, s.budget, read_through=read_through)
                yield from self._decided(s, i, lane._replace(size=0, after="idle"), drafts)

    def _begin_drain(self, s: State, i: int, lane: Lane) -> Iterator[Step]:
        """Run due heads; a head comes due by itself, so it may be due at any time."""
        peeks = self.sc.lacks("followers_under_lock")
        for k, key in enumerate(s.tables.keys):
            if key is None or key.head is None or (lane.peeked and lane.peeked[0] != k):
                continue
            if peeks and lane.phase == "idle":
                peeked = lane._replace(phase="peeked", peeked=(k, s.tables.parked))
                yield Step(f"{'AB'[i]} reads the followers before it locks", with_lane(s, i, peeked))
                continue
            tables = s.tables._replace(parked=lane.peeked[1]) if lane.peeked else s.tables
            drafts = [
                draft
                for size in range(1, self.sc.batch + 1)
                for draft in plan_drain(self.sc, tables, k, size, s.budget)
            ]
            yield from self._decided(s, i, lane._replace(size=0, after="idle"), drafts)

    def _decided(self, s: State, i: int, lane: Lane, drafts: list[Draft]) -> Iterator[Step]:
        for draft in {draft.writes: draft for draft in drafts}.values():
            left = s.budget._replace(fail=s.budget.fail - draft.failed, reject=s.budget.reject - draft.rejected)
            t = s._replace(budget=left)
            holds = not self.sc.lacks("fence")
            ready = lane._replace(phase="decided", locks=holds, writes=draft.writes, peeked=None)
            label = f"{'AB'[i]} fences, decides: {', '.join(draft.story)}"
            if lane.size and self.sc.lacks("ack_after_commit") and lane.subscribed:
                t, label = t._replace(acked=max(t.acked, lane.cursor + lane.size)), label + ", acks"
            yield Step(label, with_lane(t, i, ready), fault=draft.failed + draft.rejected > 0)

    def _commit(self, s: State, i: int, lane: Lane) -> Iterator[Step]:
        who, writes = "AB"[i], lane.writes
        late: Writes = ()
        if self.sc.lacks("record_inside"):
            late = tuple(w for w in writes if w.kind == "record" and w.value == "applied")
            writes = tuple(w for w in writes if w not in late)
        tables, broken = promises.commit(self.sc, s.tables, writes, stale=not lane.owns)
        done = cleared(lane)._replace(phase=lane.after, cursor=lane.cursor + lane.size, after="idle")
        if late:
            done = done._replace(phase="late", writes=late, after=lane.after)
        yield Step(f"{who} commits", with_lane(s._replace(tables=tables, fresh_claim=False), i, done), broken)
        if s.pending is None and not late:
            unknown = cleared(lane)._replace(phase="unknown", after="idle")
            if self.sc.lacks("unknown_repeats"):
                unknown = unknown._replace(size=lane.size, after=lane.after)
            pending = Pending(writes, lane.locks, lane.owns)
            yield Step(
                f"{who} commits, the answer is lost",
                with_lane(s._replace(pending=pending), i, unknown),
                fault=True,
            )

    def _afterwards(self, s: State, i: int, lane: Lane) -> Iterator[Step]:
        """Settle, find out about an unknown COMMIT; and what only mutants do outside the transaction."""
        who, idle = "AB"[i], lane._replace(phase="idle")
        if lane.phase == "settling" and (lane.subscribed or self.sc.lacks("ack_by_subscriber")):
            yield Step(f"{who} acks", with_lane(s._replace(acked=max(s.acked, lane.cursor)), i, idle))
        elif lane.phase == "settling":
            closed = lane._replace(phase="subscribing", cursor=0)
            yield Step(f"{who} can't ack, its channel is closed", with_lane(s, i, closed))
        elif lane.phase == "unknown" and (row_free(s) or self.sc.lacks("unknown_fences", "fence")):
            if not self._is_owner(s, lane) and not self.sc.lacks("unknown_fences"):
                yield Step(f"{who} fences: not owner, drops out", with_lane(s, i, OUT))
            else:
                yield Step(f"{who} finds out under the fence", with_lane(s, i, self._found_out(s, lane)))
        elif lane.phase == "late":
            done = lane._replace(phase=lane.after, writes=(), after="idle")
            yield Step(
                f"{who} inserts the record",
                with_lane(s._replace(tables=written(s.tables, lane.writes)), i, done),
            )
        elif lane.phase == "positioning":
            tables = s.tables._replace(position=lane.cursor)
            yield Step(f"{who} writes the position", with_lane(s._replace(tables=tables), i, idle))
        elif lane.phase == "waiting" and s.verb is None:
            yield Step(f"{who} has the key row, begins again", with_lane(s, i, cleared(lane)))

    def _found_out(self, s: State, lane: Lane) -> Lane:
        """Go on from the position (log), or handle the batch once more (queue)."""
        again = cleared(lane)
        if self.sc.lacks("unknown_repeats"):
            believed = again._replace(phase=lane.after, cursor=lane.cursor + lane.size)
            return (believed if lane.stamp_moved else again)._replace(stamp_moved=False)
        return again if self.queue else again._replace(cursor=s.tables.position)

    def _is_owner(self, s: State, lane: Lane) -> bool:
        if self.sc.lacks("fence_token"):
            return lane.epoch == s.epoch
        return lane.owns or self.sc.lacks("fence")

    def _key_row_locked(self, s: State, k: int) -> bool:
        return s.verb is not None and s.verb.wants_owner and s.verb.key == k and s.tables.keys[k] is not None
