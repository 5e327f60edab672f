import json
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from osmosis_core.testing import Say, ScriptedPolicy, Status, Web

KEY = "sk-very-secret-key"


def url(policy: ScriptedPolicy, *extra: str) -> tuple[str, ...]:
    return ("--base-url", policy.base_url, *extra)


def content(received: Any) -> str:
    return received.body["messages"][-1]["content"]


def test_rows_are_rolled_out_graded_and_written(
    flow: Any, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    ended = osmosis(*flow.arguments(*url(policy, "--n", "2", "--model", "big")))
    assert ended.code == 0
    results = flow.lines()
    expected = {(row, run) for row in range(3) for run in range(2)}
    assert {(r["row_index"], r["run_index"]) for r in results} == expected
    assert {(r["status"], r["rewards"]["main"], r["calls"]) for r in results} == {
        ("success", 1.0, 1)
    }
    assert len({r["rollout_id"] for r in results}) == 6
    assert flow.lines("samples.jsonl")[0]["samples"]["main"]["messages"][-1]["content"] == "ok"
    assert {request.body["model"] for request in policy.requests} == {"big"}


def test_summary_on_disk_says_what_the_table_says(
    flow: Any, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    ended = osmosis(*flow.arguments(*url(policy)))
    summary = flow.summary()
    assert summary["rollouts"]["succeeded"] == summary["rewards"]["graded"] == 3
    assert (summary["interrupted"], summary["grader"], summary["output"]) == (False, "Equal", "out")
    assert summary["policy"] == {"base_url": policy.base_url, "model": None}
    assert re.search(r"main\W+3\W+3\W+1\W+0\W+1\W+1", ended.out)
    assert "rollouts: 3 ok, 0 failed, of 3 planned" in ended.out
    assert ended.out.rstrip().endswith("output: out")
    assert ended.err == ""


def test_failed_rollouts_exit_1_and_leave_the_mean_alone(
    flow: Any, osmosis: Callable[..., Any]
) -> None:
    with ScriptedPolicy(lambda r: Status(400, "bad") if content(r) == "q1" else "ok") as policy:
        ended = osmosis(*flow.arguments(*url(policy)))
    summary = flow.summary()
    assert ended.code == 1
    assert summary["rewards"] == {"graded": 2, "mean": 1.0, "std": 0.0, "min": 1.0, "max": 1.0}
    assert summary["rollouts"]["failed_by_category"] == {"http_error": 1}
    assert "rollouts: 2 ok, 1 failed (http_error 1), of 3 planned" in ended.out
    assert re.search(r"error: 1 x .*400", ended.out)
    failed = next(r for r in flow.lines() if r["status"] == "failure")
    assert (failed["row_index"], failed["rewards"]) == (1, {"main": None})


def test_without_grader_samples_are_collected(
    workspace: Any, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    workspace.write(
        "flow.py",
        """
        from osmosis_core import AgentWorkflow

        class Silent(AgentWorkflow):
            async def run(self, ctx):
                return [*ctx.prompt, {"role": "assistant", "content": "a"}]
        """,
    )
    workspace.rows(2)
    ended = osmosis(*workspace.arguments(*url(policy)))
    assert ended.code == 0
    assert "no grader in the entrypoint" in ended.out
    assert [r["rewards"] for r in workspace.lines()] == [{"main": None}] * 2
    assert workspace.summary()["samples"]["main"]["samples"] == 2


def test_offset_and_limit_select_rows(
    flow: Any, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    flow.rows(9)
    osmosis(*flow.arguments(*url(policy, "--offset", "2", "--limit", "3")))
    assert sorted(r["row_index"] for r in flow.lines()) == [2, 3, 4]


def test_rewards_by_metadata_key(
    flow: Any, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    flow.rows(2, metadata={"kind": "[red]sums"})
    ended = osmosis(*flow.arguments(*url(policy, "--by", "kind")))
    assert re.search(r"\[red\]sums\W+2\W+2\W+1", ended.out)
    assert flow.summary()["by"]["kind"]["[red]sums"]["mean"] == 1.0


def test_truncated_answers_are_counted(flow: Any, osmosis: Callable[..., Any]) -> None:
    with ScriptedPolicy(Say("ok", finish_reason="length")) as policy:
        ended = osmosis(*flow.arguments(*url(policy)))
    assert "truncated samples: 3" in ended.out


CONFIGURED = """
    import asyncio
    from osmosis_core import AgentWorkflow, AgentWorkflowConfig, ConcurrencyConfig

    class Settings(AgentWorkflowConfig):
        word: str

    config = Settings(name="named", word="w", concurrency=ConcurrencyConfig(max_concurrent=2))
    alive = most = 0

    class Count(AgentWorkflow[Settings]):
        async def run(self, ctx):
            global alive, most
            alive += 1
            most = max(most, alive)
            await asyncio.sleep(0.02)
            alive -= 1
            return [{"role": "assistant", "content": f"{ctx.config.word} {most}"}]
"""


@pytest.mark.parametrize(("extra", "most"), [((), 2), (("--concurrency", "6"), 6)])
def test_concurrency_is_the_configs_unless_asked_otherwise(
    workspace: Any, osmosis: Callable[..., Any], extra: tuple[str, ...], most: int
) -> None:
    workspace.write("flow.py", CONFIGURED)
    workspace.rows(12)
    osmosis(*workspace.arguments("--policy", "demo", *extra))
    samples = [line["samples"]["main"] for line in workspace.lines("samples.jsonl")]
    assert max(sample["messages"][0]["content"] for sample in samples) == f"w {most}"
    assert workspace.summary()["name"].startswith("named-")


@pytest.mark.parametrize(("extra", "most"), [((), 4), (("--concurrency", "6"), 6)])
def test_concurrency_is_four_without_a_config(
    workspace: Any, osmosis: Callable[..., Any], extra: tuple[str, ...], most: int
) -> None:
    text = CONFIGURED.replace("config = Settings", "Settings").replace("{ctx.config.word}", "w")
    workspace.write("flow.py", text)
    workspace.rows(12)
    ended = osmosis(*workspace.arguments("--policy", "demo", *extra))
    contents = [line["samples"]["main"]["messages"] for line in workspace.lines("samples.jsonl")]
    assert max(messages[0]["content"] for messages in contents) == f"w {most}"
    assert "warning: no Settings instance at module level" in ended.err


def test_timeouts_reach_the_rollouts(workspace: Any, osmosis: Callable[..., Any]) -> None:
    workspace.write(
        "flow.py",
        """
        import asyncio
        from osmosis_core import AgentWorkflow, Grader

        class Slow(AgentWorkflow):
            async def run(self, ctx):
                await asyncio.sleep(30 if ctx.prompt[0]["content"] == "q0" else 0)
                return []

        class SlowGrader(Grader):
            async def grade(self, ctx):
                await asyncio.sleep(30)
        """,
    )
    workspace.rows(2)
    limits = ("--timeout", "0.3", "--grader-timeout", "0.2")
    ended = osmosis(*workspace.arguments("--policy", "demo", *limits))
    assert ended.code == 1
    messages = {r["row_index"]: r["err_message"] for r in workspace.lines()}
    assert messages == {
        0: "workflow exceeded its 0.3s deadline",
        1: "grader exceeded its 0.2s deadline",
    }


def test_files_of_a_workflow_lie_below_the_output(
    workspace: Any, osmosis: Callable[..., Any]
) -> None:
    workspace.write(
        "flow.py",
        """
        from osmosis_core import AgentWorkflow

        class Writer(AgentWorkflow):
            async def run(self, ctx):
                (ctx.artifacts_dir / "note.txt").write_text("n")
                return []
        """,
    )
    workspace.rows(2)
    osmosis(*workspace.arguments("--policy", "demo"))
    assert len(list((workspace.path / "out/artifacts").rglob("note.txt"))) == 2


def test_default_output_is_named_after_the_workflow(
    flow: Any, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    arguments = ("eval", "run", "-m", "flow.py", "--dataset", "rows.jsonl", *url(policy))
    for _ in range(2):
        assert osmosis(*arguments).code == 0
    names = [path.name for path in (flow.path / ".osmosis/evals").iterdir()]
    assert len(names) == 2
    assert all(re.fullmatch(r"Answer-\d{8}T\d{6}Z(-2)?", name) for name in names)


def test_output_is_never_overwritten(
    flow: Any, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    osmosis(*flow.arguments(*url(policy)))
    before = [(flow.path / "out" / name).read_bytes() for name in ("results.jsonl", "summary.json")]
    ended = osmosis(*flow.arguments(*url(policy)))
    assert (ended.code, ended.out) == (2, "")
    assert "'out' has a results.jsonl already; choose another directory" in ended.err
    after = [(flow.path / "out" / name).read_bytes() for name in ("results.jsonl", "summary.json")]
    assert before == after


def test_key_is_in_no_file_and_in_no_output(
    workspace: Any, osmosis: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.write(
        "flow.py",
        """
        import os
        from osmosis_core import AgentWorkflow

        class Leaky(AgentWorkflow):
            async def run(self, ctx):
                if ctx.prompt[0]["content"] == "q0":
                    raise RuntimeError("key " + os.environ["MY_KEY"])
                return [{"role": "user", "content": os.environ["MY_KEY"]}]
        """,
    )
    workspace.rows(2)
    monkeypatch.setenv("MY_KEY", KEY)
    with ScriptedPolicy("ok", api_key=KEY) as policy:
        ended = osmosis(*workspace.arguments(*url(policy, "--api-key-env", "MY_KEY")))
    assert ended.code == 1
    assert "key ***" in ended.out
    files = [path for path in (workspace.path / "out").rglob("*") if path.is_file()]
    texts = [ended.out, ended.err, *(path.read_text() for path in files)]
    assert len(files) == 3
    assert not [text for text in texts if KEY in text]


def refused(flow: Any, ended: Any, message: str) -> None:
    assert (ended.code, ended.out) == (2, "")
    assert re.search(message, ended.err)
    assert not (flow.path / "out").exists()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Status(401, "who are you"), r"answered 401: who are you; check the API key"),
        (Status(404, "no model"), r"answered 404: no model; check the base URL and the model"),
        (Status(503, "later"), r"answered 503: later"),
        (Web(), r"answered a web page, not a chat completion"),
    ],
)
def test_endpoint_that_refuses_is_one_line_before_any_rollout(
    flow: Any, osmosis: Callable[..., Any], answer: Any, message: str
) -> None:
    with ScriptedPolicy(answer) as policy:
        ended = osmosis(*flow.arguments(*url(policy)))
    refused(flow, ended, rf"^error: the policy at {policy.base_url}.* {message}")
    assert len(ended.err.splitlines()) == 1
    assert len(policy.requests) == 1


def test_endpoint_that_is_down_is_one_line(flow: Any, osmosis: Callable[..., Any]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        ended = osmosis(*flow.arguments("--base-url", f"http://127.0.0.1:{port}/v1"))
    refused(flow, ended, r"^error: .* cannot be reached: .*check --base-url.*--no-preflight")
    assert len(ended.err.splitlines()) == 1


def test_preflight_can_be_skipped(
    flow: Any, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    assert osmosis(*flow.arguments(*url(policy, "--no-preflight"))).code == 0
    assert len(policy.requests) == 3


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ((), r"give either --base-url URL or --policy NAME; registered policies: .*demo"),
        (("--policy", "demo", "--base-url", "http://h/v1"), r"give either --base-url"),
        (("--policy", "dmo"), r"^error: no policy 'dmo'; .*did you mean 'demo'\?"),
        (("--policy", "demo", "--model", "m"), r"--model and --api-key-env go with --base-url"),
        (("--policy", "demo", "--backend", "loca"), r"^error: no backend 'loca'; .*'local'\?"),
        (("--base-url", "host/v1"), r"^error: --base-url needs the form http"),
        (("--base-url", "http://h/v1", "--api-key-env", "sk-1"), r"takes the name of an env"),
        (("--policy", "demo", "--dataset", "row.jsonl"), r"did you mean 'rows\.jsonl'"),
        (("--policy", "demo", "--offset", "3"), r"--offset 3 is past the end; .* has 3 rows"),
        (("--policy", "demo", "--by", "kind"), r"--by 'kind': no row has it in its metadata"),
        (("--policy", "demo", "--output", "flow.py/x"), r"^error: output directory .*Not a dir"),
        (("--policy", "demo", "--timeout", "nan"), r"nan is not a number of seconds above 0"),
        (("--policy", "demo", "--grader-timeout", "0"), r"0\.0 is not a number of seconds"),
        (("--policy", "demo", "--concurrency", "0"), r"0 is not in the range x>=1"),
        (("--policy", "demo", "-m", "flow"), r"give TARGET once"),
    ],
)
def test_mistakes_end_with_exit_2(
    flow: Any, osmosis: Callable[..., Any], extra: tuple[str, ...], message: str
) -> None:
    ended = osmosis(*flow.arguments(*extra))
    assert (ended.code, ended.out) == (2, "")
    assert re.search(message, ended.err)
    assert not (flow.path / "out").exists()


def test_toml_target_is_not_supported_yet(flow: Any, osmosis: Callable[..., Any]) -> None:
    arguments = flow.arguments("--policy", "demo", target="run.TOML")
    refused(flow, osmosis(*arguments), r"TOML configs are not supported yet .*give an entrypoint")


def test_workflow_that_cannot_be_built_ends_with_exit_2(
    flow: Any, osmosis: Callable[..., Any]
) -> None:
    flow.write(
        "flow.py",
        """
        from osmosis_core import AgentWorkflow

        class Broken(AgentWorkflow):
            def __init__(self, config=None):
                raise RuntimeError("no luck")

            async def run(self, ctx): ...
        """,
    )
    ended = osmosis(*flow.arguments("--policy", "demo"))
    refused(flow, ended, r"'flow\.py': Broken\(config\) raised RuntimeError: no luck")


@pytest.mark.parametrize("extra", [(), ("--config", "x.toml", "-h")])
def test_submit_names_validate(osmosis: Callable[..., Any], extra: tuple[str, ...]) -> None:
    ended = osmosis("eval", "submit", *extra)
    assert (ended.code, ended.out) == (2, "")
    assert "hosted platform" in ended.err
    assert "`osmosis validate" in ended.err


def test_json_is_the_summary_on_disk(
    flow: Any, policy: ScriptedPolicy, osmosis: Callable[..., Any]
) -> None:
    ended = osmosis(*flow.arguments(*url(policy, "--json")))
    assert json.loads(ended.out) == flow.summary()
