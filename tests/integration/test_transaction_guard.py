"""What a handler may do with the transaction of its batch, on the real store: `ctx.tx`, its session and its cursor.

Each story runs a batch of three messages of three keys, the middle one with the handler in question. Whatever that one
does: the others have their effects, and it has its own with its record, or neither.
"""

from __future__ import annotations

import contextlib

import pytest
from sqlalchemy import String, column, delete, insert, table, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from seriatim.core.decision import Policy
from seriatim.core.envelope import seal
from seriatim.core.errors import ForbiddenStatement, StoreUnavailable
from seriatim.core.execution import Execution, TransactionBroken
from seriatim.core.holding import Holding
from seriatim.core.message import Delivery, Message
from seriatim.core.passing import Limits, Part
from seriatim.core.store import open_store
from seriatim.core.store.port import Scope
from seriatim.core.task import of_delivery
from seriatim.core.topic import Topic

SCOPE = Scope("warehouse", "orders")
STOCK = table("stock", column("sku", String))


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "stock"

    sku: Mapped[str] = mapped_column(primary_key=True)


class Scene:
    """A store with a business table `stock` that holds the SKU "taken", and a lane's way of running a batch."""

    def __init__(self, url):
        self.store = open_store(url, lock_timeout_s=2.0)
        self.store.init()
        self.store.declare(SCOPE, ["0"])
        self.topic = Topic("orders", ("0",), policy=Policy(tries_at_once=1))
        self.topic.on("plain")(lambda _event, ctx: add(ctx.tx, ctx.message.sharding_key))
        self.session = self.store.session()
        with self.session.transaction():
            self.session.run(text("CREATE TABLE stock (sku VARCHAR PRIMARY KEY)"))
            self.session.run(text("INSERT INTO stock VALUES ('taken')"))
        self.holding = Holding.of(self.session.leases.claim(SCOPE, "0", "me", 60_000_000))

    def run(self, handler, *, savepoints=False):
        """The error of the middle message, None where it went well."""
        self.topic.on("odd")(handler)
        kinds = {"before": "plain", "odd": "odd", "after": "plain"}
        tasks = tuple(of_delivery(self.topic, self.delivery(key, kind)) for key, kind in kinds.items())
        limits = Limits(ttl=60_000_000, batch_s=60.0, max_response=1000)
        part = Part(self.holding, tasks)
        done = Execution(self.session, SCOPE, self.topic, limits, [part], savepoints=savepoints).execute()
        outcomes = {verdict.task.biz_key: verdict.outcome.value for verdict in done.verdicts}
        assert outcomes["before"] == outcomes["after"] == "applied"
        (verdict,) = [verdict for verdict in done.verdicts if verdict.task.biz_key == "odd"]
        assert outcomes["odd"] == ("parked" if verdict.error else "applied")
        return verdict.error or None

    def delivery(self, key, kind):
        message = Message("orders", key, key, kind, b"{}", produced_at=1.0)
        return Delivery("orders", "0", seal(message), b"{}", received_at=1.0)

    def stock(self):
        with self.store.read() as connection:
            return sorted(set(connection.execute(text("SELECT sku FROM stock")).scalars()) - {"taken"})

    def record(self):
        with self.store.read() as connection:
            query = "SELECT status, response_body FROM idempotent_record WHERE biz_key = 'odd'"
            return tuple(connection.execute(text(query)).one())

    def close(self):
        self.session.close()
        self.store.close()


def add(tx, sku):
    tx.execute(insert(STOCK).values(sku=sku))


@pytest.fixture
def scene(tmp_path):
    with contextlib.closing(Scene(f"sqlite:///{tmp_path}/store.db")) as scene:
        yield scene


@pytest.fixture(params=[False, True], ids=["one savepoint", "a savepoint each"])
def savepoints(request):
    return request.param


def failed_alone(scene, error, words):
    """The message failed with these words; nothing of it is committed, and all of the others is."""
    assert error is not None
    assert words in error
    assert scene.stock() == ["after", "before"]
    assert scene.record()[0] == 3


def went_well(scene, error, *skus):
    assert error is None
    assert scene.stock() == sorted(["after", "before", *skus])
    assert scene.record()[0] == 2


# -- what is refused, before it is sent

