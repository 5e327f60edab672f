"""The policy as a model of smolagents, and agents whose calls and messages become samples."""

import asyncio
import contextvars
import copy
import functools
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import httpx2
import smolagents
from openai import APIError, AsyncOpenAI, OpenAI
from smolagents.memory import ActionStep
from smolagents.models import ChatMessage, get_clean_message_list, tool_role_conversions
from smolagents.utils import is_valid_name

import osmosis_core as osmosis
from osmosis_core import policy
from osmosis_core.errors import describe


class ChatPrompt(str):
    """Chat messages, such as `ctx.prompt`, as a task: `agent.run(ChatPrompt(ctx.prompt))`."""

    messages: list[osmosis.Message]

    def __new__(cls, messages: Sequence[osmosis.Message]) -> Self:
        prompt = super().__new__(cls, messages[-1].get("content") or "")
        prompt.messages = copy.deepcopy(list(messages))
        return prompt


class Run:
    """The calls of one `arun`: the agent's thread waits for them, the event loop makes them."""

    current: contextvars.ContextVar[Self | None]

    def __init__(self) -> None:
        self.loop, self._is_over = asyncio.get_running_loop(), False
        self._tasks: set[Any] = set()

    async def call(self, request: dict[str, Any]) -> Any:
        """A completion, or the chunks of a streamed one."""
        if self._is_over:
            raise asyncio.CancelledError
        self._tasks.add(asyncio.current_task())
        answer = await _sdk(AsyncOpenAI, policy.async_client).create(**request)
        return [chunk async for chunk in answer] if request.get("stream") else answer

    async def end(self) -> None:
        """End the calls under way, and refuse further ones."""
        self._is_over = True
        tasks = [task for task in self._tasks if task.cancel()]
        await asyncio.gather(*tasks, return_exceptions=True)


Run.current = contextvars.ContextVar("osmosis_smolagents_run", default=None)


@functools.cache
def _sdk(kind: Any, client: Any) -> Any:
    sdk = kind(base_url=policy.BASE_URL, http_client=client(httpx2), api_key="-", max_retries=0)
    return sdk.chat.completions


def _create(**request: Any) -> Any:
    """What the SDK's client does, for smolagents, which blocks."""
    try:
        if (run := Run.current.get()) is not None:
            return asyncio.run_coroutine_threadsafe(run.call(request), run.loop).result()
        answer = _sdk(OpenAI, policy.client).create(**request)
        return list(answer) if request.get("stream") else answer
    except APIError as error:
        if isinstance(error.__cause__, osmosis.OsmosisError):
            raise error.__cause__ from None
        raise osmosis.PolicyError(describe(error)) from error


class OsmosisModel(smolagents.OpenAIModel):
    """The current policy; give it to any agent: `OsmosisModel(temperature=1.0)`.

    It may live at module level and be shared. An answer without a tool call is a final answer.
    Calling it outside a rollout raises PolicyNotBoundError; a call that failed for good, after the
    transport has retried it, raises PolicyError, which is the cause of an agent's error.
    """

    agent: Any = None

    def create_client(self) -> Any:
        """What smolagents needs of an SDK's client; it holds no rollout and no connection."""
        return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=_create)))

    def __init__(self, **params: Any) -> None:
        super().__init__(policy.MODEL, retry=False, **params)

    def parse_tool_calls(self, message: ChatMessage) -> ChatMessage:
        """The call that a text spells out, or a call of `final_answer` with the text."""
        try:
            return super().parse_tool_calls(copy.deepcopy(message))
        except Exception:
            function = {"name": "final_answer", "arguments": {"answer": message.content or ""}}
            call: Any = {"id": uuid.uuid4().hex, "type": "function", "function": function}
            return replace(message, tool_calls=[call])

    def _prepare_completion_kwargs(self, messages: Any, **options: Any) -> dict[str, Any]:
        if self.agent is None:
            return super()._prepare_completion_kwargs(messages, **options)
        request = super()._prepare_completion_kwargs([], **{"tool_choice": "auto", **options})
        trainable = policy.current_scope().trainable
        labels = policy.bound_headers(self.agent.rollout, self.agent.sample_id, trainable=trainable)
        request["extra_headers"] = {**request.get("extra_headers", {}), **labels}
        return {**request, "messages": [said for message in messages for said in _sent(message)]}


