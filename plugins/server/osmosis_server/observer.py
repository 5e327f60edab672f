"""Where trajectories and telemetry hear of rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_core import ExecutionResult
    from osmosis_server.submissions import Submission


class ServiceObserver:
    """Told about rollouts on the event loop; methods return at once and leave the values alone.

    What they raise is logged and not felt by the rollout.
    """

    def rollout_ended(self, submission: Submission, result: ExecutionResult) -> None:
        """A rollout's end is written in the journal; its deliveries may be outstanding."""

    def acknowledged(self, rollout_id: str, delivery: str, trajectory: Any) -> None:
        """A controller's answer to a delivery had a `trajectory`: this JSON value.

        It may come long after the end, after a restart, and twice (protocol.md 2.8).
        """


class Observers(ServiceObserver):
    """Several observers as one."""

    def __init__(self, *observers: ServiceObserver) -> None:
        self._observers = observers

    def rollout_ended(self, submission: Submission, result: ExecutionResult) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.rollout_ended(submission, result)

    def acknowledged(self, rollout_id: str, delivery: str, trajectory: Any) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.acknowledged(rollout_id, delivery, trajectory)
