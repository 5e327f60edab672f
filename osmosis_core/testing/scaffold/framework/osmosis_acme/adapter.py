"""The policy as a model, and agents whose calls and messages become samples."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import httpx2

from osmosis_acme.loop import Agent, Message
from osmosis_core import (
    NoActiveRolloutError,
    PolicyError,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)
from osmosis_core.errors import describe
from osmosis_core.policy import BASE_URL, MODEL, agent_scope, async_client, current_scope


class AcmeModel:
    """The current policy. Holds no rollout: the client finds the active one when it is called."""

    async def complete(self, messages: list[Message], tools: list[Message]) -> Message:
        """The policy's next message.

        Raises:
            PolicyNotBoundError: no rollout is active.
            PolicyError: the call failed for good; the transport has retried it already.
        """
        body = {"model": MODEL, "messages": messages, **({"tools": tools} if tools else {})}
        answer = await async_client(httpx2).post(f"{BASE_URL}/chat/completions", json=body)
        try:
            answer.raise_for_status()
        except httpx2.HTTPStatusError as error:
            raise PolicyError(describe(error)) from error
        return answer.json()["choices"][0]["message"]


class AcmeSource(SampleSource):
    """The messages of an agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def get_sample(self, sample_id: str) -> RolloutSample:
        """The sample, in the framework's own message shape."""
        return RolloutSample(id=sample_id, messages=copy.deepcopy(self._agent.messages))


class AcmeAgent(Agent):
    """An agent on the policy, and a sample of the active rollout; a taken name gets `-2`.

    Raises:
        NoActiveRolloutError: built outside a rollout.
    """

    def __init__(
        self,
        name: str,
        messages: Sequence[Message],
        tools: Sequence[Callable[..., Any]] = (),
        model: AcmeModel | None = None,
    ) -> None:
        super().__init__(model or AcmeModel(), messages, tools)
        rollout = get_rollout_context()
        if rollout is None:
            raise NoActiveRolloutError(type(self).__name__)
        self.sample_id = rollout.register_agent(name, AcmeSource(self), derived=True)

    async def run(self) -> str:
        """The answer's text; all calls are this agent's."""
        with agent_scope(self.sample_id, trainable=current_scope().trainable):
            return await super().run()
