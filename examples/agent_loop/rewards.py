"""The reward of an answer, as the platform calls it and as the loop does."""

from __future__ import annotations

import re
from typing import Any

from osmosis_agent_loop import osmosis_reward


@osmosis_reward
def compute_reward(
    solution_str: str, ground_truth: str, extra_info: dict | None = None, **kwargs: Any
) -> float:
    """1 when the last number of the answer is the right one."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", solution_str)
    return float(bool(numbers) and float(numbers[-1]) == float(ground_truth))


def reward_of(messages: list[dict[str, Any]], ground_truth: str | None) -> float | None:
    """The reward of the last message; None where nobody knows what is right."""
    if ground_truth is None:
        return None
    return compute_reward(messages[-1].get("content") or "", ground_truth)
