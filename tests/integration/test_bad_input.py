"""Bad input: a clear error, or a parked message with its reason, that names the thing and the remedy; nothing lost."""

import fcntl
import json
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import event
from support.programs import Program, here, seriatim, write_program
from support.rig import LATER, QUICK, enter, wait_until

from seriatim import App, ConfigurationError, InvalidMessage, Message, StoreError
from seriatim.core.errors import SchemaMismatch, StoreUnavailable
from seriatim.core.store import open_store

WORKING = """
orders = app.topic("orders", partitions=2)

@orders.on("step")
def step(event, ctx):
    enter(ctx)
"""


@pytest.fixture
def shop(rig):
    write_program(rig.folder, WORKING)
    return rig


def complaint(ended, *names):
    """The one line that a person sees: it names these things."""
    assert ended.code not in (0, None), ended
    assert "Traceback" not in ended.err, ended
    assert ended.err.startswith(("seriatim:", "Usage:")), ended
    for name in names:
        assert name in ended.err, ended
    return ended.err


def steps(app, partitions=1, policy=LATER, **options):
    topic = app.topic("orders", partitions=partitions, policy=policy, **options)
    topic.on("step")(lambda event, ctx: enter(ctx))
    return topic


# topics and types


def test_a_message_of_an_undeclared_topic_is_refused_by_the_producer_and_nothing_is_sent(rig):
    app = rig.app()
    orders = steps(app)
    stray = Message("invoices", "a", "a:1", "step", b"{}")
    with app.producer() as producer, pytest.raises(InvalidMessage, match=r"invoices.*declare.*orders"):
        producer.send(orders.message(key="a", type="step", biz_key="a:0", body={}), stray)
    rig.run(app)
    assert rig.ledger() == []


def test_a_type_without_a_handler_waits_with_its_key_for_a_worker_that_knows_it(rig):
    old = rig.app()
    orders = steps(old, policy=QUICK)
    news = [rig.send(orders, "a", "news"), rig.send(orders, "a"), rig.send(orders, "b")]
    rig.run_until(old, lambda: rig.ledger() and len(rig.parked()) == 2, "the others")

    assert rig.ledger() == [news[2]]
    [unhandled, behind] = rig.parked()
    assert unhandled[:3] == (news[0], "queue", "unhandled")
    assert "'news'" in unhandled[3]
    assert "step" in unhandled[3], "it says what this process handles"
    assert behind[:3] == (news[1], "queue", "behind")

    new = rig.app()
    steps(new, policy=QUICK).on("news")(lambda event, ctx: enter(ctx))
    rig.run_until(new, lambda: not rig.parked(), "the worker that knows it")
    assert rig.ledger("a") == news[:2]
    assert rig.record(news[0])[3] == 1, "waiting for a handler was counted as an attempt"


def test_a_type_without_a_handler_is_never_given_up(rig):
    app = rig.app()
    orders = steps(app, policy=QUICK)
    biz_key = rig.send(orders, "a", "news")
    with rig.working(app) as witness:
        wait_until(lambda: len(witness.outcomes(biz_key)) > orders.policy.max_attempts, "many tries")
    assert rig.parked()[0][2] == "unhandled"


# keys and bodies


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"key": "k" * 300}, "sharding key.*300 characters.*255"),
        ({"key": "a", "biz_key": "b" * 300}, "biz_key.*300 characters.*255"),
        ({"key": "a", "type": "t" * 300}, "type.*300 characters.*128"),
        ({"key": ""}, "sharding key"),
        ({"key": None}, "sharding key"),
        ({"key": "a", "biz_key": None}, "biz_key.*once=True"),
        ({"key": "a", "biz_key": "  "}, "biz_key"),
        ({"key": "a", "type": ""}, "type"),
        ({"key": "a", "body": float("nan")}, "body.*JSON"),
        ({"key": "a", "body": {"a": float("nan")}}, "body.*JSON"),
        ({"key": "a", "body": {"a": object()}}, "body.*JSON"),
        ({"key": "a", "body": [1]}, "body.*list.*any_value"),
        ({"key": "a", "body": {"a": "\ud800"}}, "body"),
        ({"key": "a", "body": {"a": "x" * 5_000_000}}, "5000008 bytes.*4194304.*max_body"),
        ({"key": "a", "headers": {"Seriatim-Key": "x"}}, "Seriatim-Key.*rename"),
        ({"key": "a", "seq": 2**70}, "seq"),
        ({"key": "a", "seq": "seven"}, "seq"),
        ({"key": "a", "produced_at": 1.7e15}, "produced_at"),
        ({"key": "a", "produced_at": float("nan")}, "produced_at"),
    ],
)  # fmt: skip
def test_a_producer_refuses_what_no_consumer_could_take(rig, wrong, says):
    orders = steps(rig.app())
    good = {"type": "step", "biz_key": "b", "body": {}}
    with pytest.raises(InvalidMessage, match=f"(?s){says}"):
        orders.message(**good | wrong)


