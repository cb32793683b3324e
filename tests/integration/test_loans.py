"""The proof on real input, in its short form: the first 20,000 events of a bank's log, processes killed four times."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_event_of_the_log_takes_effect_once_and_in_order_whoever_is_killed():
    done = subprocess.run(
        [sys.executable, "-m", "examples.loans.proof", "--limit", "20000", "--kills", "4"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "PROVED"
    assert "20,000 of 20,000 events applied" in done.stdout
    assert "NOT" not in done.stdout


def test_without_the_log_the_proof_says_what_it_needs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "examples.loans.proof", tmp_path / "nowhere.csv.gz"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 2
    assert "give the path of loans.csv.gz, or set SERIATIM_LOANS" in done.stderr
