"""`seriatim trace`: everything that happened to a key, in the order of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from seriatim.cli.console import guarded, out, print_json
from seriatim.cli.showing import (
    GroupOption,
    JsonOption,
    StoreOption,
    TopicOption,
    clock,
    message_name,
    opened,
    plain,
    short,
    span,
)
from seriatim.compensation.story import ATTEMPT, EARLY, OPERATOR, OUTCOME, PARKED, RECEIVED, Event, Story, tell

SHOWN_ERROR = 120


@guarded
def trace(
    key: Annotated[str, typer.Argument(help="A sharding key, or the biz_key of one of its messages.")],
    store: StoreOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many events, the newest.")] = 200,
    json: JsonOption = False,
) -> None:
    """Tell a key's whole story: produced, received, attempts, errors, outcomes, states, operators; and how it stands.

    What came behind and then ran leaves no trace of its waiting, and duplicates are counted per partition alone.
    """
    with opened(store) as store_:
        stories = tell(store_, key, group=group, topic=topic, limit=limit)
    if json:
        print_json({"stories": [asdict(story) for story in stories]})
        return
    for story in stories:
        _print(story)


def _print(story: Story) -> None:
    where = ", ".join(story.partitions) or "none"
    title = f"key {story.key} of {story.group}/{story.topic}, partition {where}"
    if story.more:
        out.print("older events were left out: see more with --limit", highlight=False)
    table = Table("when (UTC)", "what", "message", "", title=escape(plain(title)), title_justify="left")
    for event in story.events:
        message = message_name(event.biz_key, event.type)
        table.add_row(clock(event.at), event.what, escape(message), escape("; ".join(_words(event))))
    out.print(table)
    out.print(escape(plain(_now(story))), highlight=False, soft_wrap=True)
    if story.duplicates:
        out.print(f"duplicates stopped in its partition, of whatever key: {story.duplicates:,}", highlight=False)


def _words(event: Event) -> Iterator[str]:
    of = {
        RECEIVED: _received,
        PARKED: _parked,
        ATTEMPT: _attempt,
        EARLY: _attempt,
        OPERATOR: _operator,
        OUTCOME: _outcome,
    }.get(event.what)
    if of is not None:
        yield from of(event.details)
    elif "seq" in event.details:
        yield f"seq {event.details['seq']}"


def _received(details: dict[str, Any]) -> Iterator[str]:
    yield f"partition {plain(details['partition'])}"


def _parked(details: dict[str, Any]) -> Iterator[str]:
    yield f"#{details['parked_id']}, now {details['place']} ({details['reason']})"
    if "wants" in details:
        yield f"waits for {plain(', '.join(details['wants']))}"


def _attempt(details: dict[str, Any]) -> Iterator[str]:
    error = short(details.get("error"), SHOWN_ERROR)
    yield f"attempt {details['attempts']}: {plain(details.get('error_type') or details['reason'])}: {error}"
    yield f"{details['then']}" + (f", next {clock(details['next_attempt_at'])}" if "next_attempt_at" in details else "")


def _operator(details: dict[str, Any]) -> Iterator[str]:
    about = f" #{details['parked_id']}" if "parked_id" in details else ""
    yield plain(f"{details['who']}: {details['verb']}{about}")
    before, after = details.get("before"), details.get("after")
    yield f"{_state(before)} → {_state(after) if after else 'removed'}"


def _state(values: Any) -> str:
    """What an audit entry says, in brief."""
    if not isinstance(values, dict):
        return plain(str(values))
    if "bytes" in values:
        return f"{values['bytes']:,} bytes {values['digest'][:8]}…"
    if "place" in values:
        return f"{values['place']} ({values['reason']}, {values['attempts']} attempts)"
    return ", ".join(f"{name} {plain(str(value))}" for name, value in values.items())


def _outcome(details: dict[str, Any]) -> Iterator[str]:
    came = " (redelivered)" if details.get("redelivered") else ""
    tried = f" at attempt {details['attempts']}" if details.get("attempts") else ""
    yield f"{details['outcome']}{tried}{came}"
    if "moved" in details:
        before, after = details["moved"]
        yield f"{plain(before or '(no row)')} → {plain(after or 'unchanged')}"
    if details.get("illegal"):
        yield "illegal: no path joins the two states"
    if "first_outcome" in details:
        yield f"at first {details['first_outcome']}"
    if details.get("edited"):
        yield "its body was edited by an operator"


def _now(story: Story) -> str:
    """How the key stands."""
    key = story.standing
    if key is None:
        return "now: free, nothing is parked"
    parts = []
    if key["held"]:
        parts.append("held by an operator")
    if key["depth"]:
        parts.append(
            f"blocked behind #{key['head']} for {span(story.now - key['since'])}, {key['depth']} messages wait"
        )
    if key["aside"]:
        parts.append(f"{key['aside']} aside")
    if key["depth"] and not key["held"]:
        due = key["next_attempt_at"]
        if due is None:
            parts.append("the head is dead: `seriatim parked show " + str(key["head"]) + "`")
        else:
            parts.append("due now" if due <= story.now else f"tried in {span(due - story.now)}")
    return "now: " + "; ".join(parts)
