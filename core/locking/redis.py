"""Locks in Redis: SET NX PX with a random token, compared before anything is deleted or extended.

Each step is one script, so it is whole: no lock without an end, none deleted by another than its owner, and the token
is compared by the server, whatever the client makes of an answer. A lock is as good as the server's memory: one that
restarts, fails over or evicts has forgotten it, which `check` notices and the database's own rules outlive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seriatim.core.beside.redis import FAILURES, open_client
from seriatim.core.brokers import redact
from seriatim.core.locking.port import LocksUnavailable
from seriatim.core.store.port import Session

#: Ours already is as good as taken: an earlier try's answer may have been lost.
_TAKE = """
for place, key in ipairs(KEYS) do
  if not redis.call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) then
    if redis.call('GET', key) ~= ARGV[1] then return place - 1 end
    redis.call('PEXPIRE', key, ARGV[2])
  end
end
return #KEYS
"""

_EXTEND = """
local ours = 0
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then ours = ours + redis.call('PEXPIRE', key, ARGV[2]) end
end
return ours
"""

_FREE = """
local ours = 0
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then ours = ours + redis.call('DEL', key) end
end
return ours
"""


class RedisKeeper:
    """Tokens in the Redis at `url`, under the store's `incarnation`; each answer is awaited `answer_s`."""

    def __init__(self, url: str, incarnation: Callable[[], str], ttl_s: float, answer_s: float) -> None:
        self._url = url
        self._client = open_client(url, connect_s=answer_s, read_s=answer_s)
        self._ask_incarnation = incarnation
        self._incarnation: str | None = None
        self._ttl_ms = int(ttl_s * 1000)

    def take(self, names: Sequence[str], token: str) -> Mapping[str, int | None] | None:
        """Take the names in order until one is another's."""
        return dict.fromkeys(names) if self._run(_TAKE, names, token, self._ttl_ms) == len(names) else None

    def extend(self, names: Sequence[str], token: str) -> bool:
        """Give those that are ours a whole TTL again."""
        return self._run(_EXTEND, names, token, self._ttl_ms) == len(names)

    def holds(self, names: Sequence[str], token: str, session: Session | None) -> bool:
        """Whether all are ours, for a whole TTL again."""
        del session
        return self.extend(names, token)

    def free(self, names: Sequence[str], token: str) -> int:
        """Give back those that are ours."""
        return self._run(_FREE, names, token)

    def _run(self, script: str, names: Sequence[str], *arguments: Any) -> int:
        keys = [self._key(name) for name in names]
        try:
            return int(self._client.eval(script, len(keys), *keys, *arguments))
        except FAILURES as error:
            raise LocksUnavailable(f"locks {self.describe()}: {str(error) or type(error).__name__}") from error

    def _key(self, name: str) -> str:
        if self._incarnation is None:
            self._incarnation = self._ask_incarnation()
        return f"seriatim:lock:{json.dumps([self._incarnation, name])}"

    def close(self) -> None:
        """Let go of every connection."""
        self._client.close()

    def describe(self) -> str:
        """The URL without a secret."""
        return redact(self._url)
