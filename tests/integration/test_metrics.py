"""Metrics of a worker at work, asked for over HTTP as Prometheus asks; and a server that nobody can hold up."""

import base64
import http.client
import json
import logging
import socket
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.programs import Program, here, write_program
from support.rig import LATER, PATIENCE_S, QUICK, enter, on_a_thread, wait_until

from seriatim import Early, Reject, StateMachine
from seriatim.cli import serving
from seriatim.cli.serving import Address, Server, watched_worker
from seriatim.core.errors import ConfigurationError, StoreUnavailable
from seriatim.core.log import LOGGER
from seriatim.core.store import SqlStore
from seriatim.core.telemetry import gauges
from seriatim.core.telemetry.catalogue import METRICS, STORE_GAUGES
from seriatim.core.telemetry.gauges import StoreGauges
from seriatim.core.worker import Worker

TOKEN = "of-these-tests-alone"  # noqa: S105 - a secret of these tests alone
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def free_port(count=1):
    """The first of some neighbouring ports that are free."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))).getsockname()[1]
            try:
                for number in range(1, count):
                    stack.enter_context(closing(socket.create_server(("127.0.0.1", first + number))))
            except OSError:
                continue
            return first


@dataclass
class Asked:
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def json(self):
        return json.loads(self.text)


def ask(port, path, headers=None, method="GET", timeout_s=10.0):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)) as connection:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return Asked(answer.status, answer.headers, answer.read().decode())


@dataclass
class Watched:
    """A worker that runs, and its pages."""

    port: int
    worker: Worker

    def ask(self, path, headers=None, method="GET"):
        return ask(self.port, path, headers, method)

    def health(self, page="ready"):
        answer = self.ask(f"/health/{page}")
        return answer.status, answer.json

    def metrics(self):
        """Every sample by its name and labels."""
        answer = self.ask("/metrics", BEARER)
        assert answer.status == 200, answer
        families = text_string_to_metric_families(answer.text)
        samples = [one for each in families for one in each.samples]
        return {(one.name, *sorted(one.labels.items())): one.value for one in samples}

    def value(self, name, **labels):
        return self.metrics().get(named(name, labels))


def named(name, labels):
    return (f"seriatim_{name}", *sorted(labels.items()))


def watchable(rig, **settings):
    """An app whose worker serves its pages on a free port."""
    return rig.app(http=f"127.0.0.1:{free_port()}", http_token=TOKEN, **settings)


@contextmanager
def watched(app):
    """A worker of the app on a thread of its own, served as `seriatim run` serves it."""
    with watched_worker(app, app.settings) as worker:
        one = Watched(serving.access(app.settings).address.port, worker)
        with on_a_thread(worker.run, worker.stop):
            yield one


@pytest.fixture
def impatient(monkeypatch):
    """The store is read anew by every scrape."""
    monkeypatch.setattr(gauges, "EVERY_S", 0.0)
    monkeypatch.setattr(gauges, "SHARE", 0)


WHERE = {"group": "shop", "topic": "orders"}


def shop(app, policy=LATER, **options):
    """Orders whose messages end in every way there is."""
    machine = StateMachine(
        "orders", key="order_no", column="status", after={"NEW": (), "PAID": ("NEW",), "SENT": ("PAID",)}
    )
    topic = app.topic("orders", partitions=1, policy=policy, ignore=["noise"], **options)

    @topic.on("step")
    def step(event, ctx):
        enter(ctx)
        if event.get("bad"):
            raise ConnectionError("secret-of-the-handler")
        if event.get("dead"):
            raise Reject("secret-of-the-handler")
        if event.get("early"):
            raise Early(waiting_for="nothing/there")

    for state in ("NEW", "PAID", "SENT"):
        topic.on(state, moves=machine.to(state, insert=(lambda event: {}) if state == "NEW" else None))(
            lambda event, ctx: enter(ctx)
        )
    return topic


def send_every_outcome(rig, orders):
    rig.send(orders, "a")
    first = rig.send(orders, "a")
    rig.send(orders, "a", biz_key=first)  # duplicate
    rig.send(orders, "a", biz_key=first, other=1)  # conflict
    rig.send(orders, "b", bad=1)  # parked
    rig.send(orders, "b")  # behind it
    rig.send(orders, "c", dead=1)  # rejected
    rig.send(orders, "d", early=1)  # early
    rig.write("INSERT INTO orders VALUES ('e', 'PAID', NULL)")
    rig.send(orders, "e", "PAID")  # already
    rig.send(orders, "e", "NEW")  # stale
    rig.send(orders, "f", "noise")  # ignored: rejected
    rig.append(orders, b"{}")  # no key at all: rejected


EVERY = {"applied": 2, "duplicate": 1, "conflict": 1, "parked": 2, "rejected": 3, "early": 1, "already": 1, "stale": 1}


def test_messages_of_every_outcome_are_counted_measured_and_seen_in_the_parking(rig, impatient):
    app = watchable(rig)
    orders = shop(app)
    send_every_outcome(rig, orders)
    with watched(app) as one:
        wait_until(lambda: one.value("messages_total", **WHERE, outcome="rejected") == 3, "the last outcome")
        seen = one.metrics()

    def value(name, **labels):
        return seen[named(name, {**WHERE, **labels})]

    assert {outcome: value("messages_total", outcome=outcome) for outcome in EVERY} == EVERY
    assert value("dead_total") == 1
    assert value("handler_seconds_count") == 7  # of those that had their turn, whatever came of it
    assert 0 < value("handler_seconds_sum") < value("batch_seconds_sum")
    assert value("received_to_committed_seconds_count") == sum(EVERY.values())
    assert value("produced_to_committed_seconds_count") == EVERY["applied"] + EVERY["already"] + EVERY["stale"]
    assert 0 < value("received_to_committed_seconds_sum") < 40
    assert value("batch_seconds_count") >= 1
    assert value("lease_changes_total", change="claimed") == 1
    assert value("partitions_held") == 1
    # blocked: b, with one behind; c, dead. aside: d. kept: the conflict and the one without a key
    assert value("parked_keys") == 2
    assert value("dead_heads") == 1
    assert [value("parked_messages", place=place) for place in ("queue", "aside", "closed")] == [3, 1, 2]
    assert value("parked_rows") == 6
    assert value("parked_rows_cap") == LATER.max_parked
    assert value("parked_bytes") == sum(len(row[4]) for row in rig.parked())
    assert value("parked_bytes_cap") == LATER.max_parked_bytes
    assert 0 < value("oldest_blocked_key_seconds") < 40
    assert value("overdue_seconds") == 0
    assert [value(f"partitions_{how}") for how in ("paused", "full", "unowned")] == [0, 0, 0]


def test_every_documented_metric_is_served_and_what_is_served_has_no_key_and_no_secret(rig):
    app = watchable(rig)
    orders = shop(app)
    send_every_outcome(rig, orders)
    rig.send(orders, "secret-key", biz_key="secret-biz-key")
    with watched(app) as one:
        wait_until(lambda: "secret-biz-key" in rig.ledger(), "the last message")
        text = one.ask("/metrics", BEARER).text
        pages = [one.ask(f"/health/{page}").text for page in ("live", "ready")]
    for metric in METRICS:
        kind = f"# TYPE {metric.name} {metric.kind}"
        assert kind in text, metric.name
    for page in (text, *pages):
        assert "secret" not in page
        assert TOKEN not in page
        assert str(rig.folder) not in page


def test_what_comes_back_from_parking_is_counted_as_redelivered(rig):
    app = watchable(rig)
    orders = shop(app, QUICK)
    broken = rig.send(orders, "a", bad=1)
    with watched(app) as one:
        wait_until(lambda: (one.value("redeliveries_total", **WHERE, outcome="parked") or 0) >= 2, "redeliveries")
        wait_until(lambda: one.value("dead_total", **WHERE) == 1, "the death")
        assert one.value("messages_total", **WHERE, outcome="parked") == 1
        assert one.value("redeliveries_total", **WHERE, outcome="rejected") == 1
    assert rig.record(broken)[1] == "rejected"


# the store's gauges


def test_the_gauges_say_what_is_overdue_full_paused_and_owned_by_nobody(rig):
    app = watchable(rig)
    orders = shop(app)
    rig.send(orders, "a", bad=1)
    rig.run(app)
    rig.write("UPDATE parked_key SET next_attempt_at = next_attempt_at - 7200 * 1000000")
    rig.write('UPDATE partition_owner SET paused = ?, "full" = 1', "why")
    with rig.opened() as store:
        policies = {"orders": orders.policy}
        read = {metric.name: value for metric, _, value in StoreGauges(store, "shop", policies).read()}
        other = {metric.name: value for metric, _, value in StoreGauges(store, "other", policies).read()}
    assert 3600 <= read["seriatim_overdue_seconds"] < 3700
    assert [read[f"seriatim_partitions_{how}"] for how in ("paused", "full", "unowned")] == [1, 1, 1]
    assert read["seriatim_parked_keys"] == 1
    assert read["seriatim_dead_heads"] == 0
    assert read["seriatim_store_readable"] == 1
    assert other["seriatim_parked_keys"] == other["seriatim_parked_rows"] == 0, "another group's"


def counting(monkeypatch, store):
    """How often the store is read."""
    reads, read = [], store.read

    def counted():
        reads.append(time.monotonic())
        return read()

    monkeypatch.setattr(store, "read", counted)
    return reads


def test_the_store_is_read_once_for_many_scrapes(rig, monkeypatch):
    with rig.opened() as store:
        reads = counting(monkeypatch, store)
        source = StoreGauges(store, "shop", {"orders": LATER})
        threads = [threading.Thread(target=lambda: list(source.read())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(list(source.read())) == 1 + len(STORE_GAUGES) + 2  # three places of parked messages
        assert len(reads) == 1
        source._next_at = 0.0  # noqa: SLF001 - five seconds later
        list(source.read())
        assert len(reads) == 2


def test_a_reading_that_takes_long_is_repeated_the_less_often(rig, monkeypatch):
    with rig.opened() as store:
        source = StoreGauges(store, "shop", {"orders": LATER})
        read = store.read

        def slowly():
            time.sleep(0.3)
            return read()

        monkeypatch.setattr(store, "read", slowly)
        list(source.read())
        assert source._next_at - time.monotonic() > 5.5  # noqa: SLF001 - twenty times as long


def test_a_store_that_is_away_is_said_and_its_old_numbers_are_not(rig, impatient, monkeypatch):
    app = watchable(rig)
    shop(app)
    with watched(app) as one:
        assert one.value("store_readable") == 1
        assert one.value("parked_keys", **WHERE) == 0
        with monkeypatch.context() as patch:

            def away(self):
                raise StoreUnavailable("away")

            patch.setattr(SqlStore, "read", away)
            assert one.value("store_readable") == 0
            assert one.value("parked_keys", **WHERE) is None
            assert one.value("messages_total", **WHERE, outcome="applied") == 0, "the rest is there"
        assert one.value("store_readable") == 1
        assert one.value("parked_keys", **WHERE) == 0


def test_a_store_that_hangs_holds_up_no_scrape_and_is_said_in_time(rig, monkeypatch):
    go = threading.Event()
    with rig.opened() as store:
        read = store.read

        def hang():
            go.wait(PATIENCE_S)
            return read()

        monkeypatch.setattr(gauges, "WAIT_S", 0.1)
        monkeypatch.setattr(gauges, "HUNG_S", 0.3)
        source = StoreGauges(store, "shop", {"orders": LATER})
        list(source.read())
        wait_until(source._done.is_set, "the first reading")  # noqa: SLF001 - seen from inside: no public way
        monkeypatch.setattr(store, "read", hang)
        source._next_at = 0.0  # noqa: SLF001 - a fault is planted where no public way leads
        began = time.monotonic()
        assert len(list(source.read())) > 1, "what was read a moment ago is still good"
        assert time.monotonic() - began < 5
        wait_until(lambda: [value for _, _, value in source.read()] == [0.0], "the word that it hangs")
        go.set()
        wait_until(source._done.is_set, "the end of the reading")  # noqa: SLF001 - seen from inside: no public way
        assert len(list(source.read())) > 1


# who may ask


def basic(user, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_metrics_are_for_whoever_shows_the_token_and_health_is_for_everybody(rig):
    app = watchable(rig)
    shop(app)
    with watched(app) as one:
        for good in (BEARER, {"Authorization": f"bearer {TOKEN}"}, basic("anybody", TOKEN), basic("", TOKEN)):
            assert one.ask("/metrics", good).status == 200
        wrong = [
            {},
            {"Authorization": TOKEN},
            {"Authorization": "Bearer"},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": f"Bearer {TOKEN[:-1]}"},
            {"Authorization": "Bearer \xe9\xff"},
            {"Authorization": "Basic not base 64"},
            {"Authorization": "Basic " + base64.b64encode(TOKEN.encode()).decode()},
            basic(TOKEN, "wrong"),
            {"Cookie": TOKEN},
        ]
        for headers in wrong:
            answer = one.ask("/metrics", headers)
            assert answer.status == 401, headers
            assert "seriatim_" not in answer.text
            assert answer.headers.get_all("WWW-Authenticate") == ['Bearer realm="seriatim"', 'Basic realm="seriatim"']
        assert one.ask(f"/metrics?token={TOKEN}").status == 401
        assert one.ask("/health/live").status == 200
        assert one.ask("/", BEARER).status == one.ask("/metrics/", BEARER).status == 404
        for path in ("/metrics", "/health/live"):
            assert one.ask(path, BEARER, "POST").status == 405
            head = one.ask(path, BEARER, "HEAD")
            assert (head.status, head.text) == (200, "")


def test_a_scraper_gets_the_format_that_it_asks_for(rig):
    app = watchable(rig)
    shop(app)
    with watched(app) as one:
        answer = one.ask("/metrics", {**BEARER, "Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


# a server that nobody can hold up


def page(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"here"]


@pytest.fixture
def quick(monkeypatch):
    """A server that gives a connection half a second."""
    monkeypatch.setattr(serving, "DEADLINE_S", 0.5)
    monkeypatch.setattr(serving._Handler, "timeout", 0.5)  # noqa: SLF001 - a fault is planted where no public way leads


def test_clients_that_hang_or_dawdle_keep_nobody_else_waiting_for_long(quick, capfd):
    with Server(Address("127.0.0.1", 0), page) as server, ExitStack() as stack:
        port = server.address.port
        hung = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=5)))
            for _ in range(3 * serving.THREADS)
        ]
        stop = threading.Event()

        def dawdle():
            while not stop.wait(0.1):
                for client in hung[: 2 * serving.THREADS]:
                    try:
                        client.send(b"G")
                    except OSError:
                        continue

        thread = threading.Thread(target=dawdle)
        thread.start()
        began = time.monotonic()
        assert ask(port, "/").text == "here"
        took_s = time.monotonic() - began
        stop.set()
        thread.join()
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("http")]
        assert len(names) <= serving.THREADS + 1
        assert took_s < 4, "three rounds of clients had half a second each"
        assert ask(port, "/").text == "here"
    assert capfd.readouterr().err == ""


def test_one_that_dawdles_is_hung_up_on_though_nobody_else_comes(quick):
    with (
        Server(Address("127.0.0.1", 0), page) as server,
        closing(socket.create_connection(server.server_address)) as one,
    ):
        one.settimeout(0.1)
        began = time.monotonic()
        while True:
            assert time.monotonic() - began < 5
            try:
                one.send(b"G")
                if one.recv(100) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() - began > 0.4


def test_one_that_hangs_among_others_is_not_noticed():
    with (
        Server(Address("127.0.0.1", 0), page) as server,
        closing(socket.create_connection(server.server_address)) as hung,
    ):
        hung.send(b"GET / HTTP/1.1\r\n")
        began = time.monotonic()
        for _ in range(20):
            assert ask(server.address.port, "/").text == "here"
        assert time.monotonic() - began < 2


def test_a_server_ends_with_its_owner_whoever_is_connected_and_gives_its_port_back():
    with Server(Address("127.0.0.1", 0), page) as server:
        address = server.address
        with closing(socket.create_connection(server.server_address)) as hung:
            hung.send(b"GET / HT")
            wait_until(lambda: server._open, "the connection")  # noqa: SLF001 - seen from inside: no public way
            began = time.monotonic()
            server.__exit__(None, None, None)
            assert time.monotonic() - began < 2
    with pytest.raises(OSError):  # noqa: PT011 - whatever the system calls it
        ask(address.port, "/")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("http")]
    with Server(address, page):
        assert ask(address.port, "/").text == "here"


def test_a_page_that_fails_is_logged_and_shows_nothing_of_itself(monkeypatch):
    told = []
    monkeypatch.setattr(LOGGER, "exception", told.append)

    def health():
        raise RuntimeError("secret")

    with Server(Address("127.0.0.1", 0), serving.Pages(health, page, TOKEN.encode())) as server:
        answer = ask(server.address.port, "/health/live")
    assert answer.status == 500
    assert "secret" not in answer.text
    assert told == ["an HTTP page failed"]


def test_a_port_that_is_taken_is_an_error_that_names_it(rig):
    app = watchable(rig)
    shop(app)
    address = serving.access(app.settings).address
    with Server(address, page), pytest.raises(ConfigurationError, match=f"{address}.*in use"), watched(app):
        pass
    with pytest.raises(ConfigurationError, match="can't listen on"):
        Server(Address("no.such.host.invalid", 0), page)


# the command

PROGRAM = """
orders = app.topic("orders", partitions=2)

