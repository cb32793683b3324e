"""The proof of compensation in its short form, and that it convicts whoever overtakes, doubles or forgets."""

import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, insert, text
from support.programs import prove

from seriatim.core.store import open_store

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from examples.healing.check import check  # noqa: E402 - after the path
from examples.healing.tables import ledger, metadata  # noqa: E402 - after the path


@pytest.mark.slow
def test_failing_accounts_heal_in_order_or_are_given_up_whoever_is_killed():
    done = prove("examples.healing.proof", "--accounts", 100, "--each", 30, "--kills", 3, patience_s=300.0)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "PROVED"
    assert "5 of 5 sick accounts complete and in order" in done.stdout


WELL, LOST = "well-1", "lost-0"
RIGHT = [(WELL, 0), (LOST, 0), (WELL, 1), (LOST, 1), (LOST, 2), (WELL, 2), (WELL, 3), (WELL, 4)]


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        (RIGHT, None),
        (RIGHT[:-1], "4 payments took effect, not 5"),
        ([*RIGHT, (WELL, 4)], "6 payments took effect, not 5"),
        ([*RIGHT, (LOST, 3)], "4 payments took effect, not 3"),
        ([RIGHT[2], RIGHT[0], *RIGHT[3:], RIGHT[1]], "payment 1 came where 0 belongs"),
    ],
)
def test_the_ledger_convicts(tmp_path, written, wrong):
    url = f"sqlite:///{tmp_path}/bank.db"
    store = open_store(url)
    store.init()
    store.close()
    engine = create_engine(url)
    metadata.create_all(engine)
    with engine.begin() as connection:
        for account, number in written:
            connection.execute(insert(ledger).values(account=account, number=number))
        for number, reason in [(3, "dead"), (4, "behind")]:
            connection.execute(
                text(
                    "INSERT INTO parked_message (consumer_group, topic, partition_id, sharding_key, biz_key, place,"
                    " reason, headers, body, digest, produced_at, received_at, parked_at)"
                    " VALUES ('bank', 'payments', '0', :key, :biz_key, 'queue', :reason, '{}', x'', x'', 0, 0, 0)"
                ),
                {"key": LOST, "biz_key": f"{LOST}:{number}", "reason": reason},
            )
    with engine.connect() as connection:
        found = check(connection, [WELL, LOST], 5)
    engine.dispose()
    if wrong is None:
        assert (found.well, found.given_up, found.wrong) == (1, 1, [])
    else:
        assert any(wrong in one for one in found.wrong), found.wrong