WAYS = {
    "execute": lambda ctx, statement: ctx.tx.execute(text(statement)),
    "session": lambda ctx, statement: ctx.session.execute(text(statement)),
    "cursor": lambda ctx, statement: ctx.cursor.execute(statement),
    "connection": lambda ctx, statement: ctx.session.connection().exec_driver_sql(statement),
}
REFUSED = [
    "COMMIT",
    "commit",
    "ROLLBACK",
    "END",
    "BEGIN",
    "BEGIN IMMEDIATE",
    "SAVEPOINT seriatim_claimed",
    "ROLLBACK TO SAVEPOINT seriatim_claimed",
    "RELEASE SAVEPOINT seriatim_claimed",
    "RELEASE seriatim_message",
    "CREATE TABLE t (n)",
    "ALTER TABLE stock ADD n",
    "DROP TABLE stock",
    "PRAGMA synchronous = OFF",
    "ATTACH ':memory:' AS other",
    "VACUUM",
    "SET autocommit = 1",
    "LOCK TABLES stock WRITE",
    "XA END 'x'",
    "  \n\t COMMIT",
    "/* a comment */ COMMIT",
    "-- a comment\nCOMMIT",
    "/**//* two */--\n COMMIT",
    "-- only a comment",
    "/*!50000 COMMIT */",
    "((COMMIT",
    ";COMMIT",
    " ; ; COMMIT",
    "\ufeffCOMMIT",
    "",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("statement", REFUSED)
def test_a_statement_that_would_end_or_change_the_transaction_is_refused(scene, way, statement):
    def handler(_event, ctx):
        add(ctx.tx, "odd")
        WAYS[way](ctx, statement)

    failed_alone(scene, scene.run(handler), "")
    assert scene.record()[0] == 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("statement", ["COMMIT", ";COMMIT", "\ufeffROLLBACK"])
def test_a_refused_statement_was_never_sent_even_if_the_handler_goes_on(scene, way, statement):
    def handler(_event, ctx):
        add(ctx.tx, "odd")
        with contextlib.suppress(ForbiddenStatement):
            WAYS[way](ctx, statement)

    error = scene.run(handler)
    assert scene.stock() == (["after", "before"] if error else ["after", "before", "odd"])
    assert scene.record()[0] == (3 if error else 2)


def test_the_refusal_names_the_statement_and_the_remedy(scene):
    error = scene.run(lambda _event, ctx: ctx.tx.execute(text("COMMIT")))
    assert "may not send COMMIT" in error
    assert "tx.savepoint()" in error


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO stock VALUES ('odd')",
        "/* COMMIT */ INSERT INTO stock VALUES ('odd')",
        "-- ROLLBACK\nINSERT INTO stock VALUES ('odd')",
        "WITH one AS (SELECT 'odd' AS sku) INSERT INTO stock SELECT sku FROM one",
        "REPLACE INTO stock VALUES ('odd')",
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_ordinary_statements_go_through(scene, way, statement):
    went_well(scene, scene.run(lambda _event, ctx: drop(WAYS[way](ctx, statement))), "odd")


def drop(_result):
    """A handler's return value is its response; a cursor is none."""


# -- errors


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_that_swallows_an_error_has_failed_all_the_same(scene, way, savepoints):
    def handler(_event, ctx):
        add(ctx.tx, "odd")
        with contextlib.suppress(Exception):
            WAYS[way](ctx, "INSERT INTO stock VALUES ('taken')")
        return "fine"

    failed_alone(scene, scene.run(handler, savepoints=savepoints), "UNIQUE constraint failed")


def test_after_an_error_every_use_is_refused(scene, savepoints):
    seen = []

    def handler(_event, ctx):
        session, cursor = ctx.session, ctx.cursor
        with contextlib.suppress(IntegrityError):
            add(ctx.tx, "taken")
        for use in (
            lambda: add(ctx.tx, "odd"),
            lambda: ctx.session,
            lambda: ctx.cursor,
            lambda: ctx.tx.savepoint().__enter__(),
            lambda: session.execute(insert(STOCK).values(sku="odd")),
            lambda: cursor.execute("INSERT INTO stock VALUES ('odd')"),
        ):
            with pytest.raises(ForbiddenStatement, match="already failed") as caught:
                use()
            seen.append(caught.value.__cause__ is not None)

    failed_alone(scene, scene.run(handler, savepoints=savepoints), "UNIQUE constraint failed")
    assert seen
    assert all(seen)


@pytest.mark.parametrize(
    "error", [BaseException("odd"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError()]
)
def test_whatever_a_handler_lets_out_is_its_messages_failure(scene, error, savepoints):
    def handler(_event, ctx):
        add(ctx.tx, "odd")
        raise error

    failed_alone(scene, scene.run(handler, savepoints=savepoints), "")


def test_a_failure_wrapped_in_another_is_still_the_first(scene):
    def handler(_event, ctx):
        try:
            add(ctx.tx, "taken")
        except IntegrityError as error:
            raise ValueError("of my own") from error

    failed_alone(scene, scene.run(handler), "of my own")


def test_a_response_that_cant_be_stored_undoes_what_was_written(scene, savepoints):
    def handler(_event, ctx):
        add(ctx.tx, "odd")
        return object()

    failed_alone(scene, scene.run(handler, savepoints=savepoints), "can't be stored")


# -- savepoints


def test_a_savepoint_heals_an_error_of_the_handlers_own(scene, savepoints):
    def handler(_event, ctx):
        with contextlib.suppress(IntegrityError), ctx.tx.savepoint():
            add(ctx.tx, "lost")
            add(ctx.tx, "taken")
        add(ctx.tx, "odd")

    went_well(scene, scene.run(handler, savepoints=savepoints), "odd")


def test_savepoints_within_savepoints_heal_at_their_own_depth(scene, savepoints):
    def handler(_event, ctx):
        with ctx.tx.savepoint():
            add(ctx.tx, "outer")
            with contextlib.suppress(IntegrityError), ctx.tx.savepoint():
                add(ctx.tx, "inner")
                add(ctx.tx, "taken")
            add(ctx.tx, "odd")

    went_well(scene, scene.run(handler, savepoints=savepoints), "outer", "odd")


def test_an_outer_savepoint_undoes_an_inner_one_that_went_well(scene):
    def handler(_event, ctx):
        with contextlib.suppress(LookupError), ctx.tx.savepoint():
            with ctx.tx.savepoint():
                add(ctx.tx, "inner")
            raise LookupError
        add(ctx.tx, "odd")

    went_well(scene, scene.run(handler), "odd")


def test_an_error_swallowed_inside_a_savepoint_isnt_healed(scene, savepoints):
    def handler(_event, ctx):
        with ctx.tx.savepoint():
            with contextlib.suppress(IntegrityError):
                add(ctx.tx, "taken")
            add(ctx.tx, "odd")

    failed_alone(scene, scene.run(handler, savepoints=savepoints), "already failed")


def test_an_error_swallowed_before_a_savepoint_isnt_healed_by_it(scene):
    def handler(_event, ctx):
        with contextlib.suppress(IntegrityError):
            add(ctx.tx, "taken")
        with contextlib.suppress(Exception), ctx.tx.savepoint():
            add(ctx.tx, "odd")

    failed_alone(scene, scene.run(handler), "UNIQUE constraint failed")


def test_an_error_of_no_statement_undoes_a_savepoint_and_poisons_nothing(scene):
    def handler(_event, ctx):
        with contextlib.suppress(ValueError), ctx.tx.savepoint():
            add(ctx.tx, "lost")
            raise ValueError
        add(ctx.tx, "odd")

    went_well(scene, scene.run(handler), "odd")


# -- the ORM


def test_a_session_is_flushed_inside_its_messages_turn(scene, savepoints):
    went_well(scene, scene.run(lambda _event, ctx: ctx.session.add(Item(sku="odd")), savepoints=savepoints), "odd")


def test_a_session_and_plain_statements_see_each_other(scene):
    def handler(_event, ctx):
        add(ctx.tx, "plain")
        assert ctx.session.get(Item, "plain") is not None
        ctx.session.add(Item(sku="odd"))
        ctx.session.flush()
        ctx.tx.execute(delete(STOCK).where(STOCK.c.sku == "plain"))

    went_well(scene, scene.run(handler), "odd")


@pytest.mark.parametrize("when", ["in the handler", "at the end"])
def test_a_flush_that_fails_fails_its_message_alone(scene, when, savepoints):
    def handler(_event, ctx):
        ctx.session.add(Item(sku="odd"))
        ctx.session.flush()
        ctx.session.add(Item(sku="taken"))
        if when == "in the handler":
            ctx.session.flush()

    failed_alone(scene, scene.run(handler, savepoints=savepoints), "UNIQUE constraint failed")


def test_a_flush_that_failed_and_was_swallowed_has_failed_all_the_same(scene, savepoints):
    def handler(_event, ctx):
        ctx.session.add(Item(sku="taken"))
        with contextlib.suppress(IntegrityError):
            ctx.session.flush()
        with contextlib.suppress(Exception):
            ctx.session.rollback()

    failed_alone(scene, scene.run(handler, savepoints=savepoints), "")


MISUSES = {
    "commit": lambda session: session.commit(),
    "rollback": lambda session: session.rollback(),
    "close": lambda session: session.close(),
    "reset": lambda session: session.reset(),
    "invalidate": lambda session: session.invalidate(),
    "connection commit": lambda session: session.connection().commit(),
    "connection rollback": lambda session: session.connection().rollback(),
    "transaction commit": lambda session: session.get_transaction().commit(),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
@pytest.mark.parametrize("swallowed", [False, True], ids=["let out", "swallowed"])
def test_no_misuse_of_a_session_ends_the_batchs_transaction(scene, misuse, swallowed):
    """Refused or harmless: an effect without its record, or a record without its effect, there is never."""

    def handler(_event, ctx):
        ctx.session.add(Item(sku="odd"))
        ctx.session.flush()
        with contextlib.suppress(Exception) if swallowed else contextlib.nullcontext():
            misuse(ctx.session)

    try:
        error = scene.run(handler)
    except (TransactionBroken, StoreUnavailable):
        assert scene.stock() == []  # rolled back whole; the lane finds out which one did it
        return
    kept = {"after", "before"} | ({"odd"} & set(scene.stock()))
    assert set(scene.stock()) == kept
    assert scene.record()[0] == (3 if error else 2)
    if error:
        assert "odd" not in kept


def test_a_session_commit_is_refused_with_the_reason(scene):
    def handler(_event, ctx):
        ctx.session.add(Item(sku="odd"))
        ctx.session.commit()

    failed_alone(scene, scene.run(handler), "committed by the lane")


def test_a_nested_part_of_a_session_heals_like_a_savepoint_or_fails_the_message(scene):
    def handler(_event, ctx):
        with contextlib.suppress(IntegrityError), ctx.session.begin_nested():
            ctx.session.add(Item(sku="taken"))
        ctx.session.add(Item(sku="odd"))

    error = scene.run(handler)
    assert scene.stock() == (["after", "before"] if error else ["after", "before", "odd"])


# -- after the turn


def test_the_transaction_cant_be_used_after_its_turn(scene):
    kept = []

    def handler(_event, ctx):
        kept.append((ctx.tx, ctx.cursor))

    went_well(scene, scene.run(handler))
    ((tx, cursor),) = kept
    for use in (
        lambda: add(tx, "late"),
        lambda: tx.session,
        tx.cursor,
        lambda: cursor.execute("INSERT INTO stock VALUES ('late')"),
    ):
        with pytest.raises(ForbiddenStatement, match="only while its handler runs"):
            use()
    assert scene.stock() == ["after", "before"]


def test_a_handler_that_ends_the_transaction_past_every_guard_is_told_from_a_failing_store(scene):
    """ON CONFLICT ROLLBACK ends it inside the database. Nothing is kept; the lane looks for the one that did it."""

    def handler(_event, ctx):
        session = ctx.session
        with contextlib.suppress(Exception):
            session.execute(text("INSERT OR ROLLBACK INTO stock VALUES ('taken')"))
        with contextlib.suppress(Exception):
            session.execute(text("INSERT INTO stock VALUES ('leak')"))

    with pytest.raises(TransactionBroken):
        scene.run(handler)
    assert scene.stock() == []
    with scene.session.transaction():
        assert scene.session.leases.hold_row(SCOPE, "0").effect == 1
