"""What a protocol mode must do: read requests into submissions, and put results into its words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from osmosis_core import ExecutionResult

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from osmosis_server.submissions import Delivery, Submission


class Protocol(ABC):
    """One way of speaking with controllers over the shared service.

    The service calls `settle` with each result before it is journalled, then `workflow_done`,
    `rollout_done` and `result_body`; what they return is journalled together with the result, so
    that it survives a restart byte for byte.
    """

    name: str
    open_paths: Collection[str] = ()
    """Exact paths at which it asks for the key itself, by other rules than the server's."""

    @abstractmethod
    def routes(self) -> Sequence[BaseRoute]:
        """What it serves; paths of several protocols must differ."""

    def settle(self, submission: Submission, result: ExecutionResult) -> ExecutionResult:
        """The result as this protocol can carry it: a failure that says why where it cannot."""
        return result

    def workflow_done(self, submission: Submission, result: ExecutionResult) -> Sequence[Delivery]:
        """What the controller is told when the workflow ended."""
        return ()

    def rollout_done(self, submission: Submission, result: ExecutionResult) -> Sequence[Delivery]:
        """What the controller is told at the end, after `workflow_done`."""
        return ()

    def result_body(self, submission: Submission, result: ExecutionResult) -> bytes | None:
        """What a polling controller reads at the end."""
        return None

    def wants_grading(self, submission: Submission) -> bool:
        """Whether a grader is run and reported at all."""
        return submission.request.grade
