"""The two callback protocols, case by case (protocol.md 1.3 to 1.6)."""

import asyncio
import re

import httpx2
import openai
import pytest

from osmosis_core import AgentWorkflow, LocalBackend
from osmosis_core.policy import BASE_URL, MODEL, async_client
from osmosis_core.testing import ScriptedPolicy

MULTI, SINGLE = "multi-sample", "single-sample"


@pytest.fixture(params=[MULTI, SINGLE])
async def controller(request, receiver, serve):
    async with serve(callback_protocol=request.param) as controller:
        controller.protocol = request.param
        yield controller


@pytest.fixture
async def multi(receiver, serve):
    async with serve(callback_protocol=MULTI) as controller:
        yield controller


@pytest.fixture
async def single(receiver, serve):
    async with serve(callback_protocol=SINGLE) as controller:
        yield controller


class TestAdmission:
    async def test_multi_sample_is_answered_200_and_an_empty_object(self, multi, receiver):
        answer = await multi.submit(multi.body(**receiver.urls()))
        assert (answer.status, answer.body) == (200, {})

    async def test_single_sample_is_answered_202_and_an_empty_object(self, single, receiver):
        answer = await single.submit(single.body(**receiver.urls()))
        assert (answer.status, answer.body) == (202, {})

    async def test_routing_headers_do_no_harm(self, controller, receiver):
        headers = {"x_rollout_id": "r-1", "x_sample_id": "main"}
        answer = await controller.submit(controller.body(**receiver.urls()), **headers)
        assert answer.status in (200, 202)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("completion_callback_url", "y"),
            ("completion_callback_url", 5),
            ("grader_callback_url", "http://169.254.169.254/"),
            ("chat_completions_url", "file:///etc/passwd"),
            ("controller_api_key", "a\nb"),
            ("rollout_id", "a/b"),
            ("initial_messages", "hi"),
        ],
    )
    async def test_422_names_the_field(self, controller, receiver, field, value):
        body = controller.body(**receiver.urls()) | {field: value}
        answer = await controller.submit(body)
        assert (answer.status, answer.body["detail"][0]["loc"][:2]) == (422, ["body", field])

    async def test_422_for_an_infinite_timeout(self, controller, receiver):
        raw = '{"rollout_id": "r", "initial_messages": [], "agent_timeout_sec": Infinity, '
        raw += '"chat_completions_url": "http://127.0.0.1/v1", '
        raw += '"completion_callback_url": "http://127.0.0.1/"}'
        assert (await controller.ask("POST", "/rollout", raw=raw)).status == 422

    async def test_422_for_an_empty_llm_key_of_single_sample(self, single, receiver):
        answer = await single.submit(single.body(llm_api_key="", **receiver.urls()))
        assert (answer.status, answer.body["detail"][0]["loc"]) == (422, ["body", "llm_api_key"])

    async def test_multi_sample_needs_an_id(self, multi, receiver):
        body = multi.body(**receiver.urls())
        del body["rollout_id"]
        assert (await multi.submit(body)).status == 422

    async def test_single_sample_without_an_id_gets_one(self, single, receiver):
        body = single.body(**receiver.urls())
        del body["rollout_id"]
        assert (await single.submit(body)).status == 202
        completion = await receiver.wait("/completion")
        assert re.fullmatch("[0-9a-f]{32}", completion["rollout_id"])

    async def test_equal_request_again_is_accepted_and_runs_once(self, controller, receiver):
        body = controller.body(**receiver.urls())
        statuses = {(await controller.submit(body)).status for _ in range(3)}
        await receiver.wait("/grader")
        statuses.add((await controller.submit(body)).status)
        await asyncio.sleep(0.1)
        assert len(statuses) == 1
        assert receiver.paths == ["/completion", "/grader"]

    async def test_409_for_another_request_with_the_same_id(self, controller, receiver):
        await controller.submit(controller.body("sleep", **receiver.urls()))
        answer = await controller.submit(controller.body("speak", **receiver.urls()))
        assert (answer.status, answer.body) == (409, {"detail": "rollout_id is already registered"})

    async def test_429_says_when_to_come_again(self, receiver, serve):
        async with serve(max_pending=1) as controller:
            await controller.submit(controller.body("sleep", "r-1", **receiver.urls()))
            answer = await controller.submit(controller.body("sleep", "r-2", **receiver.urls()))
        assert answer.body == {"detail": "rollout queue is full; retry later"}
        assert (answer.status, int(answer.headers["Retry-After"]) >= 1) == (429, True)


