"""Settings: from flags, then the environment (``SERIATIM_…``), then `seriatim.toml`, then defaults."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from seriatim.core.errors import ConfigurationError

FILE = "seriatim.toml"
SECRETS = frozenset({"http_token"})  #: settings whose value is never shown

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError
else:
    from tomli import TOMLDecodeError  # its name before it joined the standard library


class Settings(BaseSettings):
    """Everything that can be set from outside the program. Times in seconds."""

    model_config = SettingsConfigDict(env_prefix="SERIATIM_", toml_file=FILE, extra="forbid", frozen=True)

    broker: str = "embedded:seriatim-broker.db"
    store: str = "sqlite:///seriatim.db"
    lanes: int = Field(default=1, ge=1, le=256)
    workers: int = Field(default=1, ge=1, le=64)
    lease_s: float = Field(default=10.0, ge=0.3, le=3600)
    batch_size: int = Field(default=100, ge=1, le=10_000)
    batch_ms: float = Field(default=50.0, ge=1, le=60_000)
    stop_s: float = Field(default=30.0, ge=0, le=3600)
    lock: str = "database"
    lock_ttl_s: float = Field(default=30.0, ge=0.1, le=86_400)
    lock_wait_s: float = Field(default=1.0, ge=0, le=60)
    filter: str | None = None
    filter_ttl_s: float = Field(default=86_400.0, gt=0)
    compensate: bool = False
    retention_s: float | None = Field(default=None, gt=0)
    redelivery_s: float = Field(default=7 * 86_400.0, gt=0)
    log: Literal["human", "json"] = "human"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_rate: int = Field(default=50, ge=0)
    http: str | None = None
    http_token: SecretStr | None = None

    @field_validator("log_level", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, environment, file: in this order."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings(**flags: Any) -> Settings:
    """The settings, `flags` that aren't None first.

    Raises:
        ConfigurationError: a setting has no such name or value, or the file can't be read; it names which.
    """
    _check_file()
    _check_environment()
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise ConfigurationError("; ".join(_complaint(one) for one in error.errors())) from None
    except (TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{Path(FILE).resolve().name} isn't TOML: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{FILE} can't be read: {error}") from error


def _complaint(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    where = f"setting {name!r} (--{name.replace('_', '-')}, SERIATIM_{name.upper()} or {name} in {FILE})"
    if error["type"] == "extra_forbidden":
        known = ", ".join(sorted(Settings.model_fields))
        return f"{FILE} has a setting {name!r} that doesn't exist; there are: {known}"
    text = str(error["msg"])
    complaint = f"{where}: {text[:1].lower()}{text[1:]}"
    return complaint if name in SECRETS else f"{complaint}, not {error['input']!r}"


def _check_file() -> None:
    path = Path(FILE)
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{FILE} is not a file: settings can't be read from it")


def _check_environment() -> None:
    """Refuse a name in the environment that was meant to be a setting's and isn't quite."""
    known = {f"SERIATIM_{name.upper()}" for name in Settings.model_fields}
    for name in sorted(os.environ):
        if not name.upper().startswith("SERIATIM_") or name.upper() in known:
            continue
        meant = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.85)
        if meant:
            raise ConfigurationError(f"the environment has {name}, which is no setting; did you mean {meant[0]}?")
