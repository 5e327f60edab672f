"""That the backend is on offer without Ray being imported, and that Ray is there to be tested."""

import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="osmosis-ray is NOT tested: Ray is not installed on this Python")


def test_backend_is_offered_without_importing_ray():
    code = (
        "import sys; from osmosis_core.plugins import get_plugins\n"
        "get_plugins().backend('ray'); import osmosis_ray\n"
        "print('ray' in get_plugins().backends, 'ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_only_the_backend_is_public():
    import osmosis_ray

    with pytest.raises(AttributeError, match="has no attribute 'RayBackent'"):
        osmosis_ray.RayBackent  # noqa: B018