def test_what_a_foreign_producer_wrote_all_the_same_is_parked_with_its_reason_and_its_bytes(rig):
    app = rig.app()
    orders = steps(app)
    big = json.dumps({"a": "x" * 5_000_000}).encode()
    rig.append(orders, big, key="big", biz_key="big", kind="step")
    rig.append(orders, b"{}", key="k" * 300, biz_key="long key", kind="step")
    rig.append(orders, b"{}", key="long biz_key", biz_key="b" * 300, kind="step")
    rig.append(orders, b"{}", biz_key="no key", kind="step")
    rig.append(orders, b"{}", key="no biz_key", kind="step")
    rig.append(orders, b"{broken", key="broken", biz_key="broken", kind="step")
    rig.append(orders, b"{}", key="good", biz_key="good", kind="step")
    rig.run(app, until_idle_s=0.2)

    assert rig.ledger() == ["good"]
    errors = {(row[0] or row[3]): row for row in rig.parked()}
    assert len(errors) == 6
    assert errors["big"][4] == big
    assert "max_body" in errors["big"][3]
    told = " | ".join(row[3] for row in rig.parked())
    for part in ("300 characters", "no biz_key", "isn't JSON", "sharding key is None"):
        assert part in told
    assert {row[2] for row in rig.parked()} <= {"malformed", "dead"}


def test_a_body_of_the_longest_length_allowed_passes_and_one_byte_more_doesn_t(rig):
    app = rig.app()
    orders = steps(app, max_body=1000)
    filler = 1000 - len(orders.codec.encode({"a": ""}))
    longest = orders.message(key="a", type="step", biz_key="b", body={"a": "x" * filler})
    assert len(longest.body) == 1000
    rig.send_all(orders, [longest])
    rig.run(app)
    assert rig.ledger() == ["b"]
    with pytest.raises(InvalidMessage, match="1001 bytes"):
        orders.message(key="a", type="step", biz_key="b", body={"a": "x" * (filler + 1)})


# partitions


def test_another_number_of_partitions_than_the_store_knows_is_refused_by_both_sides(rig):
    app, grown = rig.app(), rig.app()
    orders, more = steps(app, partitions=2), steps(grown, partitions=4)
    rig.send(orders, "a")
    rig.run(app)

    with pytest.raises(ConfigurationError, match=r"(?s)orders.*4 partitions.*2"), grown.worker(rig.witness):
        pass
    with pytest.raises(ConfigurationError, match=r"(?s)orders.*4.*2"), grown.producer() as producer:
        producer.send(more.message(key="a", type="step", biz_key="x", body={}))
    with closing(app.open_broker()) as broker:
        assert broker.partitions("orders") == ("0", "1"), "a refused declaration left something behind"


def test_the_store_remembers_the_partitions_where_the_broker_has_forgotten_them(rig):
    app, grown = rig.app(), rig.app()
    steps(app, partitions=2)
    rig.run(app)
    for path in rig.folder.glob("log.db*"):
        path.unlink()
    steps(grown, partitions=4)
    told = r"(?s)orders.*4 partitions.*store.*2 partitions"
    with pytest.raises(ConfigurationError, match=told), grown.worker(rig.witness):
        pass


def test_fewer_partitions_than_the_broker_has_are_refused_before_anything_is_missed(rig):
    wide, narrow = rig.app(), rig.app("newcomer")
    orders = steps(wide, partitions=4)
    rig.send_many(orders, [f"k{number}" for number in range(20)])
    steps(narrow, partitions=2)
    with pytest.raises(ConfigurationError, match=r"(?s)orders.*2.*4"), narrow.worker(rig.witness):
        pass


# the store


def test_a_store_without_tables_names_the_command_that_makes_them(tmp_path):
    write_program(tmp_path, WORKING)
    complaint(seriatim(tmp_path, "run", "shop:app"), "shop.db", "seriatim init")
    complaint(seriatim(tmp_path, "status"), "shop.db", "seriatim init")


def test_a_store_of_a_newer_version_is_left_alone(shop):
    shop.write("UPDATE schema_version SET version = 99")
    complaint(here(shop.folder, "run", "shop:app"), "99", "version", "release")
    complaint(here(shop.folder, "init"), "99")


