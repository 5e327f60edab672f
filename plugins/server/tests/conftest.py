import pytest


@pytest.fixture(autouse=True)
def files_of_rollouts(tmp_path_factory, monkeypatch):
    """Where servers of this test leave what stays of rollouts, in place of the user's home."""
    root = tmp_path_factory.mktemp("rollouts")
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(root))
    return root
