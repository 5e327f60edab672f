import base64
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_core.testing import ScriptedPolicy
from osmosis_strands import OsmosisStrandsAgent, strands_prompt

PIXEL = base64.b64encode(b"\x89PNG pixel").decode()


def call(call_id, name="add", arguments='{"a": 1}'):
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def test_strings_become_text_blocks():
    assert strands_prompt([{"role": "user", "content": "hi"}]) == (
        [{"role": "user", "content": [{"text": "hi"}]}],
        [],
    )


def test_system_and_developer_messages_leave_the_conversation():
    messages, system = strands_prompt(
        [
            {"role": "system", "content": "a"},
            {"role": "user", "content": "q"},
            {"role": "developer", "content": [{"type": "text", "text": "b"}]},
        ]
    )
    assert [m["role"] for m in messages] == ["user"]
    assert system == [{"text": "a"}, {"text": "b"}]


def test_tool_calls_and_results_keep_their_ids():
    messages, _ = strands_prompt(
        [
            {"role": "assistant", "content": None, "tool_calls": [call("c1"), call("c2")]},
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
            {"role": "user", "content": "next"},
        ]
    )
    assert [m["role"] for m in messages] == ["assistant", "user", "user"]
    uses = [b["toolUse"]["toolUseId"] for b in messages[0]["content"]]
    results = [b["toolResult"] for b in messages[1]["content"]]
    assert uses == [r["toolUseId"] for r in results] == ["c1", "c2"]
    assert results[1]["content"] == [{"text": "two"}]


def test_broken_tool_arguments_are_kept_as_text():
    messages, _ = strands_prompt(
        [{"role": "assistant", "content": "x", "tool_calls": [call("c", arguments="{oops")]}]
    )
    assert messages[0]["content"][1]["toolUse"]["input"] == {"_raw": "{oops"}


def test_images_become_bytes_and_urls_stay_urls():
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/jpg;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": "https://example.org/cat.png"},
    ]
    messages, _ = strands_prompt([{"role": "user", "content": parts}])
    first, second = (block["image"] for block in messages[0]["content"])
    assert first["format"] == "jpeg"
    assert first["source"]["bytes"] == b"\x89PNG pixel"
    assert second["source"] == {"image_url": {"url": "https://example.org/cat.png"}}


def test_strands_blocks_pass_as_copies():
    block = {"toolUse": {"toolUseId": "t", "name": "n", "input": {}}}
    messages, _ = strands_prompt([{"role": "assistant", "content": [block]}])
    assert messages[0]["content"] == [block]
    assert messages[0]["content"][0] is not block


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "narrator", "content": "x"}, "message 0 has role 'narrator'"),
        ({"content": "x"}, "message 0 has role None"),
        ("hello", "message 0 has role None"),
        ({"role": "user", "content": 7}, "message 0 has int content"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "part of type 'input_audio'"),
        ({"role": "tool", "content": "x"}, "without tool_call_id"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "message 0 is malformed"),
        ({"role": "assistant", "tool_calls": [{"id": "x"}]}, "message 0 is malformed"),
        (
            {"role": "system", "content": [{"type": "image_url", "image_url": "http://x/y.png"}]},
            "system message with more than text",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": "data:x,y"}]},
            "not base64",
        ),
    ],
)
def test_what_strands_cannot_carry_is_named(message, problem):
    with pytest.raises(ValueError, match=problem):
        strands_prompt([message])


texts = st.text(min_size=1, max_size=20)
turns = st.lists(
    st.one_of(
        st.builds(lambda t: {"role": "user", "content": t}, texts),
        st.builds(lambda t: {"role": "user", "content": [{"type": "text", "text": t}]}, texts),
        st.builds(lambda t: {"role": "assistant", "content": t}, texts),
        st.builds(lambda t: {"role": "system", "content": t}, texts),
    ),
    max_size=8,
)


@given(turns)
def test_no_text_is_lost_and_nothing_is_changed(prompt):
    before = copy.deepcopy(prompt)
    messages, system = strands_prompt(prompt)
    blocks = [b for m in messages for b in m["content"]] + system
    said = [
        m["content"] if isinstance(m["content"], str) else m["content"][0]["text"] for m in prompt
    ]
    assert sorted(b["text"] for b in blocks) == sorted(said)
    assert prompt == before


async def test_images_reach_the_wire():
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png", "detail": "low"}},
    ]
    with ScriptedPolicy("a cat") as policy, policy.rollout():
        prompt = [{"role": "user", "content": parts}]
        await OsmosisStrandsAgent(messages=prompt, callback_handler=None).invoke_async()
    sent = policy.requests[0].body["messages"][0]["content"]
    urls = [part["image_url"]["url"] for part in sent if part["type"] == "image_url"]
    assert urls == [f"data:image/png;base64,{PIXEL}", "https://example.org/cat.png"]
    assert sent[2]["image_url"]["detail"] == "low"


async def test_system_prompt_and_system_message_are_one_message():
    with ScriptedPolicy("ok") as policy, policy.rollout():
        prompt = [{"role": "system", "content": "row"}, {"role": "user", "content": "q"}]
        agent = OsmosisStrandsAgent(messages=prompt, system_prompt="agent", callback_handler=None)
        await agent.invoke_async()
    system = [m for m in policy.requests[0].body["messages"] if m["role"] == "system"]
    assert [m["content"] for m in system] == ["agent\n\nrow"]
