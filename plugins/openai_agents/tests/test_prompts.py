import copy

import pytest
from agents import Agent, Runner

from osmosis_core.testing import ScriptedPolicy
from osmosis_openai_agents import OsmosisMemorySession, OsmosisRolloutModel

MODEL = OsmosisRolloutModel()
PNG = "data:image/png;base64,iVBORw0KGgo="


def call(number, arguments="{}"):
    function = {"name": "look", "arguments": arguments}
    return {"id": f"c{number}", "type": "function", "function": function}


async def streamed(agent, given, **options):
    result = Runner.run_streamed(agent, given, **options)
    async for _ in result.stream_events():
        pass


async def sent(prompt, run=Runner.run, **options):
    """What the policy is asked, given a prompt; the prompt stays as it was."""
    before = copy.deepcopy(prompt)
    with ScriptedPolicy("ok") as policy, policy.rollout() as rollout:
        if "session" in options:
            options["session"] = OsmosisMemorySession()
        await run(Agent(name="a", model=MODEL), prompt, **options)
        sample = (await rollout.get_samples())["a"]
    assert prompt == before
    assert sample.messages[:-1] == before
    return policy.requests[0].body["messages"]


PROMPT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "look twice", "name": "ann"},
    {"role": "assistant", "content": "looking", "tool_calls": [call(1, '{"at": 1}'), call(2)]},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
    {"role": "assistant", "content": "one and two", "refusal": None},
    {"role": "user", "content": "thanks"},
]


@pytest.mark.parametrize("run", [Runner.run, streamed])
@pytest.mark.parametrize("options", [{}, {"session": True}])
async def test_tool_messages_go_out_as_they_came(run, options):
    messages = await sent(PROMPT, run, **options)
    assert [m["role"] for m in messages] == [m["role"] for m in PROMPT]
    assert messages[2]["content"] == "looking"
    assert messages[2]["tool_calls"] == PROMPT[2]["tool_calls"]
    assert [(m["tool_call_id"], m["content"]) for m in messages[3:5]] == [
        ("c1", "one"),
        ("c2", "two"),
    ]
    assert messages[5]["content"] == "one and two"


@pytest.mark.parametrize("content", [None, ""])
async def test_assistant_without_text_keeps_its_tool_calls(content):
    asked = {"role": "assistant", "content": content, "tool_calls": [call(1)]}
    answered = {"role": "tool", "tool_call_id": "c1", "content": "x"}
    messages = await sent([{"role": "user", "content": "q"}, asked, answered])
    assert messages[1]["tool_calls"] == [call(1)]
    assert messages[2]["content"] == "x"


async def test_images_and_files_go_out_in_chat_form():
    parts = [
        {"type": "text", "text": "what is this"},
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:x"}},
    ]
    [message] = await sent([{"role": "user", "content": parts}])
    assert message["content"][:2] == parts[:2]
    assert message["content"][2] == parts[2]


async def test_items_of_the_sdk_go_out_unchanged():
    parts = [{"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": PNG}]
    [message] = await sent([{"role": "user", "content": parts}])
    assert [part["type"] for part in message["content"]] == ["text", "image_url"]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            {"role": "tool", "content": "x"},
            r"prompt message 1 is malformed: KeyError\('tool_call_id'\)",
        ),
        ({"role": "user", "content": [3]}, r"prompt message 1 is malformed"),
    ],
)
async def test_prompt_that_cannot_be_carried_names_the_message(message, said):
    prompt = [{"role": "user", "content": "q"}, message]
    with ScriptedPolicy("ok") as policy, policy.rollout():
        with pytest.raises(ValueError, match=said):
            await Runner.run(Agent(name="a", model=MODEL), prompt)
    assert policy.requests == []
