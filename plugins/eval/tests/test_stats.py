import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_core import (
    ExecutionResult,
    PolicyCall,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from osmosis_eval.datasets import Row
from osmosis_eval.runner import Outcome
from osmosis_eval.stats import MAX_SAMPLE_IDS, OTHER, Rewards, Tokens, Totals


def graded(
    rewards: dict[str, float | None], metadata: dict[str, Any] | None = None, **sample: Any
) -> Outcome:
    samples = {name: RolloutSample(id=name, reward=r, **sample) for name, r in rewards.items()}
    result = ExecutionResult(RolloutStatus.SUCCESS, samples)
    return Outcome(Row(0, 1, [], "l", metadata), 0, "r", result, 0.1)


def failed(message: str | None, category: RolloutErrorCategory | None, **sample: Any) -> Outcome:
    status = RolloutStatus.FAILURE if category else RolloutStatus.CANCELLED
    samples = {"main": RolloutSample(id="main", **sample)}
    return Outcome(Row(0, 1, []), 0, "r", ExecutionResult(status, samples, message, category), 0.1)


def call(usage: dict[str, Any] | None) -> PolicyCall:
    return PolicyCall("c", "r", "main", 0, {}, 0.0, usage=usage)


def summed(*outcomes: Outcome, by_key: str | None = None) -> Any:
    totals = Totals(len(outcomes), by_key)
    for outcome in outcomes:
        totals.add(outcome)
    return totals.to_json()


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_running_figures_are_those_of_the_whole_list(rewards: list[float]) -> None:
    running = Rewards()
    for reward in rewards:
        running.add(reward)
    assert running.mean == pytest.approx(statistics.fmean(rewards), abs=1e-6)
    assert running.std == pytest.approx(statistics.stdev(rewards), rel=1e-6, abs=1e-4)
    assert (running.low, running.high) == (min(rewards), max(rewards))


def test_no_reward_has_no_figures_and_one_has_no_spread() -> None:
    rewards = Rewards()
    nothing = {"graded": 0, "mean": None, "std": None, "min": None, "max": None}
    assert rewards.to_json() == nothing
    rewards.add(2)
    assert rewards.to_json() == {"graded": 1, "mean": 2, "std": None, "min": 2, "max": 2}


def test_figures_beyond_floats_are_null_not_infinite() -> None:
    rewards = Rewards()
    for reward in (1e308, -1e308):
        rewards.add(reward)
    figures = rewards.to_json().values()
    assert all(figure is None or math.isfinite(figure) for figure in figures)


def test_errors_count_apart_and_never_as_zero_reward() -> None:
    summary = summed(
        graded({"main": 1.0}),
        failed("boom", RolloutErrorCategory.AGENT_ERROR, reward=0.0),
        failed("late", RolloutErrorCategory.TIMEOUT),
        failed("stopped", None),
    )
    assert summary["rollouts"] == {
        "planned": 4,
        "succeeded": 1,
        "failed": 3,
        "failed_by_category": {"agent_error": 1, "timeout": 1, "cancelled": 1},
    }
    assert summary["rewards"] == {"graded": 1, "mean": 1, "std": None, "min": 1, "max": 1}
    assert summary["samples"]["main"]["samples"] == 1


def test_samples_without_reward_are_counted_not_averaged() -> None:
    summary = summed(graded({"a": 0.5, "b": None}), graded({"a": 1.5, "b": 3.0}))
    assert summary["samples"]["a"]["mean"] == 1.0
    assert (summary["samples"]["b"]["samples"], summary["samples"]["b"]["graded"]) == (2, 1)
    assert summary["rewards"]["graded"] == 3


def test_removed_samples_are_counted_apart() -> None:
    summary = summed(graded({"main": 9.0}, remove_sample=True), graded({"main": 1.0}))
    assert (summary["removed_samples"], summary["rewards"]["max"]) == (1, 1.0)


def test_sample_ids_beyond_the_first_are_grouped() -> None:
    count = MAX_SAMPLE_IDS + 5
    samples = summed(*[graded({f"agent-{i}": 1.0}) for i in range(count)])["samples"]
    assert len(samples) == MAX_SAMPLE_IDS + 1
    assert samples[OTHER]["graded"] == 5


def test_truncated_samples_calls_and_tokens_count_in_failures_too() -> None:
    calls = [call({"prompt_tokens": 3, "completion_tokens": 2}), call(None)]
    lost = failed("x", RolloutErrorCategory.HTTP_ERROR, truncated=True, calls=calls)
    summary = summed(lost, graded({"main": 1.0}, truncated=True, calls=calls))
    assert (summary["truncated_samples"], summary["calls"]) == (2, 4)
    assert summary["tokens"] == {"prompt": 6, "completion": 4}


def test_usage_that_is_not_a_number_counts_nothing() -> None:
    assert Tokens.of([call({"prompt_tokens": None, "completion_tokens": "7"})]) == Tokens()


def test_first_three_distinct_messages_are_kept_on_one_line() -> None:
    category = RolloutErrorCategory.AGENT_ERROR
    messages = ["a\nb\x1b", "a\nb\x1b", "c", None, "d", "e", "x" * 400]
    errors = summed(*[failed(message, category) for message in messages])["errors"]
    assert errors == [
        {"message": "a b?", "count": 2},
        {"message": "c", "count": 1},
        {"message": "no message", "count": 1},
        {"message": OTHER, "count": 3},
    ]


def test_rewards_by_a_metadata_key_are_apart() -> None:
    outcomes = [graded({"m": 1.0}, {"kind": "a"}), graded({"m": 0.0}, {"kind": "b"})]
    summary = summed(*outcomes, graded({"m": 3.0}), by_key="kind")
    found = {kind: (g["rollouts"], g["mean"]) for kind, g in summary["by"]["kind"].items()}
    assert found == {"a": (1, 1.0), "b": (1, 0.0), "(none)": (1, 3.0)}


def test_failed_rollouts_appear_in_their_group() -> None:
    lost = failed("x", RolloutErrorCategory.TIMEOUT)
    groups = summed(lost, by_key="kind")["by"]["kind"]
    assert (groups["(none)"]["rollouts"], groups["(none)"]["graded"]) == (1, 0)
