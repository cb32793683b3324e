"""The rehearsal of docs/operations.md, step by step, with real programs: what it says is what one sees."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.programs import Program, _environment
from support.rig import wait_until

ROOT = Path(__file__).parents[2]
RUN = "seriatim run shop:app >run.log 2>&1 &"

#: Each command of the rehearsal, in order, and what it must show.
STEPS = [
    ("cp examples/incident/shop.py /tmp/rehearsal && cd /tmp/rehearsal", []),
    ("export SERIATIM_WHO=ann", []),
    ("seriatim init", ["tables made"]),
    ("touch bank-is-down", []),
    ("python shop.py", []),
    (RUN, []),
    (
        "seriatim status",
        [
            "12 keys blocked with 15 messages waiting",
            r"│ 10 .*TimeoutError: bank.example: no answer",
            r"│ 2 .*ValueError: could not convert",
            "and 2 more",
            r"shop/payments/3 .*process \d+",
        ],
    ),
    ("seriatim parked list --error-type ValueError", ["o-7:payment.taken", "o-9:payment.taken", "2 parked"]),
    ("seriatim parked show 14", ["o-7, in shop/payments/3", '"amount": "12,50"', "ValueError", "seriatim parked edit"]),
    (
        'seriatim parked canary --error "no answer"',
        ["wave 1", "the failure is back", "9 keys left as they were", "exit 1"],
    ),
    ("rm bank-is-down", []),
    ('seriatim parked canary --error "no answer"', ["wave 4: 3 keys: 3 settled; 0 left", "10 of 10 keys came back"]),
    ('echo \'{"amount": "12.50"}\' | seriatim parked edit 14 --body -', ["has its new body", "is tried now"]),
    ("seriatim parked skip 2", ["o-9:payment.taken", "skipped; 1 behind it"]),
    (
        "seriatim trace o-7",
        ["attempt 1: ValueError", "ann: edit #14", "ann: retry #14", r"applied at attempt 1 \(redelivered"],
    ),
    ("seriatim status", ["0 keys blocked", "1 kept as evidence"]),
    ("seriatim parked discard --key o-9", ["removed"]),
    ("seriatim audit --topic payments", ["CLEAN"]),
]


def rehearsal():
    """The section of the document."""
    text = (ROOT / "docs/operations.md").read_text()
    return text.split("\n## A rehearsal\n")[1].split("\n## ")[0]


def test_the_document_s_commands_are_the_ones_that_are_tried_here():
    commands = re.findall(r"^\$ (.*)$", rehearsal(), re.MULTILINE)
    assert commands == [command for command, _ in STEPS]


@pytest.mark.slow
def test_the_rehearsal_goes_as_the_document_says(tmp_path):
    (tmp_path / "shop.py").write_text((ROOT / "examples/incident/shop.py").read_text())
    environment = _environment(tmp_path) | {"SERIATIM_WHO": "ann", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    shell = Shell(tmp_path, environment)
    before, after = STEPS[: STEPS.index((RUN, []))], STEPS[STEPS.index((RUN, [])) + 1 :]
    for command, expected in before[2:]:
        shell.run(command, expected)
    with Program(tmp_path, "run", "shop:app", SERIATIM_LEASE_S="10"):
        wait_until(lambda: "15 messages waiting" in shell.ask("seriatim status"), "the incident")
        for command, expected in after:
            if command == "seriatim trace o-7":
                wait_until(lambda: "0 keys blocked" in shell.ask("seriatim status"), "the end of it")
            shell.run(command, expected)


class Shell:
    """Runs the document's commands in a folder. The numbers of messages are looked up: they may be others here."""

    def __init__(self, folder, environment):
        (folder / "bin").mkdir()
        for name, call in (("seriatim", "-m seriatim.cli.main"), ("python", "")):
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {call} "$@"\n')
            program.chmod(0o755)
        self.folder = folder
        self.environment = environment | {"PATH": f"{folder}/bin:{environment['PATH']}"}
        self.numbers = {}

    def ask(self, command):
        done = subprocess.run(
            ["bash", "-c", self._numbered(command)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return f"{done.stdout}{done.stderr}\nexit {done.returncode}"

    def run(self, command, expected):
        told = self.ask(command)
        for pattern in expected:
            assert re.search(self._numbered(pattern), told), f"{command}: no {pattern!r} in\n{told}"
        assert "Traceback" not in told.partition("traceback")[0], told
        for number, key in re.findall(r"#(\d+) +│ (o-[79]):payment.taken", told):
            self.numbers[{"o-7": "14", "o-9": "2"}[key]] = number

    def _numbered(self, text):
        """The document's numbers of messages, replaced by those that they have here."""
        text = re.sub(
            r"(?:(?<=show )|(?<=edit )|(?<=skip ))(\d+)", lambda found: self.numbers.get(found[1], found[1]), text
        )
        return re.sub(r"(?<=#)(\d+)", lambda found: self.numbers.get(found[1], found[1]), text)
