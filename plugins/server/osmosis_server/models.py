"""Models that need more than a URL, for plugins that build on the server and not on the gateway."""

from osmosis_gateway.litellm import litellm_policy

__all__ = ["litellm_policy"]
