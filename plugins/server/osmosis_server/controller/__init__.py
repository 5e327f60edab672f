"""The controller side: drive rollouts on rollout servers, of ours or of osmosis-ai."""

from osmosis_server.controller.backend import ServerBackend
from osmosis_server.controller.client import ControllerClient
from osmosis_server.controller.limits import ControllerLimits, Listen

__all__ = ["ControllerClient", "ControllerLimits", "Listen", "ServerBackend"]
