"""What stays of a rollout on disk: ATIF v1.7 documents of its samples, and diagnostics.

Sources: protocol.md 2.8, and the format's own rules (`harbor.models.trajectories`).
"""

from osmosis_server.trajectory.files import RolloutFiles

__all__ = ["RolloutFiles"]