class TestCompletion:
    async def test_multi_sample_success(self, multi, receiver):
        await multi.submit(multi.body(**receiver.urls()))
        assert await receiver.wait("/completion") == {
            "rollout_id": "r-1",
            "status": "success",
            "extra_fields": None,
            "err_message": None,
            "err_category": None,
        }

    async def test_single_sample_success(self, single, receiver):
        await single.submit(single.body(**receiver.urls()))
        assert await receiver.wait("/completion") == {
            "status": "success",
            "rollout_id": "r-1",
            "extra_fields": None,
            "err_message": None,
            "err_category": None,
        }

    async def test_failure_says_why(self, controller, receiver):
        await controller.submit(controller.body("fail no such", **receiver.urls()))
        got = await receiver.wait("/completion")
        assert (got["status"], got["err_message"], got["err_category"]) == (
            "failure",
            "no such",
            "validation_error",
        )

    async def test_timeout_has_its_category(self, controller, receiver):
        await controller.submit(controller.body("sleep", agent_timeout_sec=0.05, **receiver.urls()))
        assert (await receiver.wait("/completion"))["err_category"] == "timeout"

    @pytest.mark.parametrize(("key", "header"), [("cb-key", "Bearer cb-key"), (None, None)])
    async def test_callbacks_bring_the_controllers_key(self, controller, receiver, key, header):
        body = controller.body(controller_api_key=key, **receiver.urls())
        await controller.submit(body)
        await receiver.wait("/grader")
        assert [headers.get("Authorization") for _, headers, _ in receiver.got] == [header] * 2
        assert {headers["Content-Type"] for _, headers, _ in receiver.got} == {"application/json"}

    async def test_keys_are_not_in_error_texts(self, controller, receiver):
        order = "fail wrong key cb-secret-1"
        body = controller.body(order, controller_api_key="cb-secret-1", **receiver.urls())
        await controller.submit(body)
        assert (await receiver.wait("/completion"))["err_message"] == "wrong key ***"

    @pytest.mark.parametrize("protocol", [MULTI, SINGLE])
    async def test_backend_that_raises_is_a_failure_in_both_callbacks_once(
        self, receiver, serve, broken, protocol
    ):
        async with serve(broken, callback_protocol=protocol) as controller:
            await controller.submit(controller.body(**receiver.urls()))
            await receiver.wait("/grader")
        assert receiver.paths == ["/completion", "/grader"]
        for _, _, body in receiver.got:
            assert (body["status"], body["err_category"]) == ("failure", None)
            assert "the backend broke" in body["err_message"]

    async def test_cancelled_rollout_is_a_failure_for_multi_sample(self, multi, receiver):
        await self._cancel(multi, receiver)
        assert (await receiver.wait("/completion"))["status"] == "failure"
        assert (await receiver.wait("/grader"))["status"] == "failure"

    async def test_cancelled_rollout_is_cancelled_for_single_sample(self, single, receiver):
        await self._cancel(single, receiver)
        assert (await receiver.wait("/completion"))["status"] == "cancelled"
        assert (await receiver.wait("/grader"))["status"] == "failure"

    async def _cancel(self, controller, receiver):
        await controller.submit(controller.body("sleep", **receiver.urls()))
        await controller.until("running")
        answer = await controller.cancel(prefix="r-")
        assert answer.body == {"dispositions": {"r-1": "cancelled_running"}}


