"""The front filter in Redis.

A key holds the store's incarnation, the group, the topic and the biz_key; its value digest, type and outcome. Both are
ASCII, so that no option of the URL changes what is read. An entry is a fact that stays true for as long as the store
has that incarnation: one that was lost, or came back with an old snapshot of Redis, misleads nobody.

**A store that was restored from a backup, or failed over with a lost tail, is another incarnation**: it has forgotten
effects that the filter remembers. Whoever restores it must give it a new one before anything is consumed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from seriatim.core.beside.redis import FAILURES, open_client
from seriatim.core.brokers import redact
from seriatim.core.decision import Outcome
from seriatim.core.errors import SeriatimError
from seriatim.core.filtering.breaker import Breaker
from seriatim.core.filtering.port import FINAL, FilterEntry

LOGGER = logging.getLogger("seriatim")

_DIGEST_BYTES = 32
_OUTCOMES = {outcome.value: outcome for outcome in FINAL}
_T = TypeVar("_T")


class RedisFilter:
    """A filter in the Redis at `url`, under the store's `incarnation`, which is asked once."""

    def __init__(
        self,
        url: str,
        incarnation: Callable[[], str],
        *,
        ttl_s: float,
        connect_s: float,
        read_s: float,
        breaker: Breaker,
    ) -> None:
        self._url = url
        self._client = open_client(url, connect_s=connect_s, read_s=read_s)
        self._ask_incarnation = incarnation
        self._incarnation: str | None = None
        self._ttl_ms = int(ttl_s * 1000)
        self._longest_s = connect_s + read_s
        self._breaker = breaker
        self._closed = False

    def known(self, group: str, topic: str, biz_keys: Sequence[str]) -> dict[str, FilterEntry]:
        """Those of `biz_keys` that are surely final."""
        keys = self._keys(group, topic, biz_keys)
        if not keys or not self._breaker.passes():
            return {}
        values = self._call(lambda: self._client.mget(list(keys.values()))) or []
        entries = {biz_key: parse(value) for biz_key, value in zip(keys, values, strict=False)}
        return {biz_key: entry for biz_key, entry in entries.items() if entry is not None}

    def remember(self, group: str, topic: str, entries: Mapping[str, FilterEntry]) -> None:
        """Remember these, after their commit."""
        final = {biz_key: entry for biz_key, entry in entries.items() if entry.outcome in FINAL}
        keys = self._keys(group, topic, list(final))
        if not keys or not self._breaker.passes():
            return

        def write() -> None:
            pipeline = self._client.pipeline(transaction=False)
            for biz_key, key in keys.items():
                pipeline.set(key, written(final[biz_key]), px=self._ttl_ms)
            pipeline.execute()

        self._call(write)

    def forget(self, group: str, topic: str, biz_keys: Sequence[str]) -> bool:
        """Forget these; whether they surely are."""
        if not biz_keys:
            return True
        keys = self._keys(group, topic, biz_keys)
        return bool(keys) and self._call(lambda: self._client.delete(*keys.values())) is not None

    def _keys(self, group: str, topic: str, biz_keys: Sequence[str]) -> dict[str, str]:
        """The key of each; none where the store's incarnation can't be had."""
        if self._closed:
            return {}
        if self._incarnation is None:
            try:
                self._incarnation = self._ask_incarnation()
            except SeriatimError:  # the store has trouble of its own, and whoever works on it will meet it
                return {}
        scope = [self._incarnation, group, topic]
        return {biz_key: f"seriatim:filter:{json.dumps([*scope, biz_key])}" for biz_key in biz_keys}

    def _call(self, action: Callable[[], _T]) -> _T | None:
        """What Redis answers, None where it fails; the breaker is told, and its changes are logged."""
        began = time.monotonic()
        try:
            answer = action()
        except FAILURES as error:
            self._failed(str(error) or type(error).__name__)
            return None
        took_s = time.monotonic() - began
        if took_s > self._longest_s:
            self._failed(f"an answer took {took_s * 1000:.0f} ms")
        elif self._breaker.succeeded():
            LOGGER.warning("filter back", extra={"fields": {"filter": self.describe()}})
        return answer

    def _failed(self, why: str) -> None:
        if self._breaker.failed():
            fields = {"filter": self.describe(), "error": why, "meanwhile": "the store alone tells duplicates"}
            LOGGER.warning("filter away", extra={"fields": fields})

    def close(self) -> None:
        """Let go of every connection."""
        self._closed = True
        self._client.close()

    def describe(self) -> str:
        """The URL without a secret."""
        return redact(self._url)


def written(entry: FilterEntry) -> str:
    """An entry as text."""
    return json.dumps({"v": 1, "digest": entry.digest.hex(), "type": entry.type, "outcome": entry.outcome.value})


def parse(value: Any) -> FilterEntry | None:
    """The entry that a text stands for; None for none, and for whatever isn't one."""
    if value is None:
        return None
    try:
        read = json.loads(value)
        version, digest, kind = read["v"], bytes.fromhex(read["digest"]), read["type"]
        outcome: Outcome = _OUTCOMES[read["outcome"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if version != 1 or len(digest) != _DIGEST_BYTES or not isinstance(kind, (str, type(None))):
        return None
    return FilterEntry(digest, kind, outcome)
