"""What plugins offer by kind and name, who offers it, and the answer when it is not there."""

import email.message
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from osmosis_core.errors import PluginError, nearest

DISTRIBUTION = "osmosis-core"

Kind = Literal["backend", "framework", "policy", "protocol", "command"]


@dataclass(slots=True)
class PluginRecord:
    """One plugin: where it comes from, what it offers, how loading went."""

    name: str
    module: str
    distribution: str = "?"
    version: str = "?"
    status: Literal["loaded", "failed", "disabled"] = "loaded"
    offers: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Names offered, by kind: backend, framework, policy, protocol, command."""
    error: str | None = None

    @property
    def key(self) -> str:
        """Its entry point, as it is written in a project's metadata."""
        return f"{self.name}={self.module}"

    @property
    def owner(self) -> str:
        """Name and distribution, as error texts show them."""
        return f"{self.name} ({self.distribution} {self.version})"


class Offers:
    """Everything on offer; a name offered twice belongs to nobody until one plugin is disabled."""

    def __init__(self, records: list[PluginRecord]) -> None:
        self._records = records
        self._offers: dict[tuple[Kind, str], list[tuple[PluginRecord, Any]]] = {}

    def register(self, kind: Kind, record: PluginRecord) -> Callable[[str, Any], None]:
        """The `register` callable that is handed to the plugin of `record`."""

        def register(name: str, offer: Any) -> None:
            record.offers.setdefault(kind, []).append(name)
            self._offers.setdefault((kind, name), []).append((record, offer))

        return register

    def forget(self, record: PluginRecord) -> None:
        """Drop what a plugin offered before it failed."""
        for offers in self._offers.values():
            offers[:] = [offer for offer in offers if offer[0] is not record]

    @property
    def conflicts(self) -> list[str]:
        """One line for each name that several plugins offer."""
        found = self._offers.items()
        return [_conflict(*key, offers) for key, offers in found if len(offers) > 1]

    def names(self, kind: Kind) -> list[str]:
        """Sorted names of one kind."""
        return sorted(name for (k, name), offers in self._offers.items() if k == kind and offers)

    def get(self, kind: Kind, name: str) -> Any:
        """The offer, or PluginError: two offer it, its plugin failed, or nobody has it."""
        offers = self._offers.get((kind, name), [])
        if not offers:
            raise PluginError(self.missing(kind, name, self.names(kind)))
        if len(offers) > 1:
            raise PluginError(_conflict(kind, name, offers))
        return offers[0][1]

    def missing(self, kind: Kind, name: str, known: list[str]) -> str:
        """Why nobody has it, and what to do about it."""
        asked = f"{kind} {name!r}"
        owners = [r for r in self._records if name == r.name or name in r.offers.get(kind, ())]
        for owner in owners:
            whose = f"{asked}: its plugin {owner.owner}"
            if owner.status == "failed":
                return f"{whose} failed to load: {owner.error}"
            if owner.status == "disabled":
                return f"{whose} is disabled (OSMOSIS_DISABLED_PLUGINS)"
        there = f"no {asked}; there is {', '.join(known) or 'none'}"
        failed = [f"{r.name}: {r.error}" for r in self._records if r.status == "failed"]
        also = f"; plugins that failed to load: {', '.join(failed)}" if failed else ""
        if not owners and name in (kernel_metadata().get_all("Provides-Extra") or ()):
            return f"{there}; install it with: pip install '{DISTRIBUTION}[{name}]'{also}"
        return there + nearest(name, known) + also


def _conflict(kind: Kind, name: str, offers: list[tuple[PluginRecord, Any]]) -> str:
    both = " and ".join(record.owner for record, _ in offers)
    return f"{kind} {name!r} is offered by {both}; disable one with OSMOSIS_DISABLED_PLUGINS"


def kernel_metadata() -> email.message.Message:
    """The kernel's distribution metadata; empty when it runs without being installed."""
    try:
        return cast("email.message.Message", importlib.metadata.metadata(DISTRIBUTION))
    except importlib.metadata.PackageNotFoundError:
        return email.message.Message()
