"""Reward and rubric decorators, and the judge (protocol.md 2.1, "Reward decorators")."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from osmosis_agent_loop import (
    MissingAPIKeyError,
    ModelNotFoundError,
    ProviderRequestError,
    evaluate_rubric,
    osmosis_reward,
    osmosis_rubric,
)
from osmosis_agent_loop.rubric import default_timeout
from osmosis_core import ConfigError


@osmosis_reward
def exact(solution_str: str, ground_truth: str, extra_info: dict = None, **kwargs) -> float:  # noqa: RUF013
    return 1.0 if solution_str == ground_truth else 0.0


def test_documented_reward_function_works():
    assert (exact("a", "a"), exact("a", "b", {"x": 1}, data_source="gsm8k")) == (1.0, 0.0)
    assert exact.__name__ == "exact"


def test_reward_with_fewer_than_three_parameters_is_refused():
    with pytest.raises(TypeError, match="two has 2 parameters; write two"):

        @osmosis_reward
        def two(solution_str: str, ground_truth: str): ...


def test_reward_with_other_names_is_refused():
    with pytest.raises(TypeError, match="begins with solution_str, truth, extra_info"):

        @osmosis_reward
        def other(solution_str: str, truth: str, extra_info: dict = None): ...  # noqa: RUF013


def test_reward_with_other_annotations_is_refused():
    with pytest.raises(TypeError, match="annotate `solution_str: str`"):

        @osmosis_reward
        def first(solution_str, ground_truth: str, extra_info: dict = None): ...  # noqa: RUF013

    with pytest.raises(TypeError, match="annotate `ground_truth: str`"):

        @osmosis_reward
        def second(solution_str: str, ground_truth: int, extra_info: dict = None): ...  # noqa: RUF013

    with pytest.raises(TypeError, match="annotate `extra_info: dict`"):

        @osmosis_reward
        def third(solution_str: str, ground_truth: str, extra_info: str = ""): ...


def test_reward_whose_extra_info_has_no_default_is_refused():
    with pytest.raises(TypeError, match="give `extra_info` a default"):

        @osmosis_reward
        def strict(solution_str: str, ground_truth: str, extra_info: dict): ...


@pytest.mark.parametrize("result", [1, 0.5, Fraction(1, 2)])
def test_reward_may_return_any_real_number(result):
    @osmosis_reward
    def real(solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None):
        return result

    assert real("a", "b") == result and isinstance(real("a", "b"), float)


@pytest.mark.parametrize("result", [True, "1", None])
def test_reward_that_returns_something_else_is_a_type_error(result):
    @osmosis_reward
    def wrong(solution_str: str, ground_truth: str, extra_info: dict | None = None):
        return result

    with pytest.raises(TypeError, match="; return a float"):
        wrong("a", "b")


def test_reward_that_is_nan_is_a_value_error():
    @osmosis_reward
    def nan(solution_str: str, ground_truth: str, extra_info: dict | None = None):
        return float("nan")

    with pytest.raises(ValueError, match="nan returned nan; return a finite number"):
        nan("a", "b")


async def test_async_reward_and_functions_of_another_kind_are_left_as_they_are():
    @osmosis_reward
    async def slow(solution_str: str, ground_truth: str, extra_info: dict | None = None):
        return 1

    @osmosis_reward
    def free(messages):
        return "anything"

    assert await slow("a", "b", data_source="x") == 1.0
    assert free([], data_source="x") == "anything"


def test_rubric_checks_signature_and_arguments():
    @osmosis_rubric
    def judge(solution_str: str, ground_truth: str | None, extra_info: dict, **kwargs) -> float:
        return 0.5

    assert judge("a", None, {}) == 0.5
    with pytest.raises(TypeError, match="solution_str is int; give a str"):
        judge(1, None, {})
    with pytest.raises(TypeError, match="ground_truth is int; give a str or None"):
        judge("a", 1, {})
    with pytest.raises(TypeError, match="extra_info"):
        judge("a", None)


def test_rubric_with_another_signature_is_refused():
    with pytest.raises(TypeError, match=r"annotate `ground_truth: str \| None`"):

        @osmosis_rubric
        def untyped(solution_str: str, ground_truth, extra_info): ...

    with pytest.raises(TypeError, match="`solution_str` takes no default"):

        @osmosis_rubric
        def lax(solution_str: str = "", ground_truth: str = "", extra_info=None): ...


class TestEvaluateRubric:
    INFO = {"provider": "openai", "model": "judge", "api_key": "sk-secret"}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("arguments", "kind", "text"),
        [
            ({"rubric": 3}, TypeError, "rubric is int"),
            ({"rubric": " "}, ValueError, "rubric is blank"),
            ({"solution_str": ""}, ValueError, "solution_str is blank"),
            ({"model_info": {"provider": "openai"}}, TypeError, r"model_info\['model'\] is None"),
            ({"score_min": 2.0}, ValueError, "score_min is 2, score_max 1; give a range"),
            ({"score_max": float("nan")}, ValueError, "score_max is nan"),
        ],
    )
    def test_unusable_arguments_are_refused(self, arguments, kind, text):
        good = {"rubric": "Is it right?", "solution_str": "42", "model_info": self.INFO}
        with pytest.raises(kind, match=text):
            evaluate_rubric(**{**good, **arguments})

    def test_without_litellm_it_says_what_to_install(self):
        with pytest.raises(ConfigError, match=r"pip install 'osmosis-agent-loop\[litellm\]'"):
            evaluate_rubric("Is it right?", "42", self.INFO)

    @pytest.mark.parametrize(
        ("provider", "model", "seconds"),
        [
            ("openai", "gpt-4o", 30),
            ("openai", "gpt-5-mini", 45),
            ("xai", "grok-3", 45),
            ("xai", "grok-4", 60),
            ("gemini", "flash", 45),
            ("cerebras", "llama", 60),
            ("openrouter", "x", 60),
        ],
    )
    def test_slow_providers_have_longer_time_outs(self, provider, model, seconds):
        assert default_timeout(provider, model) == seconds

    def test_errors_are_of_the_published_kinds(self):
        error = ModelNotFoundError("openai", "judge", "no such model")
        assert isinstance(error, ProviderRequestError)
        assert str(error) == "openai/judge: no such model"
        assert issubclass(MissingAPIKeyError, ConfigError)
