"""Where metrics and health are served, and to whom: read from the settings, and a mistake is named."""

import pytest

from seriatim.cli.serving import Address, access, check
from seriatim.core.errors import ConfigurationError
from seriatim.core.settings import Settings, load_settings

TOKEN = "0123456789abcdef"  # noqa: S105 - of these tests alone


def settings(http, token=TOKEN, **more):
    return Settings(http=http, http_token=token, **more)


def test_without_the_setting_there_is_no_server_and_no_token_needed():
    assert access(Settings()) is None
    check(Settings())


@pytest.mark.parametrize(
    ("http", "address"),
    [
        ("127.0.0.1:9464", Address("127.0.0.1", 9464)),
        ("9464", Address("127.0.0.1", 9464)),
        (":9464", Address("127.0.0.1", 9464)),
        ("0.0.0.0:80", Address("0.0.0.0", 80)),  # noqa: S104 - named, so meant
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:9464", Address("::1", 9464)),
    ],
)
def test_an_address_is_loopback_unless_another_host_is_named(http, address):
    assert access(settings(http)).address == address


@pytest.mark.parametrize(
    "http", ["", "here", "127.0.0.1", "host:port", "::1:9464", "a:b:1", "host:", "h:1 ", "http://h:1"]
)
def test_an_address_that_cannot_be_read_is_named(http):
    with pytest.raises(ConfigurationError, match=r"looks like 127\.0\.0\.1:9464"):
        access(settings(http))


def test_each_process_takes_the_next_port_and_any_free_one_stays_any():
    assert access(settings("9464"), 3).address.port == 9467
    assert access(settings("0"), 3).address.port == 0
    with pytest.raises(ConfigurationError, match="65536"):
        check(settings("65535", workers=2))


@pytest.mark.parametrize("token", [None, "", "short", " " * 20, "with a space in it", "0123456789abcdeé"])
def test_http_needs_a_token_that_is_long_enough_and_fits_a_header(token):
    with pytest.raises(ConfigurationError, match="openssl rand") as caught:
        check(settings("9464", token))
    assert not token or token not in str(caught.value)


def test_the_token_is_never_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERIATIM_HTTP_TOKEN", TOKEN)
    shown = load_settings(http="9464")
    assert TOKEN not in repr(shown) + str(shown) + repr(access(shown)) + shown.model_dump_json()
    (tmp_path / "seriatim.toml").write_text("http_token = 1234567890123456789\n")
    monkeypatch.delenv("SERIATIM_HTTP_TOKEN")
    with pytest.raises(ConfigurationError, match="http_token") as caught:
        load_settings()
    assert "1234567890123456789" not in str(caught.value)


def test_a_port_says_how_it_is_written():
    assert str(Address("::1", 1)) == "[::1]:1"
    assert str(Address("h", 1)) == "h:1"
