"""HarborBackend meets the contract of backends, above any container."""

import pytest

from osmosis_core.testing import BackendConformance
from osmosis_harbor import HarborBackend
from osmosis_harbor.owner import state_dir


# A command that is cancelled in the sandbox may leave its pipes to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestHarborBackend(BackendConformance):
    crowd = 8
    many = 40

    @pytest.fixture(autouse=True)
    def place(self, sandbox, task_dir):
        self.options = {**sandbox, "task_dir": task_dir}

    def leftovers(self):
        return super().leftovers() | {str(path) for path in state_dir().glob("*/*/*")}

    def create_backend(self, **options):
        return HarborBackend(**self.options, **options)
