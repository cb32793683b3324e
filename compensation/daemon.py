"""What the daemon's engine is made of."""

from __future__ import annotations

from seriatim.compensation.direct import Direct
from seriatim.compensation.engine import Chore, Engine
from seriatim.compensation.purging import Purge, check_retention, horizon
from seriatim.compensation.watching import Watch
from seriatim.core.app import App
from seriatim.core.decision import Policy
from seriatim.core.observer import Observer
from seriatim.core.settings import Settings
from seriatim.core.store import SqlStore

DIRECT_EVERY_S = 0.2
PURGE_EVERY_S = 60.0
WATCH_EVERY_S = 30.0


def make_engine(
    store: SqlStore, settings: Settings, observer: Observer, app: App | None = None, *, direct: bool = False
) -> Engine:
    """An engine on `store`. `app` gives the policies that the retention is checked against, and `direct` its handlers.

    Raises:
        ConfigurationError: the retention is shorter than a copy of a message may take to come.
    """
    topics = [] if app is None else list(app.topics.values())
    chores = [Chore("watch", WATCH_EVERY_S, Watch(store, observer).look)]
    if settings.retention_s is not None:
        policies = [topic.policy for topic in topics] or [Policy()]
        check_retention(settings.retention_s, horizon(settings.redelivery_s, policies))
        purging = store.session()
        chores.append(Chore("purge", PURGE_EVERY_S, Purge(purging, settings.retention_s).step, purging.close))
    if direct and app is not None:
        running = store.session()
        runner = Direct(running, app.group, topics, observer)
        chores.append(Chore("direct", DIRECT_EVERY_S, runner.run, running.close))
    return Engine(chores, observer)
