import asyncio
from types import SimpleNamespace

import pytest

from osmosis_core import (
    BackendError,
    ConfigError,
    GraderError,
    NoActiveRolloutError,
    OsmosisError,
    PluginError,
    PolicyCall,
    PolicyError,
    PolicyNotBoundError,
    RolloutError,
    RolloutErrorCategory,
    SampleError,
    WorkflowError,
)
from osmosis_core.errors import boundary, categorize, describe, failed_call

AGENT, HTTP = RolloutErrorCategory.AGENT_ERROR, RolloutErrorCategory.HTTP_ERROR
TIMEOUT, INVALID = RolloutErrorCategory.TIMEOUT, RolloutErrorCategory.VALIDATION_ERROR


class StatusError(Exception):
    """Like an SDK's status error: it carries the response."""

    def __init__(self):
        call = PolicyCall("c", "r", "main", 0, {}, 0.0)
        self.response = SimpleNamespace(extensions={"osmosis_call": call})


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError


def chained(error, cause):
    try:
        raise error from cause
    except Exception as raised:
        return raised


def during(error, earlier):
    try:
        try:
            raise earlier
        except Exception:
            raise error  # noqa: B904 - the implicit context is what is tested
    except Exception as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "also"),
    [
        (NoActiveRolloutError, RuntimeError),
        (PolicyNotBoundError, NotImplementedError),
        (SampleError, ValueError),
        (ConfigError, ValueError),
        (PluginError, OsmosisError),
        (RolloutError, OsmosisError),
        (WorkflowError, RolloutError),
        (GraderError, RolloutError),
        (BackendError, RolloutError),
        (PolicyError, RolloutError),
    ],
)
def test_every_error_is_an_osmosis_error_and_what_users_catch(error, also):
    assert issubclass(error, OsmosisError) and issubclass(error, also)


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (RolloutError, AGENT),
        (WorkflowError, AGENT),
        (GraderError, AGENT),
        (BackendError, RolloutErrorCategory.INTERNAL_ERROR),
        (PolicyError, HTTP),
    ],
)
def test_rollout_errors_have_a_category_that_can_be_replaced(error, category):
    assert error("x").category is category
    assert error("x", category=TIMEOUT).category is TIMEOUT


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(ConfigError("x"), 2), (PluginError("x"), 2), (SampleError("x"), 2), (WorkflowError("x"), 1)],
)
def test_exit_code_is_1_for_rollouts_and_2_for_usage(error, exit_code):
    assert error.exit_code == exit_code


def test_missing_rollout_shows_the_two_lines_to_write():
    text = str(NoActiveRolloutError("OsmosisAgent"))
    assert "with RolloutContext(chat_completions_url=..., api_key=...):" in text
    assert "OsmosisAgent(...)" in text


def test_unbound_policy_says_what_was_called_and_what_to_do():
    text = str(PolicyNotBoundError("OsmosisRolloutModel"))
    assert text.startswith("OsmosisRolloutModel was called outside a rollout")
    assert "with RolloutContext(" in text


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (TimeoutError(), TIMEOUT),
        (ValueError(), INVALID),
        (TypeError(), INVALID),
        (SampleError("x"), INVALID),
        (AssertionError(), AGENT),
        (RuntimeError(), AGENT),
        (KeyError(), AGENT),
        (PolicyNotBoundError("x"), AGENT),
        (PolicyError("x"), HTTP),
        (StatusError(), HTTP),
    ],
)
def test_category_follows_the_type(error, category):
    assert categorize(error) is category


@pytest.mark.parametrize("join", [chained, during])
@pytest.mark.parametrize("cause", [PolicyError("down"), StatusError()])
def test_failed_policy_call_behind_an_error_keeps_its_category(join, cause):
    assert categorize(join(ValueError("cannot parse"), cause)) is HTTP


def test_typed_error_further_down_the_chain_keeps_its_category():
    cause = chained(RuntimeError("sdk"), WorkflowError("late", category=TIMEOUT))
    assert categorize(chained(ValueError("agent"), cause)) is TIMEOUT


def test_ordinary_cause_does_not_count():
    assert categorize(chained(RuntimeError("agent"), ValueError("inner"))) is AGENT


def test_cause_that_was_cut_off_does_not_count():
    error = during(ValueError("mine"), PolicyError("down"))
    error.__suppress_context__ = True
    assert categorize(error) is INVALID


def test_circular_causes_end():
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert categorize(first) is AGENT


def test_ordinary_errors_have_no_failed_call():
    assert failed_call(ValueError()) is None


def test_boundary_keeps_text_category_and_cause():
    with pytest.raises(GraderError, match="too late") as caught, boundary(GraderError):
        raise TimeoutError("too late")
    assert caught.value.category is TIMEOUT
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_boundary_lets_its_own_kind_pass():
    error = WorkflowError("mine", category=HTTP)
    with pytest.raises(WorkflowError) as caught, boundary(WorkflowError):
        raise error
    assert caught.value is error


def test_boundary_turns_other_rollout_errors_and_keeps_their_category():
    with pytest.raises(WorkflowError, match="down") as caught, boundary(WorkflowError):
        raise PolicyError("down")
    assert caught.value.category is HTTP


def test_boundary_is_no_obstacle_to_cancellation():
    with pytest.raises(asyncio.CancelledError), boundary(WorkflowError):
        raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError(" no "), "no"), (ValueError(), "ValueError"), (SilentError(), "SilentError")],
)
def test_error_is_described_by_its_text_or_its_type(error, text):
    assert describe(error) == text
