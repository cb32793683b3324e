"""The dialect of MySQL and MariaDB without a server: errors by whose fault, locks, the URL's options."""

import ssl

import pytest
from pymysql import err
from sqlalchemy import bindparam, column, create_engine, exc, make_url, select, table
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql

from seriatim.core.errors import ConfigurationError
from seriatim.core.faults import Fault
from seriatim.core.store.mysql import MysqlDialect

URL = "mysql+pymysql://shop:s3cret@db.test/shop"
SPEAKS = MySQLDialect_pymysql()


def dialect(options="", **named):
    return MysqlDialect(make_url(URL + options), **named)


def options_of(options=""):
    return dialect(options).options


# -- whose fault

STORE = [
    *(1040, 1203, 1226, 1129),  # connections
    *(1053, 1927, 1317, 1969, 3024, 4031),  # shut down, killed, over time
    *(1792, 1836),  # read-only
    *(1021, 1030, 1114, 1037, 1041),  # disk and memory
    *(1158, 1159, 1160, 1161, 2002, 2003, 2006, 2013),  # the network
]


@pytest.mark.parametrize("code", STORE)
def test_what_the_server_or_the_network_suffers_is_the_stores(code):
    raised = exc.OperationalError("UPDATE stock", {}, err.OperationalError(code, "whatever it says"))
    assert dialect().classify(raised) is Fault.STORE


@pytest.mark.parametrize("code", [1205, 1213, 3572, 1020])
def test_a_deadlock_and_a_lock_timeout_are_contention(code):
    assert dialect().classify(err.OperationalError(code, "try again")) is Fault.CONTENTION


@pytest.mark.parametrize(
    "raised",
    [
        err.IntegrityError(1062, "Duplicate entry"),
        err.IntegrityError(1452, "a foreign key constraint fails"),
        err.OperationalError(4025, "CONSTRAINT never_oversold failed"),
        err.DataError(1406, "Data too long"),
        err.DataError(1153, "over max_allowed_packet"),
        err.ProgrammingError(1064, "You have an error in your SQL syntax"),
        err.ProgrammingError(1146, "Table doesn't exist"),
        err.OperationalError(1305, "SAVEPOINT does not exist"),
        err.OperationalError(1290, "The server is running with --secure-file-priv so it cannot execute this"),
        ValueError("no database at all"),
        err.Error(),
    ],
)
def test_everything_else_is_the_handlers(raised):
    assert dialect().classify(raised) is Fault.HANDLER


@pytest.mark.parametrize("option", ["--read-only", "--super-read-only", "--innodb-read-only"])
def test_a_server_that_was_made_read_only_is_the_stores_affair(option):
    text = f"The MySQL server is running with the {option} option so it cannot execute this statement"
    assert dialect().classify(err.OperationalError(1290, text)) is Fault.STORE


def test_a_connection_that_the_driver_has_closed_is_the_stores():
    assert dialect().classify(err.InterfaceError(0, "")) is Fault.STORE
    assert dialect().classify(err.Error("Already closed")) is Fault.STORE


# -- statements


def test_the_clock_is_the_servers_in_utc_and_whole_microseconds():
    sql = str(select(dialect().now()).compile(dialect=SPEAKS))
    assert sql == "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"


def locking(query, *, wait, index="PRIMARY"):
    speaks = dialect()
    speaks.index_of = lambda *_: index
    return " ".join(str(speaks.lock(query, wait=wait).compile(dialect=SPEAKS)).split())


def of_keys():
    return select(column("status")).select_from(table("orders")).where(column("no").in_(bindparam("k", expanding=True)))


def test_a_lock_waits_or_leaves_locked_rows_out():
    one = select(column("a")).select_from(table("t")).where(column("a") == 1)
    assert locking(one, wait=True).endswith("FOR UPDATE")
    assert locking(one, wait=False).endswith("FOR UPDATE SKIP LOCKED")


def test_a_lock_over_a_list_of_keys_is_held_to_theindex_of_the_key():
    held = locking(of_keys(), wait=True)
    assert "FROM orders FORCE INDEX (`PRIMARY`) WHERE" in held
    assert held.endswith("ORDER BY no FOR UPDATE")  # or the whole index might be looked at, in its order
    assert "FORCE" not in locking(of_keys(), wait=True, index=None)


def test_a_locking_query_is_made_once():
    speaks, query = dialect(), of_keys()
    speaks.index_of = lambda *_: "PRIMARY"
    assert speaks.lock(query, wait=True) is speaks.lock(query, wait=True)


# -- the URL


def test_the_password_and_the_options_are_no_part_of_the_description():
    described = dialect("?ssl_verify=false").describe()
    assert described == "mysql+pymysql://shop:***@db.test/shop"


def test_every_wait_has_an_end():
    assert options_of() == {"connect_timeout": 10, "read_timeout": 60, "write_timeout": 60}
    assert options_of("?read_timeout=5")["read_timeout"] == 5


def test_tls_verifies_the_server_unless_told_not_to():
    assert "ssl" not in options_of()
    assert "ssl" not in options_of("?ssl=false")
    verified = options_of("?ssl=true")["ssl"]
    assert (verified.verify_mode, verified.check_hostname) == (ssl.CERT_REQUIRED, True)
    trusting = options_of("?ssl_verify=false")["ssl"]
    assert (trusting.verify_mode, trusting.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        (URL + "?found_rows=0", "found_rows"),
        (URL + "?client_flag=65536", "client_flag"),
        (URL + "?charset=latin1", "latin1"),
        (URL + "?read_timeout=soon", "read_timeout"),
        (URL + "?ssl_verify=maybe", "ssl_verify"),
        (URL + "?ssl_ca=/no/such/file.pem", "ssl_ca"),
        ("mysql://shop@db.test/shop", "mysql\\+pymysql"),
        ("mysql+pymysql://shop@db.test", "names no database"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_by_name(url, named):
    with pytest.raises(ConfigurationError, match=named) as refused:
        MysqlDialect(make_url(url))
    assert "s3cret" not in str(refused.value)


def test_many_write_at_once():
    speaks = dialect()
    assert not speaks.single_writer
    assert speaks.writer() is None
    with speaks.exclusive().hold():
        pass


def test_the_unused_engine_needs_no_server():
    engine = dialect().create_engine()
    assert create_engine(URL).dialect.name == engine.dialect.name
    engine.dispose()
