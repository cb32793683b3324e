"""Seriatim's own audit, as a check among the others."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from examples.orders.app import orders
from examples.orders.check import Check
from examples.orders.processes import call
from examples.orders.traffic import Traffic
from seriatim import Message
from seriatim.core.digest import digest
from seriatim.core.manifest import Header, Sent
from seriatim.core.manifest import write_manifest as write

MANIFEST = "sent.jsonl"


def write_manifest(folder: Path, traffic: Traffic) -> None:
    """Write down what will be sent, for the audit to compare with."""
    copies = Counter(message.biz_key for message in traffic.messages)
    header = Header(orders.name, orders.partitions, traffic.distinct, len(traffic.messages), len(traffic.early))
    with write(folder / MANIFEST, header) as note:
        for message in {message.biz_key: message for message in traffic.messages}.values():
            note(_sent(message, copies[message.biz_key], early=message.biz_key in traffic.early))


def _sent(message: Message, copies: int, *, early: bool) -> Sent:
    return Sent(
        biz_key=message.biz_key,
        sharding_key=message.sharding_key,
        type=message.type,
        partition=orders.routing.route(message.sharding_key, orders.partitions),
        seq=message.seq,
        digest=digest(message.body),
        copies=copies,
        early=early,
    )


def run_audit(folder: Path) -> Check:
    """``seriatim audit``: each message, its record and its place in the order, beside what was sent and the ledger."""
    asked = ("--topic", orders.name, "--manifest", MANIFEST, "--ledger", "order_ledger:biz_key", "--json")
    ran = call(folder, "audit", *asked)
    try:
        found = json.loads(ran.stdout)
    except ValueError:
        return Check("the audit's answer can't be read", [ran.stderr.strip() or ran.stdout.strip() or "no answer"])
    wrong = [f"{kind.replace('_', ' ')}: {details[0]}" for kind, details in found["violations"].items() if details]
    if not wrong and ran.returncode:
        wrong = [f"exit status {ran.returncode}"]
    return Check(_in_words(found), wrong)


def _in_words(found: dict[str, Any]) -> str:
    return (
        f"{found['messages']:,} messages, {found['applied']:,} effects, {found['lost']} lost, "
        f"{found['double_effects']} double, {found['order_violations']} out of order; "
        f"half took effect within {found['p50_ms']:.0f} ms of their receipt, 99% within {found['p99_ms']:.0f} ms"
    )
