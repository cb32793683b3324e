"""Who consumes what: a fair, sticky share of a topic's partitions for each living member. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from seriatim.core.store.port import OwnerRow


@dataclass(frozen=True, slots=True)
class Plan:
    """What a member does about its share: partitions to claim, and how many of its own to give up."""

    claims: tuple[str, ...] = ()
    surplus: int = 0


def plan(me: str, alive: Sequence[str], rows: Sequence[OwnerRow], now: int) -> Plan:
    """What `me` does, where `alive` are the living members and `rows` the topic's partitions.

    Each member's share is the number of partitions divided by the number of members; what is left over goes to those
    that hold the most already, so that a member that joins or leaves moves as few as can be. A partition whose lease is
    over or released is free (but a lease of `me` that ran out is still its own: nobody else has claimed it). A member
    claims free ones up to its share, beginning at a place of its own so that members that start together don't all
    reach for the same.
    """
    members = sorted({*alive, me})
    taken = [row for row in rows if row.owner is not None and (row.lease_until > now or row.member == me)]
    held = Counter(row.member for row in taken)
    ranked = sorted(members, key=lambda member: (-held[member], member))
    base, left_over = divmod(len(rows), len(members))
    shares = {member: base + (rank < left_over) for rank, member in enumerate(ranked)}
    wanted = {member: max(0, shares[member] - held[member]) for member in members}
    free = [row.partition for row in rows if row not in taken]
    start = min(len(free), sum(wanted[member] for member in members if member < me))
    claims = [*free[start:], *free[:start]][: wanted[me]]
    return Plan(tuple(claims), max(0, held[me] - shares[me]))
