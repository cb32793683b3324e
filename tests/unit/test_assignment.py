"""Shares of partitions: fair, sticky, and never one partition for two."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.assignment import plan
from seriatim.core.store.port import OwnerRow

NOW = 1000


def row(partition, member, *, lease=NOW + 1, released=False):
    return OwnerRow(str(partition), None if released else member, None if released else "t", 1, lease, 0, None, 0, None)


MEMBERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)


@st.composite
def standings(draw):
    members = draw(MEMBERS)
    holders = st.none() | st.sampled_from(members)
    rows = [
        row(n, holder, released=holder is None)
        for n, holder in enumerate(draw(st.lists(holders, min_size=1, max_size=24)))
    ]
    return members, rows


def carry_out(members, rows):
    """Everybody plans on what it sees and does it: surplus ones are released, free ones claimed by the first."""
    plans = {member: plan(member, members, rows, NOW) for member in members}
    owners = {one.partition: one.member if one.owner else None for one in rows}
    for member, made in plans.items():
        mine = sorted(partition for partition, owner in owners.items() if owner == member)
        for partition in mine[len(mine) - made.surplus :]:
            owners[partition] = None
    for member, made in plans.items():
        for partition in made.claims:
            owners[partition] = owners[partition] or member
    return plans, [row(partition, owner, released=owner is None) for partition, owner in owners.items()]


@given(standings())
def test_nobody_claims_what_another_holds_and_no_two_claim_one_partition(standing):
    members, rows = standing
    free = {one.partition for one in rows if one.owner is None}
    claims = [partition for member in members for partition in plan(member, members, rows, NOW).claims]
    assert set(claims) <= free
    short = [member for member in members if plan(member, members, rows, NOW).claims]
    if len(short) == len(members):
        assert all(count == 1 for count in Counter(claims).values()), "they reach for the same"


@given(standings())
def test_in_a_few_rounds_shares_are_fair_and_then_nothing_moves(standing):
    members, rows = standing
    for _ in range(len(rows) + 2):
        _, rows = carry_out(members, rows)
    held = Counter(one.member for one in rows)
    assert None not in held, "a partition is nobody's"
    shares = [held[member] for member in members]
    assert max(shares) - min(shares) <= 1
    plans, after = carry_out(members, rows)
    assert after == rows
    assert all(not made.claims and not made.surplus for made in plans.values())


@given(standings(), st.sampled_from("xyz"))
def test_a_member_that_joins_moves_no_more_than_its_share(standing, newcomer):
    members, rows = standing
    for _ in range(len(rows) + 2):
        _, rows = carry_out(members, rows)
    grown = [*members, newcomer]
    moved = sum(plan(member, grown, rows, NOW).surplus for member in grown)
    assert moved == len(rows) // len(grown)


@given(standings())
def test_when_a_member_leaves_only_its_own_partitions_move(standing):
    members, rows = standing
    for _ in range(len(rows) + 2):
        _, rows = carry_out(members, rows)
    left = members[1:] or ["z"]
    rows = [row(one.partition, one.member, released=one.member == members[0]) for one in rows]
    assert all(plan(member, left, rows, NOW).surplus == 0 for member in left)


def test_a_lease_that_ran_out_is_free_for_others_and_still_its_owner_s_own():
    rows = [row(0, "a", lease=NOW), row(1, "a", lease=NOW + 1)]
    assert plan("b", ["b"], rows, NOW).claims == ("0",)
    assert plan("a", ["a"], rows, NOW).claims == ()


def test_more_members_than_partitions_leave_some_standing_by():
    rows = [row(0, None, released=True)]
    claims = [plan(member, ["a", "b", "c"], rows, NOW).claims for member in "abc"]
    assert sorted(claims) == [(), (), ("0",)]
