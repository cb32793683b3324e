"""Orders consumed in order while things go wrong: `scripts/demo`, or ``python -m examples.orders.demo``.

Everything happens in a folder of its own: the embedded broker and a SQLite database, no server. Exit status 0 says that
everything adds up, 1 that it doesn't, 2 that the demo itself couldn't go on.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Optional

import typer
from rich.console import Console

from examples.orders import screen, tables
from examples.orders.app import app
from examples.orders.audit import run_audit, write_manifest
from examples.orders.check import check_all
from examples.orders.processes import Consumer, ProcessFailed, call, stop_all
from examples.orders.screen import Screen
from examples.orders.traffic import Traffic, plan
from examples.orders.watch import Snapshot, snapshot
from seriatim import SeriatimError
from seriatim.core.store import SqlStore

RATE = 650  #: messages that are sent in a second
SLICE = 13  #: … in sends of so many
LOOK_S = 0.2  #: how often the screen looks
KILL_AT, JOIN_AT = 0.4, 0.6  #: when a consumer is killed, and when another one joins, as shares of what is sent
QUIET_S = 1.0  #: nothing moves for so long: all is read
SETTLE_S = 90.0  #: how long it may take after the last message was sent
START_S = 20.0  #: how long the consumers may take to begin
SETTINGS = """\
broker = "embedded:broker.db"
store = "sqlite:///warehouse.db"
lease_s = 1.5      # a consumer that is silent for so long loses its partitions to the others
log_level = "WARNING"
"""


class DemoFailed(Exception):
    """The demo couldn't go on."""


@dataclass(slots=True)
class Sending:
    """The producer, on a thread of its own. `sent` counts what the broker has confirmed."""

    traffic: Traffic
    sent: int = 0
    error: BaseException | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it after the send in hand."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(10)

    @property
    def share(self) -> float:
        """How much of it is sent."""
        return self.sent / len(self.traffic.messages)

    @property
    def done(self) -> bool:
        """Whether everything is sent."""
        return self.sent == len(self.traffic.messages)

    def _run(self) -> None:
        try:
            self._send()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.error = error

    def _send(self) -> None:
        messages, began = self.traffic.messages, time.monotonic()
        with app.producer() as producer:
            while not self.done and not self._stopping.is_set():
                slice_ = messages[self.sent : self.sent + SLICE]
                producer.send(*(replace(message, produced_at=time.time()) for message in slice_))  # now all are safe
                self.sent = min(self.sent + SLICE, len(messages))
                self._stopping.wait(max(0.0, began + self.sent / RATE - time.monotonic()))


@dataclass(slots=True)
class Demo:
    """One run of the demo, in `folder`, which is the working directory."""

    folder: Path
    traffic: Traffic
    store: SqlStore
    screen: Screen
    sending: Sending
    consumers: list[Consumer] = field(default_factory=list)

    def run(self) -> Snapshot:
        """Consume everything while things go wrong; how it stands at the end."""
        try:
            with self.screen.running():
                self._start("A", "B")
                self._wait_for(self._share_everything, START_S, "the consumers to begin")
                self.sending.start()
                self.screen.tell("the shop begins to send; consumers A and B share 16 partitions")
                self._wait_for(lambda _: self.sending.share >= KILL_AT, SETTLE_S, "the messages to be sent")
                self._kill(self.consumers[1])
                self._wait_for(lambda _: self.sending.share >= JOIN_AT, SETTLE_S, "the messages to be sent")
                self._join("C")
                self._wait_for(lambda _: self.sending.done, SETTLE_S, "the messages to be sent")
                self.screen.tell("everything is sent; failed payments are still tried again, less and less often")
                return self._settle()
        finally:
            self.sending.stop()
            stop_all(self.consumers)

    def _start(self, *names: str) -> None:
        for name in names:
            consumer = Consumer.start(name, self.folder)
            self.consumers.append(consumer)
            self.screen.consumers[consumer.pid] = name

    def _share_everything(self, now: Snapshot) -> bool:
        """Whether every partition has an owner, and every living consumer has some."""
        return {*now.owners.values()} == {consumer.pid for consumer in self.consumers if not consumer.killed}

    def _kill(self, victim: Consumer) -> None:
        before = self._look()
        victim.kill()
        held = screen.letters_of(before.owners, victim.pid)
        self.screen.tell(f"[bold red]kill -9[/] consumer {victim.name}, in the middle of its work, with {held} in hand")
        killed = time.monotonic()
        survivor = self.consumers[0]
        self._wait_for(self._share_everything, START_S, "the take-over")
        self.screen.tell(
            f"consumer {survivor.name} has taken over, {time.monotonic() - killed:.1f} s later: "
            "what was half done never happened, and is done anew"
        )

    def _join(self, name: str) -> None:
        self._start(name)
        self._wait_for(self._share_everything, START_S, f"consumer {name} to join")
        self.screen.tell(f"consumer {name} joins and gets its share of the partitions; no message notices")

    def _settle(self) -> Snapshot:
        stamp, since = None, time.monotonic()

        def is_quiet(now: Snapshot) -> bool:
            nonlocal stamp, since
            if list(now.stamp) != stamp:
                stamp, since = list(now.stamp), time.monotonic()
            return now.accounted(self.traffic.distinct) and time.monotonic() - since >= QUIET_S

        return self._wait_for(is_quiet, SETTLE_S, "every message to be settled")

    def _wait_for(self, holds: Callable[[Snapshot], bool], timeout_s: float, what: str) -> Snapshot:
        deadline = time.monotonic() + timeout_s
        while True:
            now = self._look()
            if holds(now):
                return now
            if time.monotonic() > deadline:
                raise DemoFailed(f"waited {timeout_s:.0f} s in vain for {what}; it stands at {now}")
            time.sleep(LOOK_S)

    def _look(self) -> Snapshot:
        """How it stands, on the screen, too. What went wrong elsewhere is raised here."""
        if self.sending.error is not None:
            raise self.sending.error
        for consumer in self.consumers:
            consumer.check()
        now = snapshot(self.store)
        self.screen.show(self.sending.sent, now)
        return now


