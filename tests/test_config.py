import threading
from typing import Any

import pytest
from pydantic import Field, PrivateAttr, ValidationError

from osmosis_core import AgentWorkflowConfig, BaseConfig, ConcurrencyConfig, GraderConfig
from osmosis_core.config import RetryPolicy


class Model:
    def __init__(self):
        self.lock = threading.Lock()


class Agent:
    def __init__(self, model):
        self.model = model


class SearchConfig(AgentWorkflowConfig):
    depth: int
    tools: Any = Field(["search"])
    _seen: list[str] = PrivateAttr(default_factory=list)


def test_name_is_required_and_description_is_not():
    with pytest.raises(ValidationError, match="name"):
        BaseConfig()
    assert BaseConfig(name="w").description is None


def test_extra_fields_are_allowed():
    assert BaseConfig(name="w", model=object).model is object


def test_assignments_are_validated():
    config = SearchConfig(name="w", depth=1)
    with pytest.raises(ValidationError):
        config.depth = "deep"


@pytest.mark.parametrize("kind", [AgentWorkflowConfig, GraderConfig])
def test_concurrency_is_unlimited_by_default(kind):
    assert kind(name="x").concurrency.max_concurrent is None


@pytest.mark.parametrize("most", [0, -1])
def test_concurrency_is_at_least_one(most):
    with pytest.raises(ValidationError):
        ConcurrencyConfig(max_concurrent=most)


def test_copy_for_a_rollout_shares_no_field_extra_or_private_value():
    config = SearchConfig(name="w", depth=1, notes={"list": []})
    copied = config.for_rollout()
    copied.tools.append("spoiled")
    copied.notes["list"].append("spoiled")
    copied._seen.append("spoiled")
    copied.concurrency.max_concurrent = 1
    fresh = SearchConfig(name="w", depth=1, notes={"list": []})
    assert config == fresh and config._seen == []


def test_copy_for_a_rollout_is_equal_and_validates_assignments():
    config = SearchConfig(name="w", depth=1, note="extra")
    copied = config.for_rollout()
    assert copied == config and copied.model_dump() == config.model_dump()
    with pytest.raises(ValidationError):
        copied.depth = "deep"


def test_value_that_cannot_be_copied_is_shared():
    config = BaseConfig(name="w", lock=threading.Lock(), list=[])
    copied = config.for_rollout()
    assert copied.lock is config.lock and copied.list is not config.list


def test_value_that_cannot_be_copied_is_whole_wherever_it_is_referred_to():
    model = Model()
    copied = BaseConfig(name="w", model=model, agent=Agent(model)).for_rollout()
    assert copied.model is model and copied.agent.model is model


def test_values_that_were_one_object_stay_one_object():
    shared = ["a"]
    copied = BaseConfig(name="w", first=shared, second=[shared]).for_rollout()
    assert copied.first is copied.second[0] and copied.first is not shared


def test_retry_policy_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        RetryPolicy().max_attempts = 1


@pytest.mark.parametrize("field", ["base_delay_sec", "max_delay_sec", "pause_budget_sec"])
def test_retry_delays_are_not_negative(field):
    with pytest.raises(ValueError, match=field):
        RetryPolicy(**{field: -1})
