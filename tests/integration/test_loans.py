"""The proof on real input, in its short form: the first 20,000 events of a bank's log, processes killed four times."""

import gzip
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, insert
from support.programs import prove

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from examples.loans.check import Comparison, compare  # noqa: E402 - after the path
from examples.loans.tables import ledger, metadata  # noqa: E402 - after the path


@pytest.mark.slow
def test_every_event_of_the_log_takes_effect_once_and_in_order_whoever_is_killed():
    done = prove("examples.loans.proof", "--limit", 20_000, "--kills", 4)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "PROVED"
    assert "20,000 of 20,000 events applied" in done.stdout
    assert "NOT" not in done.stdout


LOG = [("a", 0), ("b", 0), ("a", 1), ("a", 2), ("b", 1)]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (LOG, Comparison(5, lost=0, doubled=0, strange=0, out_of_order=0)),
        (
            [("b", 0), ("a", 0), ("b", 1), ("a", 1), ("a", 2)],
            Comparison(5, lost=0, doubled=0, strange=0, out_of_order=0),
        ),
        (LOG[:-1], Comparison(4, lost=1, doubled=0, strange=0, out_of_order=0)),
        ([*LOG, ("b", 1)], Comparison(6, lost=0, doubled=1, strange=0, out_of_order=1)),
        ([*LOG, ("c", 0)], Comparison(6, lost=0, doubled=0, strange=1, out_of_order=0)),
        ([LOG[0], LOG[1], LOG[3], LOG[2], LOG[4]], Comparison(5, lost=0, doubled=0, strange=0, out_of_order=1)),
    ],
)
def test_the_ledger_convicts_whoever_loses_doubles_or_swaps_an_event(tmp_path, written, expected):
    log = tmp_path / "log.csv.gz"
    log.write_bytes(gzip.compress(b"case,seq,activity\n" + b"".join(b"%s,%d,x\n" % (c.encode(), s) for c, s in LOG)))
    engine = create_engine(f"sqlite:///{tmp_path}/ledger.db")
    metadata.create_all(engine)
    with engine.begin() as connection:
        for case_id, seq in written:
            values = {"case_id": case_id, "seq": seq, "activity": "x", "biz_key": f"{case_id}:{seq}"}
            connection.execute(insert(ledger).values(values))
        assert compare(connection, log, None) == expected
    engine.dispose()
    assert expected.holds == (sorted(written) == sorted(LOG) and not expected.out_of_order)


def test_without_the_log_the_proof_says_what_it_needs(tmp_path):
    done = prove("examples.loans.proof", tmp_path / "nowhere.csv.gz", patience_s=60.0)

    assert done.returncode == 2
    assert "give the path of loans.csv.gz, or set SERIATIM_LOANS" in done.stderr