def main(
    orders: Annotated[int, typer.Option(min=50, max=99_999, help="How many orders the shop sends.")] = 3000,
    seed: Annotated[int, typer.Option(help="Another seed, another traffic.")] = 1,
    keep: Annotated[Optional[Path], typer.Option(help="Keep the databases and logs in this new folder.")] = None,  # noqa: UP045 - typer on 3.10
) -> None:
    """Show in a minute what Seriatim does: orders in order, each message with one effect, while things go wrong."""
    console = Console(soft_wrap=False)
    with _ending_in_good_order(), _folder(keep) as folder:
        try:
            holds = play(console, folder, plan(orders, seed), kept=keep is not None)
        except (DemoFailed, ProcessFailed, SeriatimError) as error:
            console.print(f"\nThe demo couldn't go on: {error}", markup=False, highlight=False)
            raise typer.Exit(2) from error
    raise typer.Exit(0 if holds else 1)


def play(console: Console, folder: Path, traffic: Traffic, *, kept: bool) -> bool:
    """The whole demo in `folder`; whether everything adds up."""
    began = time.monotonic()
    screen.introduce(console, traffic)
    _prepare(folder, traffic)
    store = app.open_store()
    try:
        demo = Demo(folder, traffic, store, Screen(console, len(traffic.messages)), Sending(traffic))
        end = demo.run()
        with store.read() as connection:
            checks = check_all(connection, traffic.ends)
    finally:
        store.close()
    audit = run_audit(folder)
    screen.sum_up(console, traffic, end)
    screen.show_blocked(console, end.standing)
    screen.show_checks(console, checks, audit)
    holds = all(check.holds for check in (*checks, audit))
    screen.conclude(console, holds=holds, took_s=time.monotonic() - began, kept=str(folder) if kept else None)
    return holds


def _prepare(folder: Path, traffic: Traffic) -> None:
    (folder / "seriatim.toml").write_text(SETTINGS)
    made = call(folder, "init")
    if made.returncode:
        raise DemoFailed(f"seriatim init: {made.stderr or made.stdout}")
    tables.create(app.settings.store, traffic.stock.items())
    write_manifest(folder, traffic)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A folder to work in, as the working directory, with no settings but its own."""
    if keep is not None:
        keep.mkdir(parents=True)
    folder = Path(tempfile.mkdtemp(prefix="seriatim-demo-")) if keep is None else keep.resolve()
    for name in [name for name in os.environ if name.startswith("SERIATIM_")]:
        del os.environ[name]
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _ending_in_good_order() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: its consumers first."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_signal)
    yield


if __name__ == "__main__":
    typer.run(main)