def test_a_store_with_a_table_missing_names_it(shop):
    shop.write("DROP TABLE operator_action")
    complaint(here(shop.folder, "run", "shop:app"), "operator_action")


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("sqlite:////no/such/folder/shop.db", ["/no/such/folder", "make it"]),
        ("sqlite:///{folder}/not-a-database", ["not-a-database", "not a database"]),
        ("sqlite:///{folder}", ["unable to open"]),
        ("sqlite://", ["file", "sqlite:///"]),
        ("sqlite:///:memory:", ["file"]),
        ("oracle://u:geheim@host/x", ["oracle", "supported"]),
        ("shop.db", ["store URL", "sqlite:///"]),
        ("", ["store URL"]),
        ("mysql+pymysql://u:geheim@host:port/x", []),
    ],
)
def test_a_store_that_can_t_be_opened_is_named_without_its_secret(shop, url, names):
    (shop.folder / "not-a-database").write_bytes(b"these are no tables\n" * 300)
    ended = here(shop.folder, "run", "shop:app", "--store", url.format(folder=shop.folder))
    assert "geheim" not in complaint(ended, *names)


def test_a_store_that_may_not_be_written_is_told(shop):
    lock = shop.folder / "shop.db.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()  # root may write any file, but no directory
    complaint(seriatim(shop.folder, "run", "shop:app"), "shop.db.lock")


@contextmanager
def hurried(monkeypatch, seconds=0.3):
    """Stores of the app that wait no longer than this for a lock."""

    def hurry(connection, _):
        connection.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}").close()

    def opened(url, **options):
        store = open_store(url, lock_timeout_s=seconds, **options)
        event.listen(store._engine, "connect", hurry)  # noqa: SLF001 - nobody else has its connections
        return store

    with monkeypatch.context() as patch:
        patch.setattr("seriatim.core.app.open_store", opened)
        yield


@contextmanager
def held_by_a_file_lock(rig):
    path = rig.folder / "shop.db.lock"
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def held_by_a_transaction(rig):
    with closing(sqlite3.connect(rig.folder / "shop.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


HELD = {"a lock file": held_by_a_file_lock, "a transaction": held_by_a_transaction}


@pytest.mark.parametrize("how", HELD)
def test_a_locked_store_at_the_start_is_an_error_that_names_it(rig, monkeypatch, how):
    app = rig.app()
    steps(app)
    with hurried(monkeypatch), HELD[how](rig), pytest.raises(StoreUnavailable, match=r"busy|locked"):  # noqa: SIM117
        with app.worker(rig.witness):
            pass


@pytest.mark.parametrize("how", HELD)
def test_a_store_that_is_locked_while_a_worker_runs_pauses_it_and_nothing_is_lost(rig, monkeypatch, how):
    app = rig.app(lease_s=5)
    orders = steps(app)
    with hurried(monkeypatch), rig.working(app) as witness:
        first = rig.send(orders, "a")
        wait_until(rig.ledger, "the first effect")
        with HELD[how](rig):
            second = rig.send(orders, "a")
            wait_until(lambda: witness.seen("lane paused"), "the pause")
        wait_until(lambda: len(rig.ledger()) == 2, "the resumption")

    assert rig.ledger() == [first, second]
    [paused, *_] = witness.seen("lane paused")
    assert "busy" in paused["error"] or "locked" in paused["error"]
    assert rig.record(second)[3] == 1, "the store's fault was charged to the message"


def test_a_locked_store_names_the_process_that_holds_it(shop):
    holder = (
        "from seriatim.core.filelock import FileLock; import time; lock = FileLock('shop.db.lock');"
        "lock.acquire(5); open('held', 'w').close(); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", holder], cwd=shop.folder)
    try:
        wait_until((shop.folder / "held").exists, "the lock")
        ended = here(shop.folder, "status")
        assert ended.code == 0
        assert str(process.pid) in ended.out
        with (
            closing(open_store(shop.store, lock_timeout_s=0.2)) as store,
            closing(store.session()) as session,
            pytest.raises(StoreUnavailable, match=str(process.pid)),
            session.transaction(),
        ):
            pass
    finally:
        process.kill()
        process.wait()


def test_a_full_store_pauses_the_worker_and_nothing_is_lost(rig, monkeypatch):
    # P10: the database may not grow for a while
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=QUICK)
    full = [False]

    @orders.on("step")
    def step(event, ctx):
        enter(ctx, "x" * 200_000 if full[0] else "")

    def opened(url, **options):
        store = open_store(url, **options)
        event.listen(store._engine, "begin", limit)  # noqa: SLF001 - nobody else has its connections
        return store

    def limit(connection):
        pages = connection.connection.driver_connection.execute("PRAGMA page_count").fetchone()[0]
        most = pages + 5 if full[0] else 1_000_000
        connection.connection.driver_connection.execute(f"PRAGMA max_page_count = {most}").close()

    monkeypatch.setattr("seriatim.core.app.open_store", opened)
    with rig.working(app) as witness:
        full[0] = True
        biz_key = rig.send(orders, "a")
        wait_until(lambda: witness.seen("lane paused"), "the pause")
        assert rig.ledger() == []
        full[0] = False
        wait_until(rig.ledger, "the resumption")
    assert "full" in witness.seen("lane paused")[0]["error"]
    assert rig.record(biz_key)[3] == 1


