"""What came of it, by the handlers' own ledger and by the store: nothing here asks the audit."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from examples.healing.app import FAILS_AT, app, payments
from examples.healing.tables import ledger
from seriatim.core.store.schema import idempotent_record as records
from seriatim.core.store.schema import parked_message as parked


@dataclass(frozen=True, slots=True)
class Findings:
    """How many accounts are as they must be, and what is wrong with the others."""

    well: int
    healed: int
    given_up: int
    wrong: Sequence[str]


def check(connection: Connection, accounts: Sequence[str], each: int) -> Findings:
    """Compare every account's ledger, and what is parked of it, with what must have become of it."""
    done: dict[str, list[int]] = defaultdict(list)
    for account, number in connection.execute(select(ledger.c.account, ledger.c.number).order_by(ledger.c.id)):
        done[account].append(number)
    waiting: dict[str, list[tuple[str, str]]] = defaultdict(list)
    query = select(parked.c.sharding_key, parked.c.biz_key, parked.c.reason).order_by(parked.c.id)
    for account, biz_key, reason in connection.execute(query):
        waiting[account].append((biz_key, reason))
    wrong, counts = [], {"well": 0, "sick": 0, "lost": 0}
    for account in accounts:
        kind = account.split("-")[0]
        last = FAILS_AT if kind == "lost" else each
        expected = [(f"{account}:{n}", "dead" if n == last else "behind") for n in range(last, each)]
        if done[account] != list(range(last)):
            wrong.append(f"{account}: {_first_difference(done[account], last)}")
        elif waiting[account] != expected:
            wrong.append(f"{account}: {len(waiting[account])} parked ({waiting[account][:2]} …), not {len(expected)}")
        else:
            counts[kind] += 1
    return Findings(counts["well"], counts["sick"], counts["lost"], wrong)


def _first_difference(done: Sequence[int], last: int) -> str:
    for place, (found, expected) in enumerate(zip(done, range(last), strict=False)):
        if found != expected:
            return f"payment {found} came where {expected} belongs (place {place})"
    return f"{len(done)} payments took effect, not {last}"


def progress(connection: Connection) -> int:
    """How many payments took effect, so far."""
    return int(connection.execute(select(func.coalesce(func.max(ledger.c.id), 0))).scalar_one())


def healthy_p99_ms(connection: Connection) -> float:
    """From received to committed, of the accounts that are well, in milliseconds."""
    query = select(records.c.settled_at - records.c.received_at).where(
        records.c.consumer_group == app.group,
        records.c.topic == payments.name,
        records.c.status == 2,  # noqa: PLR2004 - success
        records.c.sharding_key.like("well-%"),
    )
    times = sorted(connection.execute(query).scalars())
    return times[int(len(times) * 0.99)] / 1000