class TestGrader:
    async def test_multi_sample_carries_every_sample(self, multi, receiver):
        await multi.submit(multi.body("samples a,b", **receiver.urls()))
        got = await receiver.wait("/grader")
        samples = got.pop("samples")
        assert got == {
            "rollout_id": "r-1",
            "status": "success",
            "err_message": None,
            "err_category": None,
        }
        assert samples["b"] == {
            "id": "b",
            "messages": [{"role": "assistant", "content": "by b"}],
            "label": "1",
            "reward": 0.5,
            "remove_sample": False,
            "metrics": {"odd": 1.0},
            "extra_fields": {"agent_name": "b"},
        }
        assert list(samples) == ["a", "b"]

    async def test_single_sample_carries_one_without_id(self, single, receiver):
        await single.submit(single.body(**receiver.urls()))
        assert await receiver.wait("/grader") == {
            "status": "success",
            "rollout_id": "r-1",
            "sample": {
                "messages": [{"role": "assistant", "content": "did speak"}],
                "label": "1",
                "reward": 0.5,
                "remove_sample": False,
                "metrics": {"odd": 1.0},
                "extra_fields": {},
            },
            "err_message": None,
            "err_category": None,
        }

    async def test_single_sample_with_several_is_a_failure_in_both_callbacks(
        self, single, receiver
    ):
        await single.submit(single.body("samples a,b", **receiver.urls()))
        for path in ("/completion", "/grader"):
            got = await receiver.wait(path)
            assert (got["status"], got["err_category"]) == ("failure", "validation_error")
            assert "2 samples (a, b)" in got["err_message"]
        assert got["sample"] is None

    async def test_comes_after_the_completion_and_each_once(self, controller, receiver):
        await controller.submit(controller.body(**receiver.urls()))
        await receiver.wait("/grader")
        await asyncio.sleep(0.1)
        assert receiver.paths == ["/completion", "/grader"]

    async def test_without_its_url_nothing_is_graded(self, controller, receiver):
        await controller.submit(controller.body(label="bad", **receiver.urls(graded=False)))
        assert (await receiver.wait("/completion"))["status"] == "success"
        await controller.until("success")
        assert receiver.paths == ["/completion"]

    async def test_after_a_failed_workflow_it_is_a_failure_that_says_so(self, controller, receiver):
        await controller.submit(controller.body("fail it", **receiver.urls()))
        got = await receiver.wait("/grader")
        assert got["status"] == "failure"
        assert "it" in got["err_message"]

    async def test_grading_that_did_not_run_says_why(self, controller, receiver):
        await controller.submit(controller.body(label=None, **receiver.urls()))
        got = await receiver.wait("/grader")
        assert got["status"] == "failure"
        assert "neither a label nor metadata" in got["err_message"]
        (sample,) = got["samples"].values() if "samples" in got else [got["sample"]]
        assert sample["reward"] is None

    async def test_metadata_alone_is_graded(self, controller, receiver):
        await controller.submit(controller.body(label=None, metadata={}, **receiver.urls()))
        assert (await receiver.wait("/grader"))["status"] == "success"

    async def test_failed_grader_keeps_no_reward(self, controller, receiver):
        await controller.submit(controller.body(label="bad", **receiver.urls()))
        got = await receiver.wait("/grader")
        assert (got["status"], got["err_category"]) == ("failure", "validation_error")
        (sample,) = got["samples"].values() if "samples" in got else [got["sample"]]
        assert sample["reward"] is None

    @pytest.mark.parametrize(("label", "reward"), [("removed", None), ("odd", 0.5)])
    async def test_sample_is_json_safe(self, controller, receiver, label, reward):
        await controller.submit(controller.body(label=label, **receiver.urls()))
        got = await receiver.wait("/grader")
        (sample,) = got["samples"].values() if "samples" in got else [got["sample"]]
        assert sample["reward"] == reward
        assert "odd" not in sample["metrics"] or label == "removed"

    async def test_helpers_are_marked_as_removed(self, multi, receiver):
        await multi.submit(multi.body("samples a,helper", **receiver.urls()))
        samples = (await receiver.wait("/grader"))["samples"]
        marks = {
            name: (sample["remove_sample"], sample["reward"]) for name, sample in samples.items()
        }
        assert marks == {"a": (False, 0.5), "helper": (True, None)}


