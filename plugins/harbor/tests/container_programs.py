"""Workflows and graders that the tests run; importable from the host and from containers."""

import asyncio
import json
import os
import urllib.parse

import aiohttp

from osmosis_core import AgentWorkflow, AgentWorkflowConfig, Grader, get_rollout_context
from osmosis_core.policy import WireRequest, agent_scope, exchange


def said(text):
    return [{"role": "assistant", "content": text}]


async def ask(messages):
    """One call to the policy."""
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"content-type": "application/json"}
    answer = await exchange(WireRequest("POST", "/chat/completions", headers, body))
    assert answer.status == 200, answer.body


class Commands(AgentWorkflow):
    """Runs the commands of its metadata in the environment and says what they printed."""

    async def run(self, ctx):
        outputs = []
        for command in ctx.metadata["commands"]:
            done = await ctx.environment.exec(command)
            outputs.append(f"{done.stdout or ''}{done.stderr or ''}".strip())
        return [message for output in outputs for message in said(output)]


class Variables(AgentWorkflow):
    """Gives a command variables, one of them docker's own."""

    async def run(self, ctx):
        env = {"SECRET": "a b", "DOCKER_HOST": "theirs", "PATH": "/usr/bin"}
        done = await ctx.environment.exec('echo "$SECRET $DOCKER_HOST $PATH"', env=env)
        return said(done.stdout.strip())


class Transfers(AgentWorkflow):
    """Sends files into the environment and brings them back."""

    async def run(self, ctx):
        here, there = ctx.artifacts_dir, ctx.environment
        (here / "in").mkdir()
        (here / "in/a.txt").write_text("a file")
        await there.upload_file(here / "in/a.txt", "/workspace/a.txt")
        await there.upload_dir(here / "in", "/workspace/deep/er")
        await there.exec("cat a.txt deep/er/a.txt > both.txt && mkdir out && mv both.txt out")
        await there.download_file("/workspace/out/both.txt", here / "both.txt")
        await there.download_dir("/workspace/out", here / "out")
        return said((here / "both.txt").read_text() + (here / "out/both.txt").read_text())


class Hangs(AgentWorkflow):
    """Keeps a command running for ever."""

    async def run(self, ctx):
        await ctx.environment.exec("sleep 1000")


class Downloads(AgentWorkflow):
    """Makes something hostile and downloads it."""

    async def run(self, ctx):
        make, source, kind = ctx.metadata["make"], "/workspace/bad", ctx.metadata["kind"]
        await ctx.environment.exec(make)
        target = ctx.artifacts_dir / "got"
        if kind == "file":
            await ctx.environment.download_file(source, target)
        else:
            await ctx.environment.download_dir(source, target)
        return said(" ".join(sorted(path.name for path in target.rglob("*"))))


class RewardsLast(Grader):
    """1.0 when the last message is the label."""

    async def grade(self, ctx):
        ctx.set_reward(float(ctx.sample.messages[-1]["content"] == ctx.label))


class Half(Grader):
    async def grade(self, ctx):
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, 0.5)


class WordConfig(AgentWorkflowConfig):
    name: str = "words"
    word: str = "none"


class TwoAgents(AgentWorkflow):
    """Asks as itself and as a helper."""

    async def run(self, ctx):
        await ask(ctx.prompt)
        with agent_scope("helper", trainable=False):
            await ask([{"role": "user", "content": "help"}])


class Inspects(AgentWorkflow):
    """Says what a thief in the container would find."""

    async def run(self, ctx):
        await ask(ctx.prompt)
        context = get_rollout_context()
        (ctx.artifacts_dir / "note.txt").write_text(ctx.config.word if ctx.config else "-")
        print("printed inside")
        secrets = [context.api_key or "", *os.environ.values()]
        seen = " ".join(sorted({"tests", "run"} & set(os.listdir("/"))))  # noqa: PTH208
        return said(f"{seen} {'sk-secret' in ' '.join(secrets)} {context.chat_completions_url}")


class Crashes(AgentWorkflow):
    async def run(self, ctx):
        os._exit(3)


class HangsInside(AgentWorkflow):
    async def run(self, ctx):
        await asyncio.Event().wait()


class Lies(AgentWorkflow):
    """Gives a result of its own making before the runner can."""

    async def run(self, ctx):
        await ask(ctx.prompt)
        sample = {"id": "main", "reward": 1.0, "label": "stolen", "messages": said("the truth")}
        call = {"call_id": "x", "rollout_id": "x", "sample_id": "main", "index": 0}
        call |= {"request": {"messages": []}, "started_at": 0.0, "answer": said("forged")[0]}
        body = json.dumps({"status": "success", "samples": {"main": {**sample, "calls": [call]}}})
        connector = aiohttp.UnixConnector(path="/run/osmosis/relay.sock")
        async with aiohttp.ClientSession("http://relay", connector=connector) as relay:
            async with relay.post("/result", data=ctx.metadata.get("raw", body)) as answer:
                assert answer.status == 200
            async with relay.get("/v1/models") as answer:
                assert answer.status == 404
            sample_id = urllib.parse.quote("x" * 300)
            headers = {"x-sample-id": sample_id}
            async with relay.post("/v1/chat/completions", headers=headers, json={}) as answer:
                assert answer.status == 400
