"""Settings: flags before the environment before the file before the defaults; a mistake is named."""

import pytest

from seriatim import ConfigurationError
from seriatim.core.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"SERIATIM_{name.upper()}", raising=False)
    return tmp_path


def test_flags_outrank_the_environment_that_outranks_the_file_that_outranks_the_defaults(elsewhere, monkeypatch):
    assert load_settings().lanes == 1
    (elsewhere / "seriatim.toml").write_text("lanes = 2\nbatch_size = 7\n")
    assert load_settings().lanes == 2
    monkeypatch.setenv("SERIATIM_LANES", "3")
    assert load_settings().lanes == 3
    assert load_settings(lanes=4).lanes == 4
    assert load_settings(lanes=None).lanes == 3, "a flag that wasn't given says nothing"
    assert load_settings(lanes=4).batch_size == 7


@pytest.mark.parametrize(
    "mistake",
    [
        ("lanez = 2", {}, {}, ["lanez", "lanes", "seriatim.toml"]),
        ("lanes = []", {}, {}, ["lanes", "integer"]),
        ("lanes = 257", {}, {}, ["lanes", "256", "257"]),
        ("[[lanes]]", {}, {}, ["lanes"]),
        ("= 1", {}, {}, ["seriatim.toml"]),
        ("", {"SERIATIM_LANES": ""}, {}, ["SERIATIM_LANES"]),
        ("", {"SERIATIM_LANES": "1.5"}, {}, ["SERIATIM_LANES"]),
        ("", {"SERIATIM_LEASE_S": "inf"}, {}, ["SERIATIM_LEASE_S"]),
        ("", {"SERIATIM_LEASE_S": "0"}, {}, ["SERIATIM_LEASE_S", "0.3"]),
        ("", {"SERIATIM_LEAS_S": "5"}, {}, ["SERIATIM_LEAS_S", "SERIATIM_LEASE_S"]),
        ("", {"SERIATIM_LOG": "JSON5"}, {}, ["log", "human", "json"]),
        ("", {"SERIATIM_LOG_LEVEL": "trace"}, {}, ["log_level", "DEBUG"]),
        ("", {}, {"workers": 0}, ["--workers", "1"]),
        ("", {}, {"batch_ms": "soon"}, ["--batch-ms"]),
        ("lanes = 0\nworkers = 0", {}, {}, ["lanes", "workers"]),
    ],
)
def test_a_mistake_is_named_with_where_it_was_made(elsewhere, monkeypatch, mistake):
    file, environment, flags, names = mistake
    (elsewhere / "seriatim.toml").write_text(file)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**flags)
    for name in names:
        assert name in str(caught.value)


def test_every_default_is_a_value_that_is_allowed():
    settings = Settings()
    for name in Settings.model_fields:
        assert load_settings(**{name: getattr(settings, name)}) == settings


def test_settings_can_t_be_changed_behind_one_s_back():
    with pytest.raises(ValueError, match="frozen"):
        Settings().lanes = 2
