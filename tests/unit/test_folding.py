"""One UPDATE for many rows: what is said once, and what can't be folded."""

import pytest
from sqlalchemy import bindparam, case, column, func, table, update
from sqlalchemy.dialects import mysql

from seriatim.core.store import folding

T = table("t", column("k"), column("a"), column("b"))
STATEMENT = (
    update(T)
    .where((T.c.k == bindparam("at_key")) & (T.c.b == bindparam("seen")))
    .values(a=func.coalesce(T.c.a, bindparam("a1")), b=case((bindparam("keep"), T.c.b), else_=0))
)


MOVE = (
    update(T)
    .where((T.c.k == bindparam("at_key")) & (T.c.a == bindparam("seen")))
    .values(a=bindparam("to"), b=func.now())
)


def no_index(table, column):
    raise AssertionError("nobody asks")


@pytest.fixture
def folded(monkeypatch):
    monkeypatch.setattr(folding.schema.metadata, "tables", {"t": T})
    return folding.fold(STATEMENT, mysql.dialect())


def rows(*varying, **shared):
    return [dict(shared) | row for row in varying]


def test_what_varies_is_joined_and_what_all_share_is_said_once(folded):
    sql, params = folded.render(rows({"at_key": 1, "a1": "x"}, {"at_key": 2, "a1": "y"}, seen=7, keep=False), no_index)
    assert sql == (
        "UPDATE (SELECT %s AS at_key, %s AS a1 UNION ALL SELECT %s, %s) AS v STRAIGHT_JOIN t"
        " ON t.k = v.at_key AND t.b = %s SET a=coalesce(t.a, v.a1), b=CASE WHEN %s THEN t.b ELSE %s END"
    )
    assert params == (1, "x", 2, "y", 7, False, 0)


def test_where_only_the_key_varies_it_is_a_list_held_to_the_index_whosever_table_it_is():
    moves = folding.fold(MOVE, mysql.dialect())
    asked = []
    given = rows({"at_key": "x"}, {"at_key": "y"}, {"at_key": "z"}, seen="CREATED", to="PAID")
    sql, params = moves.render(given, lambda *of: asked.append(of) or "ix")
    assert sql == "UPDATE t FORCE INDEX (`ix`) SET a=%s, b=now() WHERE t.k IN (%s, %s, %s) AND t.a = %s"
    assert params == ("PAID", "x", "y", "z", "CREATED")
    assert asked == [("t", "k")]
    assert moves.render(given, lambda *_: None) is None, "without an index the whole table would be locked"


def test_a_table_of_other_people_s_isn_t_joined():
    """Its collations aren't known, and two columns that disagree can't be compared."""
    moves = folding.fold(MOVE, mysql.dialect())
    assert moves.render(rows({"at_key": "x", "to": 1}, {"at_key": "y", "to": 2}, seen=0), no_index) is None


@pytest.mark.parametrize(
    ("keys", "size", "fits"),
    [
        ([1, 2, 3], 1, True),
        ([1, 2], 1, False),
        ([1, 2, 2], 1, False),
        (range(folding.MOST_ROWS), 1, True),
        (range(folding.MOST_ROWS + 1), 1, False),
        ([1, 2, 3], folding.MOST_BYTES // 3, True),
        ([1, 2, 3], folding.MOST_BYTES, False),
    ],
)
def test_too_few_too_many_too_large_or_the_same_row_twice_go_one_by_one(folded, keys, size, fits):
    assert folded.fits([{"at_key": key, "seen": 1, "a1": "x" * size, "keep": True} for key in keys]) is fits


def test_the_same_key_under_another_condition_is_another_row(folded):
    assert folded.fits([{"at_key": 1, "seen": seen, "a1": None, "keep": True} for seen in (1, 2, 3)])
