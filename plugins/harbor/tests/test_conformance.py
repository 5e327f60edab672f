"""HarborBackend meets the contract of backends, above any container."""

import pytest

from osmosis_core.testing import BackendConformance
from osmosis_harbor import HarborBackend


class TestHarborBackend(BackendConformance):
    crowd = 8

    @pytest.fixture(autouse=True)
    def place(self, sandbox, task_dir):
        self.options = {**sandbox, "task_dir": task_dir}

    def create_backend(self, **options):
        return HarborBackend(**self.options, **options)