class _OnPolicy(smolagents.MultiStepAgent):
    """What makes an agent a sample of the active rollout, under its name; a taken one gets `-2`.

    Takes the arguments of its class; the name may be any text, and nothing is printed unless asked
    for. The policy is shown its own answers as it gave them, and tool results as tool messages.

    Raises:
        NoActiveRolloutError: built outside a rollout.
    """

    def __init__(self, tools: Any = (), model: Any = None, **options: Any) -> None:
        rollout, name = osmosis.get_rollout_context(), options.pop("name", None)
        if rollout is None:
            raise osmosis.NoActiveRolloutError(type(self).__name__)
        self.rollout, self.past = rollout, list[osmosis.Message]()
        own = {"name": name if is_valid_name(name) else None}
        options = {"verbosity_level": smolagents.LogLevel.OFF, **own, **options}
        model = copy.copy(model or OsmosisModel())
        super().__init__(list(tools), model, **options)
        model.agent = self
        self.sample_id = rollout.register_agent(name or uuid.uuid4().hex, self, derived=True)

    def run(self, task: str, stream: bool = False, reset: bool = True, **options: Any) -> Any:
        """See `smolagents.MultiStepAgent.run`; the task may be a ChatPrompt."""
        if reset and self.memory.steps:
            self.past += conversation(self)
        return super().run(task, stream, reset, **options)

    async def arun(self, task: str, **options: Any) -> Any:
        """`run` in a thread of its own; cancelling it ends the call under way, and then the run."""
        run, context, threads = Run(), contextvars.copy_context(), ThreadPoolExecutor(1)
        context.run(Run.current.set, run)
        work = functools.partial(context.run, self.run, task, **options)
        try:
            return await run.loop.run_in_executor(threads, work)
        except asyncio.CancelledError:
            self.interrupt()
            await run.end()
            raise
        finally:
            threads.shutdown(wait=False)

    def write_memory_to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:
        """The conversation, for OsmosisModel to send as it is."""
        if summary_mode:
            return super().write_memory_to_messages(summary_mode)
        said = conversation(self)
        return [ChatMessage(message["role"], message["content"], raw=message) for message in said]

    def execute_tool_call(self, tool_name: str, arguments: Any) -> Any:
        """See `smolagents.ToolCallingAgent`; an agent that the tool starts knows who started it."""
        context = contextvars.copy_context()
        context.run(policy.in_tool_of, self.sample_id)
        return context.run(super().execute_tool_call, tool_name, arguments)


class OsmosisToolCallingAgent(_OnPolicy, smolagents.ToolCallingAgent):
    """`smolagents.ToolCallingAgent` on the policy."""

    def process_tool_calls(self, chat_message: Any, memory_step: Any) -> Iterator[Any]:
        """See `smolagents.ToolCallingAgent`; keeps which call had which result."""
        memory_step.results = {}
        for output in super().process_tool_calls(chat_message, memory_step):
            if hasattr(output, "observation"):
                memory_step.results[output.id] = output.observation
            yield output


class OsmosisCodeAgent(_OnPolicy, smolagents.CodeAgent):
    """`smolagents.CodeAgent` on the policy."""

    def create_python_executor(self) -> Any:
        """The executor; tools see the rollout, also in the thread that a time limit takes."""
        executor: Any = super().create_python_executor()
        send = executor.send_tools
        executor.send_tools = lambda tools: send({n: _in_context(t) for n, t in tools.items()})
        return executor


def _in_context(tool: Any) -> Any:
    context = contextvars.copy_context()
    return lambda *args, **options: context.copy().run(tool, *args, **options)


def conversation(agent: Any) -> list[osmosis.Message]:
    """What an agent was shown and said since it last forgot, as chat messages."""
    said = [message for step in agent.memory.steps for message in _messages(step)]
    system = [message["content"] for message in said if message["role"] == "system"]
    whole = "\n\n".join([agent.memory.system_prompt.system_prompt, *system])
    others = [message for message in said if message["role"] != "system"]
    return copy.deepcopy([{"role": "system", "content": whole}, *others])


def _messages(step: Any) -> Iterator[osmosis.Message]:
    if isinstance(task := getattr(step, "task", None), ChatPrompt):
        yield from task.messages
    elif not isinstance(step, ActionStep) or step.model_output_message is None:
        yield from _cleaned(step)
    else:
        answer: Any = step.model_output_message
        said = answer.raw.choices[0].message if answer.raw else answer
        calls = [_call(call) for call in said.tool_calls or ()]
        more = {"tool_calls": calls} if calls else {}
        yield {"role": "assistant", "content": said.content, **more}
        for call in calls:
            result = getattr(step, "results", {}).get(call["id"], f"Error: {step.error}")
            yield {"role": "tool", "tool_call_id": call["id"], "content": result}
        if not calls and not (step.tool_calls and step.tool_calls[0].name == "final_answer"):
            yield from _cleaned(replace(step, model_output=None, tool_calls=None))


def _call(call: Any) -> osmosis.Message:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _cleaned(step: Any) -> list[osmosis.Message]:
    """As smolagents itself would send it."""
    options = {"role_conversions": tool_role_conversions, "convert_images_to_image_urls": True}
    said = get_clean_message_list(step.to_messages(), **options)
    return [{**message, "role": str(message["role"].value)} for message in said]


def _sent(message: ChatMessage) -> list[osmosis.Message]:
    if isinstance(message.raw, dict):
        return [message.raw]
    return get_clean_message_list([message], tool_role_conversions)


class AgentSource(osmosis.SampleSource):
    """All conversations of an agent, also those that a reset has ended."""

    def __init__(self, agent: smolagents.MultiStepAgent) -> None:
        self._agent = agent

    async def get_sample(self, sample_id: str) -> osmosis.RolloutSample:
        """The sample, as chat messages."""
        messages = [*getattr(self._agent, "past", ()), *conversation(self._agent)]
        return osmosis.RolloutSample(id=sample_id, messages=copy.deepcopy(messages))


def adapt(source: object) -> osmosis.SampleSource | None:
    """The sample source of an agent; None for anything else."""
    return AgentSource(source) if isinstance(source, smolagents.MultiStepAgent) else None
