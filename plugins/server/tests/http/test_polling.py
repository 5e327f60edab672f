"""The polling lease protocol, case by case (protocol.md 1.8)."""

import asyncio

import pytest

FINITE = "agent_timeout_sec", "grader_timeout_sec"


class TestAdmission:
    async def test_202_has_id_status_token_and_waits(self, serve):
        async with serve() as controller:
            answer = await controller.submit(controller.body())
        token = answer.body.pop("polling_lease_token")
        assert (answer.status, answer.body) == (
            202,
            {
                "rollout_id": "r-1",
                "status": "queued",
                "result_wait_timeout_sec": 30.0,
                "polling_lease_timeout_sec": 120.0,
            },
        )
        assert len(token) == 43

    @pytest.mark.parametrize("field", ["rollout_id", "initial_messages", "chat_completions_url"])
    async def test_422_names_the_field_that_is_missing(self, serve, field):
        async with serve() as controller:
            body = controller.body()
            del body[field]
            answer = await controller.submit(body)
        assert answer.status == 422
        (issue,) = answer.body["detail"]
        assert (issue["type"], issue["loc"]) == ("missing", ["body", field])

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("rollout_id", "a/b"),
            ("rollout_id", ""),
            ("rollout_id", ".."),
            ("rollout_id", "a\nb"),
            ("rollout_id", "a\x7fb"),
            ("rollout_id", 5),
            ("initial_messages", ["a"]),
            ("initial_messages", None),
            ("metadata", []),
            ("llm_api_key", ""),
            ("llm_api_key", "a\r\nX: y"),
            ("grade", "perhaps"),
            ("agent_timeout_sec", "soon"),
            ("chat_completions_url", "x"),
            ("chat_completions_url", "http://169.254.169.254/v1"),
        ],
    )
    async def test_422_names_the_field_that_is_wrong(self, serve, field, value):
        async with serve() as controller:
            answer = await controller.submit(controller.body(**{field: value}))
            assert answer.status == 422
            assert answer.body["detail"][0]["loc"][:2] == ["body", field]
            assert (await controller.status())["status"] == "unknown"

    @pytest.mark.parametrize("field", FINITE)
    @pytest.mark.parametrize("text", ["Infinity", "-Infinity", "NaN", "1e999"])
    async def test_422_for_a_timeout_that_is_not_finite(self, serve, field, text):
        async with serve() as controller:
            raw = '{"rollout_id": "r-1", "initial_messages": [], "chat_completions_url": '
            raw += f'"{controller.llm_url}", "{field}": {text}}}'
            answer = await controller.ask("POST", "/rollout", raw=raw)
        assert (answer.status, answer.body["detail"][0]["loc"]) == (422, ["body", field])

    @pytest.mark.parametrize(
        ("raw", "kind"),
        [
            ("", "missing"),
            ("{", "json_invalid"),
            ("[]", "model_attributes_type"),
            ('{"rollout_id": "\\ud800"}', "json_invalid"),
            ("[" * 10_000, "json_invalid"),
        ],
    )
    async def test_422_for_a_body_that_is_no_object(self, serve, raw, kind):
        async with serve() as controller:
            answer = await controller.ask("POST", "/rollout", raw=raw)
        assert (answer.status, answer.body["detail"][0]["type"]) == (422, kind)

    async def test_422_for_a_body_that_is_not_called_json(self, serve):
        async with serve() as controller:
            answer = await controller.submit(controller.body(), Content_Type="text/plain")
        assert (answer.status, answer.body["detail"][0]["loc"]) == (422, ["body"])

    async def test_422_never_repeats_what_was_sent(self, serve):
        async with serve() as controller:
            answer = await controller.submit({"llm_api_key": "sk-secret", "rollout_id": ["sk-2"]})
        assert answer.status == 422
        assert "sk-" not in str(answer.body)

    async def test_unknown_fields_are_ignored(self, serve):
        async with serve() as controller:
            body = controller.body(completion_callback_url=None, controller_api_key="k", x=1)
            assert (await controller.submit(body)).status == 202

    async def test_409_for_an_id_that_is_registered(self, serve):
        async with serve() as controller:
            await controller.lease("sleep")
            answer = await controller.submit(controller.body("sleep"))
        assert (answer.status, answer.body) == (409, {"detail": "rollout_id is already registered"})

    async def test_409_for_an_id_whose_result_is_kept(self, serve):
        async with serve() as controller:
            await controller.result(await controller.lease())
            assert (await controller.submit(controller.body())).status == 409

    async def test_429_says_when_to_come_again(self, serve):
        async with serve(max_pending=1) as controller:
            await controller.lease("sleep", "r-1")
            answer = await controller.submit(controller.body("sleep", "r-2"))
            assert (await controller.submit(controller.body("sleep", "r-1"))).status == 429
        assert (answer.status, answer.body) == (
            429,
            {"detail": "rollout queue is full; retry later"},
        )
        assert int(answer.headers["Retry-After"]) >= 1

    async def test_413_for_a_body_beyond_the_limit(self, serve):
        async with serve(max_body_bytes=2000) as controller:
            answer = await controller.submit(controller.body("x" * 2000))
            assert (await controller.submit(controller.body())).status == 202
        assert answer.status == 413

    async def test_413_for_a_body_of_unsaid_length_beyond_the_limit(self, serve):
        async def endless():
            while True:
                yield b"x" * 1000

        async with serve(max_body_bytes=2000) as controller:
            answer = await controller.ask("POST", "/rollout", raw=endless())
        assert answer.status == 413


