import math

import pytest
from pydantic import ValidationError

from osmosis_core import (
    AgentWorkflowOutput,
    ExecutionRequest,
    ExecutionResult,
    PolicyCall,
    RolloutSample,
    RolloutStatus,
)
from osmosis_core.types import check_rollout_id


@pytest.mark.parametrize("rollout_id", ["r", "x" * 256, "a b", "ünï", "%2F", "...", "a.b~c", "-"])
def test_one_path_segment_is_a_rollout_id(rollout_id):
    assert ExecutionRequest(rollout_id, []).id == rollout_id


@pytest.mark.parametrize("rollout_id", ["", "x" * 257])
def test_rollout_id_has_1_to_256_characters(rollout_id):
    with pytest.raises(ValueError, match=f"has {len(rollout_id)} characters; give 1 to 256"):
        ExecutionRequest(rollout_id, [])


@pytest.mark.parametrize(
    "rollout_id", [".", "..", "a/b", "/", "a\\b", "a\nb", "\0", "\x7f", "\x85", "\ud800"]
)
def test_anything_else_is_refused_with_the_reason(rollout_id):
    with pytest.raises(ValueError, match="is not one path segment"):
        check_rollout_id(rollout_id)


@pytest.mark.parametrize("name", ["agent_timeout_sec", "grader_timeout_sec"])
@pytest.mark.parametrize("timeout_sec", [math.inf, -math.inf, math.nan])
def test_timeouts_are_finite(name, timeout_sec):
    with pytest.raises(ValueError, match=f"{name} is .*; give finite seconds"):
        ExecutionRequest("r", [], **{name: timeout_sec})


@pytest.mark.parametrize("timeout_sec", [None, 0, -1.5, 3600])
def test_timeouts_may_be_missing_or_expired(timeout_sec):
    request = ExecutionRequest("r", [], agent_timeout_sec=timeout_sec)
    assert request.agent_timeout_sec == timeout_sec


def test_requests_are_graded_by_default():
    assert ExecutionRequest("r", []).grade


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, "high", [1]])
def test_sample_refuses_a_reward_that_is_not_a_finite_number(reward):
    sample = RolloutSample(id="a", reward=0.5)
    with pytest.raises(ValidationError):
        sample.reward = reward
    assert sample.reward == 0.5


def test_sample_starts_trainable_and_without_a_reward():
    sample = RolloutSample(id="a")
    assert sample.reward is None and sample.trainable
    assert not sample.remove_sample and not sample.truncated


def test_samples_share_no_lists():
    first, second = RolloutSample(id="a"), RolloutSample(id="b")
    first.messages.append({})
    first.metrics["x"] = 1
    assert second.messages == [] and second.metrics == {}


@pytest.mark.parametrize("metric", [math.nan, math.inf, "many"])
def test_output_refuses_metrics_that_are_not_finite_numbers(metric):
    with pytest.raises(ValidationError):
        AgentWorkflowOutput(metrics={"steps": metric})


def test_output_refuses_unknown_fields():
    with pytest.raises(ValidationError, match="reward"):
        AgentWorkflowOutput(reward=1.0)


@pytest.mark.parametrize(
    ("status", "is_terminal"),
    [
        ("queued", False),
        ("running", False),
        ("grading", False),
        ("unknown", False),
        ("success", True),
        ("failure", True),
        ("cancelled", True),
    ],
)
def test_statuses_that_a_rollout_can_end_in_are_terminal(status, is_terminal):
    assert RolloutStatus(status).is_terminal is is_terminal


def test_status_is_its_word_on_the_wire():
    assert f"{RolloutStatus.FAILURE}" == "failure"


@pytest.mark.parametrize(("ids", "sample_id"), [([], None), (["a"], "a"), (["a", "b"], None)])
def test_result_has_a_sample_when_there_is_exactly_one(ids, sample_id):
    samples = {name: RolloutSample(id=name) for name in ids}
    sample = ExecutionResult(RolloutStatus.SUCCESS, samples).sample
    assert (sample and sample.id) == sample_id


def test_call_reads_messages_and_tools_from_its_request():
    call = PolicyCall("c", "r", "main", 0, {"messages": [{"role": "user"}], "tools": None}, 0.0)
    assert call.messages == [{"role": "user"}] and call.tools == []


def test_call_without_an_error_was_received():
    call = PolicyCall("c", "r", "main", 0, {}, 0.0)
    assert call.received
    call.error = "down"
    assert not call.received