@orders.on("step")
def step(event, ctx):
    enter(ctx)
"""


def test_the_command_refuses_what_cannot_be_served_before_it_begins(rig):
    write_program(rig.folder, PROGRAM + 'mark("loaded")\n')
    ended = here(rig.folder, "run", "shop:app", "--http", "9464")
    assert ended.code == 2
    assert not (rig.folder / "loaded").exists()
    assert "SERIATIM_HTTP_TOKEN" in ended.err
    ended = here(rig.folder, "run", "shop:app", "--http", "here", SERIATIM_HTTP_TOKEN=TOKEN)
    assert ended.code == 2
    assert "'here' can't be read" in ended.err


def ready(port):
    try:
        return ask(port, "/health/ready").status == 200
    except OSError:
        return False


@pytest.mark.slow
def test_each_of_several_processes_has_a_port_of_its_own(rig):
    write_program(rig.folder, PROGRAM)
    orders = rig.app().topic("orders", partitions=2)
    port = free_port(2)
    command = ("run", "shop:app", "--workers", "2", "--http", str(port))
    with Program(rig.folder, *command, SERIATIM_HTTP_TOKEN=TOKEN) as program:
        wait_until(lambda: ready(port) and ready(port + 1), "both processes")
        wait_until(lambda: rig.owners() == 2, "a partition for each")  # one that stands by is ready, too
        rig.send_many(orders, [f"k{number}" for number in range(20)])
        wait_until(lambda: len(rig.ledger()) == 20, "the effects")
        applied = 'seriatim_messages_total{group="shop",outcome="applied",topic="orders"}'
        counts = []
        for one in (port, port + 1):
            lines = ask(one, "/metrics", BEARER).text.splitlines()
            counts += [float(line.split()[-1]) for line in lines if line.startswith(applied)]
        program.process.terminate()
        ended = program.wait()
    assert ended.code == 0, ended
    assert sum(counts) == 20
    assert all(counts), "one of them had nothing"
    assert TOKEN not in ended.err + ended.out
    assert "Traceback" not in ended.err


def test_without_the_setting_nothing_listens_and_the_library_is_not_needed(rig, monkeypatch):
    monkeypatch.setattr(serving, "MetricsObserver", None)
    app = rig.app()
    shop(app)
    with watched_worker(app, app.settings) as worker:
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("http")]
        assert type(worker.observer).__name__ == "LogObserver"


@pytest.fixture(autouse=True)
def quiet():
    """What the worker logs, nobody reads."""
    level = LOGGER.level
    LOGGER.setLevel(logging.CRITICAL)
    yield
    LOGGER.setLevel(level)