# the broker


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("kafka://u:geheim@host/x", ["kafka", "embedded"]),
        ("nothing", ["nothing", "embedded"]),
        ("", ["broker URL", "embedded"]),
        ("embedded:", ["embedded:", "file"]),
        ("embedded://host/log.db", ["host"]),
        ("embedded:log.db?speed=1", ["speed", "retention_s"]),
        ("embedded:log.db?retention_s=never", ["retention_s", "never"]),
        ("embedded:/no/such/folder/log.db", ["/no/such/folder", "make it"]),
        ("embedded:{folder}/shop.db", ["shop.db", "file of its own"]),
    ],
)
def test_a_broker_that_can_t_be_opened_is_named_without_its_secret(shop, url, names):
    ended = here(shop.folder, "run", "shop:app", "--broker", url.format(folder=shop.folder))
    assert "geheim" not in complaint(ended, *names)


# the app


MODULES = {
    "nothing": ("nowhere:app", None, ["nowhere"]),
    "no name": ("shop", None, ["shop", "MODULE:NAME"]),
    "no module": (":app", None, ["MODULE:NAME"]),
    "no such app": ("shop:shop", None, ["shop", "app"]),
    "not an app": ("shop:orders", None, ["shop:orders", "seriatim.App"]),
    "a file's name": ("shop.py:app", None, ["shop.py"]),
    "a mistake in it": ("odd:app", "def broken(:", ["odd", "SyntaxError"]),
    "it raises": ("odd:app", "\n1 / 0\n", ["odd", "ZeroDivisionError", "odd.py:"]),
    "it imports nothing there": ("odd:app", "import nowhere_at_all", ["odd", "nowhere_at_all"]),
    "it exits": ("odd:app", "raise SystemExit(0)", ["odd"]),
    "no topic": ("odd:app", "", ["shop", "app.topic"]),
    "no handler": ("odd:app", "app.topic('orders', partitions=2)", ["orders", ".on("]),
    "twice": ("odd:app", "app.topic('o', partitions=2)\napp.topic('o', partitions=2)", ["'o'", "twice"]),
    "no partitions": ("odd:app", "app.topic('o', partitions=0)", ["partition"]),
    "a policy that isn't": ("odd:app", "app.topic('o', partitions=2, on_failure='hope')", ["hope", "park", "block"]),
    "a handler twice": ("odd:app", "t = app.topic('o', partitions=2)\nt.on('a')(id)\nt.on('a')(id)", ["already"]),
}  # fmt: skip


@pytest.mark.parametrize("how", MODULES)
def test_an_app_that_can_t_be_loaded_is_told_by_what_is_wrong_with_it(shop, how):
    target, source, names = MODULES[how]
    if source is not None:
        write_program(shop.folder, source, "odd")
    complaint(here(shop.folder, "run", target), *names)


# settings


SETTINGS = {
    "a name that isn't": ("lanez = 2", {}, [], ["lanez", "seriatim.toml", "lanes"]),
    "a wrong type": ('lanes = "two"', {}, [], ["lanes", "integer"]),
    "out of range": ("lanes = 0", {}, [], ["lanes", "greater than or equal to 1"]),
    "not TOML": ("lanes = = 2", {}, [], ["seriatim.toml", "TOML"]),
    "a table": ("[lanes]\nmost = 2", {}, [], ["lanes", "integer"]),
    "in the environment": ("", {"SERIATIM_LANES": "many"}, [], ["SERIATIM_LANES", "integer"]),
    "a kind of log": ("", {"SERIATIM_LOG": "xml"}, [], ["SERIATIM_LOG", "human", "json"]),
    "a flag of the wrong type": ("", {}, ["--lanes", "two"], ["--lanes"]),
    "a flag out of range": ("", {}, ["--workers", "0"], ["workers"]),
    "a flag that isn't": ("", {}, ["--lane", "2"], ["--lane"]),
    "a level of log": ("", {}, ["--log-level", "loud"], ["log_level", "DEBUG"]),
    "not a number": ("", {"SERIATIM_LEASE_S": "nan"}, [], ["lease_s"]),
    "a negative idle": ("", {}, ["--until-idle", "-1"], ["until-idle"]),
    "a name that isn't, in the environment": ("", {"SERIATIM_LANEZ": "2"}, [], ["SERIATIM_LANEZ"]),
}


