"""The proofs in their short forms, on RabbitMQ and MariaDB: the same programs as on the embedded broker, two URLs."""

import contextlib
import os

import pytest
from sqlalchemy import make_url
from support.programs import prove
from support.services import service_url

from seriatim.core.brokers import open_broker


@contextlib.contextmanager
def fresh_topic(url, topic, group):
    """Nothing of a topic is on the server before, nor after."""
    with contextlib.closing(open_broker(url)) as broker:
        broker.delete(topic, (group,))
        try:
            yield
        finally:
            broker.delete(topic, (group,))


def run(module, url, *arguments):
    store = make_url(service_url("mariadb")).set(database=f"seriatim_{module.split('.')[1]}_{os.getpid()}")
    named = store.render_as_string(hide_password=False)
    return prove(module, "--broker", url, "--store", named, "--fresh-database", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("queue_type", ["quorum", "stream"])
def test_twenty_thousand_events_take_effect_once_and_in_order_whoever_is_killed(queue_type):
    url = f"{service_url('rabbitmq')}?queue_type={queue_type}"
    with fresh_topic(url, "loans", "loans"):
        done = run("examples.loans.proof", url, "--limit", "20000", "--kills", "4")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "PROVED"
    assert "20,000 of 20,000 events applied" in done.stdout


@pytest.mark.slow
def test_failing_accounts_heal_in_order_or_are_given_up_whoever_is_killed():
    url = f"{service_url('rabbitmq')}?queue_type=quorum"
    with fresh_topic(url, "payments", "bank"):
        done = run("examples.healing.proof", url, "--accounts", "200", "--each", "30", "--kills", "4")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "PROVED"
    assert "10 of 10 sick accounts complete and in order" in done.stdout
