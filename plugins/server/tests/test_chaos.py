"""Servers killed at any moment, with bad networks and full disks around them."""

import chaos
import pytest


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_accepted_rollout_ends_once_however_often_its_server_is_killed():
    run = chaos.main(kills=30)
    assert run.found == [], f"seed {run.seed}"
    assert run.counts["kills"] >= 30 and run.counts["rollouts accepted"] >= 100
