"""A trial: `seriatim` as its own processes run it, and what of it holds."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from examples.proving.killing import ProofError

ROOT = Path(__file__).resolve().parents[2]
SERIATIM = [sys.executable, "-m", "seriatim.cli.main"]


@dataclass(slots=True, kw_only=True)
class Trial:
    """One run on a broker and a store. `failed` is what didn't hold, in words."""

    broker: str
    store: str
    lease_s: float
    failed: list[str] = field(default_factory=list)

    def environment(self) -> Mapping[str, str]:
        """What its processes are told."""
        return {
            **os.environ,
            "SERIATIM_BROKER": self.broker,
            "SERIATIM_STORE": self.store,
            "SERIATIM_LEASE_S": str(self.lease_s),
        }

    def seriatim(self, *arguments: str, may_fail: bool = False) -> "subprocess.CompletedProcess[str]":
        """Run `seriatim …` to its end, and keep what it prints; its errors go where ours go.

        Raises:
            ProofError: it failed, and may not.
        """
        done = subprocess.run(  # noqa: S603 - our own command
            [*SERIATIM, *arguments],
            cwd=ROOT,
            env=dict(self.environment()),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode and not may_fail:
            raise ProofError(f"seriatim {' '.join(arguments)} ended with status {done.returncode}")
        return done

    def check(self, holds: bool, text: str) -> None:  # noqa: FBT001 - what is checked, in words
        """Say whether it holds."""
        print(f"   {'ok ' if holds else 'NOT'}  {text}")
        if not holds:
            self.failed.append(text)


def say(text: str) -> None:
    """What comes next."""
    print(f"== {text}", flush=True)
