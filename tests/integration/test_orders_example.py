"""The orders example: the demo runs and adds up, and its checks find whatever doesn't."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import create_engine, insert, text
from sqlalchemy.pool import NullPool

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from examples.orders import tables  # noqa: E402 - after the path
from examples.orders.check import check_all, check_effects, check_ends, check_orders, check_stock  # noqa: E402
from examples.orders.traffic import plan  # noqa: E402


def start_demo(*options, folder):
    """The demo as `scripts/demo` starts it, away from a terminal."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SERIATIM_STORE": "sqlite:////nowhere/the-users-own.db"}
    return subprocess.Popen(
        [sys.executable, "-m", "examples.orders.demo", *options],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# -- the demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A small demo, played to its end: its status, what it printed, and the folder that it kept."""
    folder = tmp_path_factory.mktemp("demo")
    running = start_demo("--orders", "300", "--keep", str(folder / "kept"), folder=folder)
    printed, _ = running.communicate(timeout=110)
    return running.returncode, printed, folder / "kept"


@pytest.mark.slow
def test_the_demo_adds_up_although_a_consumer_is_killed(demo):
    status, printed, _ = demo
    assert status == 0, printed
    assert "kill -9 consumer B" in printed
    assert re.search(r"consumer A has taken over, \d+\.\d s later", printed)
    assert printed.count("✔") == 5, printed
    assert "✘" not in printed
    assert "Everything adds up" in printed


@pytest.mark.slow
def test_the_demo_says_what_still_waits_and_why(demo):
    _, printed, _ = demo
    hopeless = plan(300, 1).hopeless
    assert len(hopeless) == 2
    for number in hopeless:
        assert f"order {number}, since" in printed
    assert printed.count("the payment provider does not answer") == 2
    assert printed.count("a person decides") == 2


@pytest.mark.slow
def test_the_demo_stopped_every_duplicate_and_recorded_every_late_message(demo):
    _, printed, _ = demo
    traffic = plan(300, 1)
    assert f"{traffic.duplicates:>5,}  were duplicates" in printed
    assert re.search(rf"^ +{traffic.late}  came too late", printed, re.MULTILINE), printed


@pytest.mark.slow
def test_the_demo_leaves_no_process_behind(demo):
    _, _, kept = demo
    assert consumers_in(kept) == []


NOTHING_CONSUMED = """
import typer
from examples.orders import demo
demo.Demo.run = lambda self: demo.snapshot(self.store)
typer.run(demo.main)
"""


@pytest.mark.slow
def test_a_demo_that_does_not_add_up_says_so_and_ends_with_status_1(tmp_path):
    """Planted: the consumers never run, so every order is missing."""
    ended = subprocess.run(
        [sys.executable, "-c", NOTHING_CONSUMED, "--orders", "50"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "o00001 is missing, and should be" in ended.stdout
    assert "It doesn't add up" in ended.stdout


@pytest.mark.slow
def test_an_interrupted_demo_ends_its_consumers_and_removes_its_folder(tmp_path):
    environment_folder = tmp_path / "scratch"
    environment_folder.mkdir()
    os.environ["TMPDIR"] = str(environment_folder)
    try:
        running = start_demo("--orders", "300", folder=tmp_path)
    finally:
        del os.environ["TMPDIR"]
    wait_until(lambda: len(consumers_in(environment_folder)) == 2)
    running.send_signal(signal.SIGTERM)
    printed, _ = running.communicate(timeout=30)
    assert running.returncode not in (0, 1), printed
    assert "Traceback" not in printed
    assert consumers_in(environment_folder) == []
    assert list(environment_folder.iterdir()) == []


def consumers_in(folder):
    """The processes whose working directory lies in `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = (process / "cwd").readlink()
        except OSError:
            continue
        if folder in (where, *where.parents):
            found.append(int(process.name))
    return found


def wait_until(holds, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- its traffic


def test_the_same_seed_gives_the_same_traffic():
    assert [message.biz_key for message in plan(200, 7).messages] == [
        message.biz_key for message in plan(200, 7).messages
    ]
    assert [message.biz_key for message in plan(200, 7).messages] != [
        message.biz_key for message in plan(200, 8).messages
    ]


def test_a_tenth_is_sent_twice_with_the_same_body():
    traffic = plan(1000, 1)
    bodies = {}
    for message in traffic.messages:
        assert bodies.setdefault(message.biz_key, message.body) == message.body
    assert set(Counter(message.biz_key for message in traffic.messages).values()) == {1, 2}
    assert traffic.duplicates / len(traffic.messages) == pytest.approx(0.10, abs=0.002)


def test_only_the_early_messages_are_sent_before_the_one_they_follow():
    traffic = plan(1000, 1)
    highest, early, seen = {}, set(), set()
    for message in traffic.messages:
        if message.biz_key in seen:
            continue
        seen.add(message.biz_key)
        if message.seq < highest.get(message.sharding_key, 0):
            early.add(message.sharding_key)
        highest[message.sharding_key] = max(message.seq, highest.get(message.sharding_key, 0))
    assert early == {biz_key.partition(":")[0] for biz_key in traffic.early}
    assert len(early) >= 4


def test_each_kind_of_trouble_happens_to_orders_of_its_own():
    traffic = plan(1000, 1)
    bodies = [json.loads(message.body) for message in traffic.messages if message.type == "order.paid"]
    assert any("fail_until" in body for body in bodies)
    assert any("fail_forever" in body for body in bodies)
    assert traffic.late > 0


# -- its checks, on tables that were tampered with


@pytest.fixture
def shop(tmp_path):
    """Three orders, sold, refunded and closed, and a stock that fits them."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    tables.create(url, [("pen", 10)])
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for number, state in (("o1", "PAID"), ("o2", "REFUNDED"), ("o3", "CLOSED")):
            connection.execute(
                text("INSERT INTO orders (order_no, status, sku, qty, created_at) VALUES (:no, :state, 'pen', 2, :at)"),
                {"no": number, "state": state, "at": "2026-01-01 00:00:00.000000"},
            )
        lines = [
            ("o1", "created", 0),
            ("o2", "created", 0),
            ("o1", "paid", -2),
            ("o2", "paid", -2),
            ("o3", "created", 0),
            ("o2", "refunded", 2),
            ("o3", "closed", 0),
        ]
        connection.execute(insert(tables.ledger), [line(*values) for values in lines])
        connection.execute(text("UPDATE stock SET qty = 8"))
        yield connection
    engine.dispose()


def line(order_no, event, change):
    event = f"order.{event}"
    return {"biz_key": f"{order_no}:{event}", "order_no": order_no, "event": event, "sku": "pen", "moved": change}


ENDS = {"o1": "PAID", "o2": "REFUNDED", "o3": "CLOSED"}


def test_a_sound_shop_passes_every_check(shop):
    assert [check.wrong for check in check_all(shop, ENDS)] == [[], [], [], []]


def test_a_stock_that_was_tampered_with_is_found(shop):
    shop.execute(text("UPDATE stock SET qty = 7"))
    assert check_stock(shop).wrong == ["pen: 10 − 2 sold = 8, but the stock table says 7"]


def test_stock_taken_twice_is_found(shop):
    shop.execute(insert(tables.ledger), [line("o1", "paid", -2)])
    assert len(check_orders(shop).wrong) == 1
    assert "o1: PAID took effect 2 times" in check_effects(shop).wrong


def test_stock_that_was_never_given_back_is_found(shop):
    shop.execute(text("DELETE FROM order_ledger WHERE event = 'order.refunded'"))
    assert len(check_orders(shop).wrong) == 1


def test_stock_taken_for_no_order_is_found(shop):
    shop.execute(insert(tables.ledger), [line("o9", "paid", -1)])
    assert "o9 took stock and is no order" in check_orders(shop).wrong


def test_effects_out_of_order_are_found(shop):
    shop.execute(text("UPDATE order_ledger SET event = 'order.shipped' WHERE order_no = 'o1' AND moved = 0"))
    assert check_effects(shop).wrong == ["o1: SHIPPED came after nothing", "o1: PAID came after SHIPPED"]


@pytest.mark.parametrize(
    ("ends", "wrong"),
    [
        ({**ENDS, "o1": "SHIPPED"}, "o1 is PAID, and should be SHIPPED"),
        ({**ENDS, "o4": "PAID"}, "o4 is missing, and should be PAID"),
        ({"o1": "PAID", "o2": "REFUNDED"}, "o3 was never ordered"),
    ],
)
def test_an_order_that_ended_elsewhere_is_found(shop, ends, wrong):
    assert check_ends(shop, ends).wrong == [wrong]
