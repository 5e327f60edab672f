"""Settings of agent loops, their client and their server; each has an environment variable."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from osmosis_core import ConfigError, RetryPolicy
from osmosis_core.errors import describe

DEFAULT_MAX_METADATA_SIZE_BYTES = 1024 * 1024


def _config(prefix: str) -> SettingsConfigDict:
    return SettingsConfigDict(env_prefix=prefix, env_file=".env", extra="ignore")


class RolloutClientSettings(BaseSettings):
    """How the policy is called; `OSMOSIS_ROLLOUT_CLIENT_<FIELD>`.

    Raises:
        pydantic.ValidationError: a value is out of range.
    """

    model_config = _config("OSMOSIS_ROLLOUT_CLIENT_")

    timeout_seconds: Annotated[float, Field(ge=1, le=3600)] = 300.0
    """Longest silence of the policy within one try."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 3
    """Tries of a model call after the first one."""
    complete_rollout_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Quick tries of a completion after the first one; the server's outbox goes on after them."""
    retry_base_delay: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    """Seconds before the second try; it doubles with every try, with jitter."""
    retry_max_delay: Annotated[float, Field(ge=1, le=300)] = 30.0
    max_connections: Annotated[int, Field(ge=1, le=1000)] = 100
    """Model calls in flight at once; further ones wait."""
    max_keepalive_connections: Annotated[int, Field(ge=1, le=100)] = 20
    """Accepted and not used: idle connections are kept for `OSMOSIS_KEEPALIVE_SEC` seconds."""

    @property
    def retry(self) -> RetryPolicy:
        """The same for the transport, which is the only one that retries."""
        return RetryPolicy(
            max_attempts=self.max_retries + 1,
            base_delay_sec=self.retry_base_delay,
            max_delay_sec=self.retry_max_delay,
        )


class RolloutServerSettings(BaseSettings):
    """How rollouts are served; `OSMOSIS_ROLLOUT_SERVER_<FIELD>`.

    Raises:
        pydantic.ValidationError: a value is out of range.
    """

    model_config = _config("OSMOSIS_ROLLOUT_SERVER_")

    max_concurrent_rollouts: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Cap on running rollouts, once it is set here or by its variable; else there is none."""
    record_ttl_seconds: Annotated[float, Field(ge=60, le=86_400)] = 3600.0
    """How long a finished rollout is remembered, so that an init sent again is answered again."""
    cleanup_interval_seconds: Annotated[float, Field(ge=10, le=3600)] = 60.0
    """Accepted and not used: what has expired is forgotten when it is next in the way."""
    request_timeout_seconds: Annotated[float, Field(ge=10, le=3600)] = 600.0
    """How long `get_tools` may take in `/v1/rollout/init`."""
    rollout_timeout_seconds: Annotated[float, Field(ge=1, le=86_400)] = 3600.0
    """How long `run` may take, queueing included; then the rollout is an ERROR."""
    shutdown_grace_seconds: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """How long running rollouts may go on when the server stops; then they are an ERROR."""
    registration_readiness_timeout_seconds: Annotated[float, Field(ge=1, le=60)] = 10.0
    """Accepted and not used, as all of registration: there is no hosted platform here."""
    registration_readiness_poll_interval_seconds: Annotated[float, Field(ge=0.05, le=5)] = 0.2
    registration_shutdown_timeout_seconds: Annotated[float, Field(ge=1, le=300)] = 30.0


class RolloutSettings(BaseSettings):
    """All settings; `OSMOSIS_ROLLOUT_<FIELD>`.

    Raises:
        pydantic.ValidationError: a value is out of range.
    """

    model_config = _config("OSMOSIS_ROLLOUT_")

    client: RolloutClientSettings = Field(default_factory=RolloutClientSettings)
    server: RolloutServerSettings = Field(default_factory=RolloutServerSettings)
    max_metadata_size_bytes: Annotated[int, Field(ge=1024, le=100 * 1024 * 1024)] = (
        DEFAULT_MAX_METADATA_SIZE_BYTES
    )
    """Largest `metadata` of a request, as JSON."""
    strict_history: bool = False
    """A loop that changes earlier messages fails instead of being warned about."""


_settings: RolloutSettings | None = None
_max_metadata_size_bytes: int | None = None


def get_settings() -> RolloutSettings:
    """The process's settings: those of `configure`, else the environment's when first asked for.

    Raises:
        ConfigError: a variable, or a line of `.env`, is out of range.
    """
    global _settings
    if _settings is None:
        try:
            _settings = RolloutSettings()
        except ValueError as error:
            name = error.title if isinstance(error, ValidationError) else "RolloutSettings"
            raise ConfigError(f"{name} of the environment: {describe(error)}") from error
    return _settings


def configure(settings: RolloutSettings) -> None:
    """Replace the process's settings."""
    global _settings
    _settings = settings


def reset_settings() -> None:
    """Forget the process's settings; the environment is read again."""
    global _settings, _max_metadata_size_bytes
    _settings = _max_metadata_size_bytes = None


def get_max_metadata_size_bytes() -> int:
    """Largest `metadata` of a request, as JSON."""
    return _max_metadata_size_bytes or get_settings().max_metadata_size_bytes


def set_max_metadata_size_bytes(size: int) -> None:
    """Set the limit for this process, above the settings'; raises ValueError below 1."""
    global _max_metadata_size_bytes
    if size < 1:
        raise ValueError(f"the limit of metadata is {size}; give bytes, 1 or more")
    _max_metadata_size_bytes = size
