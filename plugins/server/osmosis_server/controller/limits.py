"""What a controller waits for, how long, and where servers find it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from ipaddress import ip_address
from urllib.parse import urlsplit

from osmosis_core import ConfigError, ExecutionRequest


@dataclass(frozen=True, slots=True)
class ControllerLimits:
    """ControllerLimits of a `ControllerClient`; times in seconds.

    Raises:
        ConfigError: a value is not above 0.
    """

    max_in_flight: int = 64
    """Rollouts under way at once; `rollouts()` takes no further request while so many are."""
    submit_timeout_sec: float = 30.0
    """How long one submission waits for its answer."""
    admission_timeout_sec: float | None = None
    """How long a rollout waits for a server that has capacity; None waits as long as it takes."""
    unreachable_sec: float = 30.0
    """How long a rollout waits while no server can be reached at all."""
    lost_answer_sec: float = 30.0
    """How long a submission whose answer was lost is asked after."""
    rollout_timeout_sec: float = 3600.0
    """Longest time from acceptance to result, where the request does not limit both phases."""
    grace_sec: float = 60.0
    """What a result may take beyond the request's own `agent_timeout_sec` and
    `grader_timeout_sec` together (protocol.md 3.4)."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} is {value!r}; give a number above 0")

    def rollout_sec(self, request: ExecutionRequest) -> float:
        """Longest time from a rollout's acceptance to its result."""
        if request.agent_timeout_sec is None:
            return self.rollout_timeout_sec
        if not request.grade:
            return request.agent_timeout_sec + self.grace_sec
        if request.grader_timeout_sec is None:
            return self.rollout_timeout_sec
        return request.agent_timeout_sec + request.grader_timeout_sec + self.grace_sec


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a controller listens for callbacks and policy calls."""

    host: str = "127.0.0.1"
    """Naming another host than loopback lets other machines connect; every route needs a key."""
    port: int = 0
    """0 takes any free one."""
    public_url: str | None = None
    """How servers reach the listener, if not at its own address: behind a proxy, NAT or tunnel."""

    def check(self, servers: list[str]) -> None:
        """Raise ConfigError when servers would look for the listener where it is not."""
        if self.public_url is not None:
            check_url(self.public_url, "public_url")
            return
        if self.host in ("0.0.0.0", "::", ""):
            raise ConfigError(
                f"the listener's host is {self.host!r}, which is no address to call; name it by "
                "public_url='http://HOST:PORT' with a fixed port, or listen on one address"
            )
        away = [url for url in servers if not is_loopback(urlsplit(url).hostname or "")]
        if away and is_loopback(self.host):
            raise ConfigError(
                f"{away[0]} is on another machine and cannot reach a listener on {self.host}; "
                "listen on an address that it reaches, or give public_url"
            )


def check_url(url: str, name: str) -> None:
    """Raise ConfigError when a URL has no host, a port that is none, or credentials in it."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a host or port
        is_url = False
    if not is_url or "@" in url.partition("//")[2].partition("/")[0]:
        raise ConfigError(
            f"{name} needs the form http://host:port (https as well), with a key apart from it"
        )


def is_loopback(host: str) -> bool:
    """True for `localhost` and the loopback addresses."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
