"""Finding a broker by its URL; a URL that is shown never shows its secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim import ConfigurationError
from seriatim.core.brokers import open_broker, redact

SECRET = "s3cr3t"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    "url",
    [
        "nowhere://user:s3cr3t@host:5672/vhost",
        "nowhere://:s3cr3t@host",
        "nowhere://user:s3cr3t@[::1]:5672/",
        "nowhere://user:a@s3cr3t@host/",
        "nowhere://user:a:s3cr3t@host/",
        "nowhere://user:s3cr3t/more@host/",
        "nowhere://user:s3cr3t#more@host/",
        "nowhere://user:s3cr3t?more@host/",
        "nowhere://host/v?password=s3cr3t",
        "nowhere://host/v?a=b&token=s3cr3t#frag",
        "nowhere://host/v#s3cr3t",
        "nowhere:user:s3cr3t@host",
        "user:s3cr3t@host",
        "//user:s3cr3t@host",
        "nowhere://user:s3cr3t@[bad/",
    ],
)
def test_a_secret_is_never_shown(url):
    assert SECRET not in redact(url)
    with pytest.raises(ConfigurationError) as caught:
        open_broker(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["embedded://u:s3cr3t@host/log.db", "embedded:log.db?token=s3cr3t"])
def test_an_adapter_s_own_complaint_shows_no_secret_either(url):
    with pytest.raises(ConfigurationError) as caught:
        open_broker(url)
    assert SECRET not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_can_be_shown_and_is_refused_in_words(text):
    shown = redact(text)
    assert isinstance(shown, str)
    if not text.lower().startswith(("embedded:", "rabbit", "amqp")):
        with pytest.raises(ConfigurationError):
            open_broker(text)


def test_what_is_no_secret_stays():
    assert redact("amqp://user:x@host:5672/vhost") == "amqp://user:***@host:5672/vhost"
    assert redact("embedded:log.db") == "embedded:log.db"
    assert redact("embedded:///var/log.db") == "embedded:///var/log.db"


def test_an_unknown_scheme_is_told_with_those_that_are_installed():
    with pytest.raises(ConfigurationError, match=r"kafka.*embedded"):
        open_broker("kafka://host")
