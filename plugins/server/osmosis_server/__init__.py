"""The rollout server."""
