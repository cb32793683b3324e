"""scripts/services: real services on ports of their own, started once, stopped by pid; compose says the same."""

import os
import re
import shlex
import socket
import subprocess
from pathlib import Path

import pytest
import redis
import yaml
from sqlalchemy.engine import make_url
from support.services import OwnService, ServiceMissing, _started, service_url

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker/compose.yml").read_text())


def services(*arguments, check=True, **environment):
    done = subprocess.run(
        [ROOT / "scripts/services", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def exported():
    """What `scripts/services env` exports: variable → URL."""
    words = [word for word in shlex.split(services("env").stdout) if word != "export"]
    return dict(word.split("=", 1) for word in words)


@pytest.fixture
def own(tmp_path):
    """A Redis of the test's own; stopped whatever happens."""
    service = OwnService(tmp_path, "redis")
    yield service
    service.say("stop")


def test_every_service_has_its_variable_and_its_part_of_compose():
    assert set(COMPOSE["services"]) == {"rabbitmq", "mariadb", "redis"}
    assert set(exported()) == {f"SERIATIM_TEST_{name.upper()}" for name in COMPOSE["services"]}


def test_compose_publishes_the_ports_of_scripts_services_on_loopback_alone():
    text = (ROOT / "scripts/_services/common").read_text()
    ports = {name: int(port) for name, port in re.findall(r"\b([A-Z]+)_PORT=(\d+)", text)}
    published = {}
    for service in COMPOSE["services"].values():
        for mapping in service["ports"]:
            address, outer, inner = mapping.split(":")
            assert address == "127.0.0.1"
            published[int(inner)] = int(outer)
    assert published == {
        5672: ports["AMQP"],
        15672: ports["MANAGEMENT"],
        5552: ports["STREAM"],
        3306: ports["MARIADB"],
        6379: ports["REDIS"],
    }


def test_compose_makes_the_users_and_the_database_of_the_urls():
    urls = {name: make_url(exported()[f"SERIATIM_TEST_{name.upper()}"]) for name in COMPOSE["services"]}
    rabbitmq = COMPOSE["services"]["rabbitmq"]["environment"]
    assert (rabbitmq["RABBITMQ_DEFAULT_USER"], rabbitmq["RABBITMQ_DEFAULT_PASS"]) == (
        urls["rabbitmq"].username,
        urls["rabbitmq"].password,
    )
    mariadb = urls["mariadb"]
    assert COMPOSE["services"]["mariadb"]["environment"]["MARIADB_DATABASE"] == mariadb.database
    user = COMPOSE["configs"]["mariadb_user"]["content"]
    assert f"CREATE USER {mariadb.username}@'%' IDENTIFIED BY '{mariadb.password}'" in user


def test_compose_enables_the_plugins_of_scripts_services():
    script = (ROOT / "scripts/_services/rabbitmq").read_text()
    assert COMPOSE["configs"]["rabbitmq_plugins"]["content"] in script


def test_a_service_starts_once_and_stops_by_its_pid(own):
    started = own.say("start")
    assert started.returncode == 0, started.stderr
    assert "redis is ready" in started.stdout
    pid = own.pidfile.read_text()

    again = own.say("start")
    assert (again.returncode, again.stdout) == (0, "")
    assert own.pidfile.read_text() == pid
    assert own.say("status").stdout == "redis runs\n"

    assert own.say("stop").returncode == 0
    assert own.say("status").returncode == 1
    assert not own.pidfile.exists()
    assert own.say("stop").returncode == 0


def test_a_service_that_was_killed_is_seen_as_gone_and_started_anew(own):
    own.say("start")
    pid = own.pid
    os.kill(pid, 9)
    while (status := own.say("status")).returncode == 0:  # bounded by the test's own commands
        assert status.stdout == "redis runs\n"
    assert own.say("start").returncode == 0
    assert own.pid != pid


def test_a_recorded_pid_that_belongs_to_another_process_now_is_left_alone(own):
    own.say("start")
    own.say("stop")
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        own.pidfile.write_text(f"{bystander.pid} 1\n")
        assert own.say("stop").returncode == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_port_that_is_taken_is_named(own):
    with socket.create_server(("127.0.0.1", own.port)):
        refused = own.say("start")
    assert refused.returncode == 1
    assert f"port {own.port}" in refused.stderr
    assert "SERIATIM_TEST_REDIS" in refused.stderr


def test_an_unknown_service_or_verb_is_named():
    assert "no service kafka" in services("start", "kafka", check=False).stderr
    assert "start, stop, status" in services("dance", check=False).stderr


def test_each_service_answers():
    # SERIATIM_TEST_* may name servers of the user's own
    with socket.create_connection((make_url(service_url("rabbitmq")).host, make_url(service_url("rabbitmq")).port), 5):
        pass
    with redis.Redis.from_url(service_url("redis")) as client:
        assert client.ping()
    mariadb = make_url(service_url("mariadb"))
    with socket.create_connection((mariadb.host, mariadb.port), 5):
        pass


def test_a_service_that_cannot_be_had_is_an_error_that_says_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setattr("support.services._services", lambda *_: subprocess.CompletedProcess([], 1, "", "no apt-get"))
    with pytest.raises(ServiceMissing, match=r"scripts/services start redis.*no apt-get"):
        _started("redis", "SERIATIM_TEST_REDIS")