class TestLeaseChosenByTheController:
    TOKEN = "chosen-by-the-controller"

    async def test_equal_request_is_answered_202_again_and_runs_once(self, serve):
        async with serve() as controller:
            body = controller.body()
            for _ in range(2):
                answer = await controller.submit(body, X_Osmosis_Rollout_Lease=self.TOKEN)
                assert (answer.status, answer.body["polling_lease_token"]) == (202, self.TOKEN)
            assert (await controller.result(self.TOKEN))["status"] == "success"
            answer = await controller.submit(body, X_Osmosis_Rollout_Lease=self.TOKEN)
        assert answer.status == 202

    @pytest.mark.parametrize(
        ("order", "token"), [("other", TOKEN), ("speak", "somebody-elses-token"), ("speak", None)]
    )
    async def test_other_request_or_token_is_answered_409(self, serve, order, token):
        async with serve() as controller:
            await controller.submit(controller.body(), X_Osmosis_Rollout_Lease=self.TOKEN)
            headers = {} if token is None else {"X_Osmosis_Rollout_Lease": token}
            assert (await controller.submit(controller.body(order), **headers)).status == 409

    async def test_short_token_is_refused(self, serve):
        async with serve() as controller:
            answer = await controller.submit(controller.body(), X_Osmosis_Rollout_Lease="1")
        assert answer.status == 422


