"""What every `ExecutionBackend` promises, as tests that its author inherits."""

from osmosis_core.testing.backend_conformance.cancelling import Cancelling
from osmosis_core.testing.backend_conformance.capacity import Capacity
from osmosis_core.testing.backend_conformance.deadlines import Deadlines
from osmosis_core.testing.backend_conformance.failures import Failures
from osmosis_core.testing.backend_conformance.isolation import Isolation
from osmosis_core.testing.backend_conformance.leftovers import Leftovers
from osmosis_core.testing.backend_conformance.reporting import Reporting
from osmosis_core.testing.backend_conformance.rewards import Rewards
from osmosis_core.testing.backend_conformance.sameness import Sameness


class BackendConformance(
    Reporting,
    Deadlines,
    Cancelling,
    Capacity,
    Failures,
    Isolation,
    Rewards,
    Sameness,
    Leftovers,
):
    """Subclass it in a test module, implement `create_backend`, and run pytest.

        class TestMyBackend(BackendConformance):
            def create_backend(self, *, workflow, **options):
                return MyBackend(workflow=workflow, **options)

    The tests are coroutines: they need pytest-asyncio with `asyncio_mode = "auto"`. The policy of
    a rollout is that of the RolloutContext around `execute`. Everything that the suite runs is in
    `conformance_workflows` and `conformance_travellers`; `conformance_workflows.import_path()`
    helps backends that take `"module:attr"` only.
    """
