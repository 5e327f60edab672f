"""Prompts reach the policy whole and are left as they were."""

from __future__ import annotations

import copy
import json

from osmosis_core.testing.adapter_conformance.kit import (
    AdapterSuite,
    check,
    expect,
    native,
    only,
    sent,
)
from osmosis_core.testing.scripted import ScriptedPolicy
from osmosis_core.types import Message

_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)


def _dialogue() -> list[Message]:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 1}'},
    }
    return [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "first question"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "tool said 7"},
        {"role": "assistant", "content": "it is seven"},
        {"role": "user", "content": "second question"},
    ]


class Prompts(AdapterSuite):
    """Chat messages of every role."""

    @check("prompts")
    async def test_whole_prompt_reaches_the_policy(self) -> None:
        """If this fails, prompt conversion drops roles, tool calls or tool results."""
        messages = await self._sent(_dialogue())
        roles = [message["role"] for message in messages]
        wanted = ["system", "user", "assistant", "tool", "assistant", "user"]
        expect(roles == wanted, f"the policy sees the roles {roles}")
        text = json.dumps(messages)
        texts = ("be brief", "first question", "tool said 7", "it is seven", "second question")
        lost = [part for part in texts if part not in text]
        expect(not lost, f"the policy does not see {lost}")

    @check("prompts")
    async def test_tool_messages_of_the_prompt_stay_paired(self) -> None:
        """If this fails, prompt conversion changes call ids or arguments; carry them over."""
        messages = await self._sent(_dialogue())
        call, result = messages[2]["tool_calls"][0], messages[3]
        ids = call["id"], result.get("tool_call_id")
        expect(ids == ("c1", "c1"), f"call and result have the ids {ids}")
        arguments = json.loads(call["function"]["arguments"])
        expect(arguments == {"a": 1}, f"the call's arguments became {arguments}")

    @check("prompts")
    async def test_prompt_is_not_changed(self) -> None:
        """If this fails, the adapter writes into the user's messages; copy them first."""
        prompt = _dialogue()
        before = copy.deepcopy(prompt)
        await self._sent(prompt)
        expect(prompt == before, "the prompt was changed by the run")

    @check("prompts")
    async def test_one_prompt_serves_two_agents(self) -> None:
        """If this fails, a run keeps the prompt's messages as its own; copy them first."""
        prompt = _dialogue()
        with ScriptedPolicy("hi") as policy, policy.rollout():
            for name in ("one", "two"):
                await self.agent(name, prompt=prompt)
        first, second = (sent(request) for request in policy.requests)
        expect(first == second, "the second agent of a prompt sees something else than the first")

    @check("prompts")
    async def test_sample_holds_the_prompt(self) -> None:
        """If this fails, the sample begins after the prompt; keep the messages it started from."""
        with ScriptedPolicy("hi") as policy:
            sample = await self.sample(policy, prompt=_dialogue())
        lost = [t for t in ("first question", "tool said 7", "second") if t not in native(sample)]
        expect(not lost, f"the sample's messages lack {lost}")

    @check("images")
    async def test_image_reaches_the_policy(self) -> None:
        """If this fails, image parts are dropped or encoded anew; pass the URL as it is."""
        for url in (_PIXEL, "https://images.invalid/a.png"):
            parts = [{"type": "text", "text": "look"}, _image(url)]
            content = (await self._sent([{"role": "user", "content": parts}]))[0]["content"]
            expect(isinstance(content, list), f"the parts became {str(content)[:60]!r}")
            urls = [p["image_url"]["url"] for p in content if p.get("type") == "image_url"]
            expect(urls == [url], f"the image {url[:30]!r} became {str(content)[:120]}")
            expect("look" in json.dumps(content), "the text beside the image is lost")

    @check("images")
    async def test_images_stay_in_order(self) -> None:
        """If this fails, parts are sorted by kind; keep their order."""
        first, second = "https://images.invalid/1.png", "https://images.invalid/2.png"
        parts = [_image(first), {"type": "text", "text": "before and after"}, _image(second)]
        text = json.dumps(await self._sent([{"role": "user", "content": parts}]))
        found = [text.find(part) for part in (first, "before and after", second)]
        expect(found == sorted(found) and found[0] >= 0, "the parts are in another order")

    @check("images")
    async def test_sample_with_an_image_is_kept(self) -> None:
        """If this fails, the sample source holds images as what JSON cannot; give their URL."""
        parts = [{"type": "text", "text": "look"}, _image(_PIXEL)]
        prompt: list[Message] = [{"role": "user", "content": parts}]
        before = copy.deepcopy(prompt)
        with ScriptedPolicy("a pixel") as policy:
            sample = await self.sample(policy, prompt=prompt)
        text = native(sample)
        expect("look" in text and "a pixel" in text, "prompt or answer is not in the sample")
        expect(sample.model_dump_json(), "the sample cannot be written as JSON")
        expect(prompt == before, "the prompt was changed by the run")

    async def _sent(self, prompt: list[Message]) -> list[Message]:
        with ScriptedPolicy("hi") as policy, policy.rollout() as rollout:
            await self.agent(prompt=prompt)
            await only(rollout)
        return policy.requests[0].body["messages"]


def _image(url: str) -> Message:
    return {"type": "image_url", "image_url": {"url": url}}