class TestResult:
    async def test_success_has_sample_with_reward(self, serve):
        async with serve() as controller:
            result = await controller.result(await controller.lease())
        assert result == {
            "rollout_id": "r-1",
            "status": "success",
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

    async def test_finished_result_can_be_read_again(self, serve):
        async with serve() as controller:
            token = await controller.lease()
            first = await controller.result(token)
            assert await controller.result(token) == first

    async def test_unfinished_answer_carries_the_status_only(self, serve):
        async with serve(result_wait_timeout_sec=0.05) as controller:
            token = await controller.lease("sleep")
            await controller.until("running")
            answer = await controller.poll(token)
        nothing = {"sample": None, "err_message": None, "err_category": None}
        assert answer.body == {"rollout_id": "r-1", "status": "running", **nothing}

    @pytest.mark.parametrize(
        ("headers", "kind"),
        [({}, "missing"), ({"X_Osmosis_Rollout_Lease": ""}, "string_too_short")],
    )
    async def test_422_without_a_lease_header(self, serve, headers, kind):
        async with serve() as controller:
            await controller.lease()
            answer = await controller.ask("GET", "/rollout/r-1/result", **headers)
        assert answer.status == 422
        (issue,) = answer.body["detail"]
        assert (issue["type"], issue["loc"]) == (kind, ["header", "X-Osmosis-Rollout-Lease"])

    async def test_404_for_an_unknown_id(self, serve):
        async with serve() as controller:
            answer = await controller.poll("token", "nobody")
        assert (answer.status, answer.body) == (404, {"detail": "unknown rollout_id"})

    @pytest.mark.parametrize("order", ["speak", "sleep"])
    async def test_403_for_another_token(self, serve, order):
        async with serve() as controller:
            await controller.lease(order)
            answer = await controller.poll("not-the-token")
        assert (answer.status, answer.body) == (403, {"detail": "invalid polling lease"})

    async def test_404_for_a_rollout_of_another_protocol(self, receiver, serve):
        async with serve() as controller:
            await controller.submit(controller.body("sleep", **receiver.urls()))
            assert (await controller.poll("any-token")).status in (403, 404)

    @pytest.mark.parametrize(
        ("order", "category", "message"),
        [("fail no such", "validation_error", "no such"), ("crash on", "agent_error", "on")],
    )
    async def test_failure_says_why(self, serve, order, category, message):
        async with serve() as controller:
            result = await controller.result(await controller.lease(order))
        assert (result["status"], result["err_category"]) == ("failure", category)
        assert result["err_message"] == message

    async def test_backend_that_raises_is_a_failure_that_says_so(self, serve, broken):
        async with serve(broken) as controller:
            result = await controller.result(await controller.lease())
        assert (result["status"], result["err_category"]) == ("failure", "internal_error")
        assert "the backend broke" in result["err_message"]

    async def test_failed_grader_leaves_sample_without_reward(self, serve):
        async with serve() as controller:
            result = await controller.result(await controller.lease(label="bad"))
        assert (result["status"], result["err_message"]) == ("failure", "no number")
        assert (result["sample"]["reward"], len(result["sample"]["messages"])) == (None, 1)

    async def test_removed_sample_has_no_reward(self, serve):
        async with serve() as controller:
            sample = (await controller.result(await controller.lease(label="removed")))["sample"]
        assert (sample["remove_sample"], sample["reward"]) == (True, None)

    async def test_number_that_json_cannot_say_is_left_out(self, serve):
        async with serve() as controller:
            sample = (await controller.result(await controller.lease(label="odd")))["sample"]
        assert (sample["metrics"], sample["reward"]) == ({}, 0.5)

    async def test_grade_false_gives_the_sample_without_grading(self, serve):
        async with serve() as controller:
            result = await controller.result(await controller.lease(grade=False))
        assert (result["status"], result["sample"]["reward"]) == ("success", None)

    async def test_grading_that_did_not_run_says_why_and_keeps_the_conversation(self, serve):
        async with serve() as controller:
            result = await controller.result(await controller.lease(label=None))
        assert result["status"] == "failure"
        assert "neither a label nor metadata" in result["err_message"]
        assert len(result["sample"]["messages"]) == 1

    async def test_several_samples_are_a_failure_that_names_them(self, serve):
        async with serve() as controller:
            result = await controller.result(await controller.lease("samples a,b"))
        assert (result["status"], result["err_category"]) == ("failure", "validation_error")
        assert "2 samples (a, b)" in result["err_message"]
        assert result["sample"] is None

    async def test_one_sample_beside_helpers_is_carried(self, serve):
        async with serve() as controller:
            result = await controller.result(await controller.lease("samples helper-1,a,helper-2"))
        assert result["status"] == "success"
        assert result["sample"]["messages"][0]["content"] == "by a"

    @pytest.mark.parametrize("timeout", [0, -1, 0.05])
    async def test_timeout_that_has_passed_is_a_timeout(self, serve, timeout):
        async with serve() as controller:
            result = await controller.result(
                await controller.lease("sleep", agent_timeout_sec=timeout)
            )
        assert (result["status"], result["err_category"]) == ("failure", "timeout")


class TestLease:
    async def test_rollout_that_nobody_polls_expires(self, serve):
        times = {"result_wait_timeout_sec": 0.05, "polling_lease_timeout_sec": 0.1}
        async with serve(**times) as controller:
            token = await controller.lease("sleep")
            await controller.until("failure")
            result = await controller.result(token)
        assert (result["err_message"], result["err_category"]) == (
            "polling lease expired",
            "lease_expired",
        )

    async def test_polls_keep_it_alive(self, serve):
        times = {"result_wait_timeout_sec": 0.2, "polling_lease_timeout_sec": 0.5}
        async with serve(**times) as controller:
            token = await controller.lease("sleep")
            for _ in range(5):
                assert (await controller.poll(token)).body["status"] in ("queued", "running")

    async def test_finished_rollout_is_forgotten_after_its_retention(self, serve):
        async with serve(result_retention_sec=0.05) as controller:
            token = await controller.lease()
            await controller.result(token)
            await controller.until("unknown")
            assert (await controller.poll(token)).status == 404
            assert (await controller.submit(controller.body())).status == 202


class TestCancel:
    async def test_running_rollout_is_cancelled(self, serve):
        async with serve() as controller:
            token = await controller.lease("sleep")
            await controller.until("running")
            answer = await controller.cancel(ids=["r-1", "nobody"])
            result = await controller.result(token)
        assert answer.body == {"dispositions": {"r-1": "cancelled_running", "nobody": "not_found"}}
        assert (result["status"], result["err_category"]) == ("cancelled", None)

    async def test_long_poll_is_answered_at_once(self, serve):
        async with serve() as controller:
            token = await controller.lease("sleep")
            await controller.until("running")
            polling = asyncio.create_task(controller.poll(token))
            await asyncio.sleep(0.05)
            await controller.cancel(all=True)
            async with asyncio.timeout(10):
                while (await polling).body["status"] != "cancelled":
                    polling = asyncio.create_task(controller.poll(token))