@pytest.mark.parametrize("how", SETTINGS)
def test_a_setting_that_can_t_be_is_named_with_where_it_can_be_set(shop, how):
    toml, environment, flags, names = SETTINGS[how]
    (shop.folder / "seriatim.toml").write_text(toml)
    ended = here(shop.folder, "run", "shop:app", "--until-idle", "0.1", *flags, **environment)
    complaint(ended, *names)


@pytest.mark.parametrize("content", [b"lanes = 2 # \xff", None])
def test_a_settings_file_that_can_t_be_read_is_named(shop, content):
    path = shop.folder / "seriatim.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    complaint(here(shop.folder, "run", "shop:app", "--until-idle", "0.1"), "seriatim.toml")


def test_more_workers_than_partitions_is_explained_and_nothing_is_lost(shop):
    # R2: workers ≤ partitions is checked and explained
    biz_key = shop.send(App("x").topic("orders", partitions=2), "a")
    with Program(shop.folder, "run", "shop:app", "--workers", "4", "--until-idle", "0.5") as program:
        ended = program.wait()
    assert shop.ledger() == [biz_key]
    assert ended.code == 0, ended
    assert "4 lanes for the 2 partitions of topic orders: 2 stand by" in ended.err


# other commands


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["schema", "--dialect", "oracle"], ["oracle", "mysql"]),
        (["state-graph", "shop:app"], ["moves="]),
        (["state-graph", "nowhere:app"], ["nowhere"]),
        (["route", "a", "--partitions", "0"], ["--partitions"]),
        (["status", "--limit", "0"], ["--limit"]),
        (["frobnicate"], ["frobnicate"]),
    ],
)
def test_every_command_says_what_it_can_t_do(shop, arguments, names):
    complaint(here(shop.folder, *arguments), *names)


def test_a_mistake_in_a_program_s_own_calls_names_the_remedy():
    with pytest.raises((ConfigurationError, InvalidMessage), match="consumer group"):
        App("g" * 65)
    with pytest.raises(ConfigurationError, match="keep_body"):
        App("shop").topic("orders", partitions=2, keep_body="sometimes")
    with pytest.raises(ConfigurationError, match=r"orders.*partitions"):
        App("shop").topic("orders", partitions=["a", "a"])


def test_schema_mismatch_is_the_store_s_and_the_configuration_s_fault():
    assert issubclass(SchemaMismatch, StoreError)
    assert issubclass(SchemaMismatch, ConfigurationError)


@pytest.mark.parametrize(
    ("content", "options", "names"),
    [
        ("case,act\n1,a\n", {"--key": "kase"}, ["kase", "case, act"]),
        ("case,act\n1,a\n", {"--type": "action"}, ["action", "case, act"]),
        ("case,act\n1,a\n", {"--biz-key": "{nr}"}, ["nr"]),
        ("", {}, []),
        (None, {}, ["events.csv"]),
        ("case,act\n,a\n", {}, ["line 2"]),
        ("case,act\n1,a\n", {"--topic": ""}, ["topic"]),
        ("case,act\n1,a\n", {"--partitions": "none"}, ["--partitions"]),
        (b"case,act\n\xff\xfe,a\n", {}, ["UTF-8"]),
    ],
)
def test_a_replay_of_a_file_that_doesn_t_fit_names_the_column_or_the_line(shop, content, options, names):
    path = shop.folder / "events.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    given = {"--topic": "orders", "--partitions": "2", "--key": "case", "--type": "act", "--biz-key": "{case}:{act}"}
    flat = [part for option in (given | options).items() for part in option]
    complaint(here(shop.folder, "replay", "events.csv", *flat), *names)
    shop.run(_steps_app(shop))
    assert shop.ledger() == []


def _steps_app(rig):
    app = rig.app()
    steps(app, partitions=2)
    return app