class TestDelivery:
    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    async def test_what_may_pass_is_tried_again(self, controller, receiver, status):
        receiver.script = [status]
        await controller.submit(controller.body(**receiver.urls()))
        await receiver.wait("/grader")
        assert receiver.paths == ["/completion", "/completion", "/grader"]
        assert receiver.got[0][2] == receiver.got[1][2]

    async def test_redirect_is_not_followed(self, controller, receiver):
        receiver.script = [307]
        await controller.submit(controller.body(**receiver.urls()))
        await receiver.wait("/completion")
        await asyncio.sleep(0.2)
        assert "/elsewhere" not in receiver.paths

    async def test_refused_completion_is_not_followed_by_a_contradicting_one(
        self, controller, receiver
    ):
        receiver.script = [400]
        await controller.submit(controller.body(**receiver.urls()))
        await controller.until("success")
        await asyncio.sleep(0.2)
        said = {body["status"] for path, _, body in receiver.got if path == "/completion"}
        assert said == {"success"}


class Asks(AgentWorkflow):
    async def run(self, ctx):
        sdk = openai.AsyncOpenAI(
            base_url=BASE_URL, http_client=async_client(httpx2), api_key="-", max_retries=0
        )
        await sdk.chat.completions.create(model=MODEL, messages=ctx.prompt)


class TestPolicy:
    @pytest.mark.parametrize(
        ("protocol", "keys", "wanted"),
        [
            (SINGLE, {"controller_api_key": "c"}, "Bearer c"),
            (SINGLE, {"controller_api_key": "c", "llm_api_key": "l"}, "Bearer l"),
            (MULTI, {"controller_api_key": "c", "llm_api_key": "l"}, "Bearer c"),
            ("polling", {"llm_api_key": "l"}, "Bearer l"),
        ],
    )
    async def test_agents_call_it_with_the_key_of_their_protocol(
        self, receiver, serve, tmp_path, protocol, keys, wanted
    ):
        is_polling = protocol == "polling"
        mode = {} if is_polling else {"callback_protocol": protocol}
        backend = LocalBackend(workflow=Asks, artifacts_root=tmp_path)
        with ScriptedPolicy("hello") as policy:
            async with serve(backend, **mode) as controller:
                controller.llm_url = policy.base_url
                urls = {} if is_polling else receiver.urls(graded=False)
                await controller.submit(controller.body(grade=False, **keys, **urls))
                await controller.until("success")
            (asked,) = policy.requests
        assert asked.headers["authorization"] == wanted
        assert (asked.headers["x-rollout-id"], asked.headers["x-sample-id"]) == ("r-1", "main")

    @pytest.mark.parametrize("protocol", [SINGLE, MULTI, "polling"])
    async def test_without_a_key_it_is_not_given_the_environments(
        self, receiver, serve, tmp_path, monkeypatch, protocol
    ):
        monkeypatch.setenv("OSMOSIS_API_KEY", "sk-environment")
        is_polling = protocol == "polling"
        mode = {} if is_polling else {"callback_protocol": protocol}
        backend = LocalBackend(workflow=Asks, artifacts_root=tmp_path)
        with ScriptedPolicy("hello") as policy:
            async with serve(backend, **mode) as controller:
                controller.llm_url = policy.base_url
                urls = {} if is_polling else receiver.urls(graded=False)
                await controller.submit(controller.body(grade=False, **urls))
                await controller.until("success")
            (asked,) = policy.requests
        assert "sk-environment" not in str(asked.headers)
