"""Realistic bugs of adapters, as edits of the right one in `tiny/`, and the checks that see them.

Names of checks leave out `test_`. `also` are further edits of the same file.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    checks: tuple[str, ...]


def bug(name, file, old, new, *checks, also=()):
    return Bug(name, f"tiny_{file}.py", ((old, new), *also), checks)


COMPLETE = """        response = await async_client(httpx2).post(URL, json=body)
        response.raise_for_status()
"""
OWN_CLIENT = """        rollout = get_rollout_context()
        url = f"{rollout.chat_completions_url}/chat/completions"
        headers = {"x-rollout-id": rollout.rollout_id, "x-sample-id": current_scope().sample_id}
        response = await %s.post(url, json=body, headers=headers)
        response.raise_for_status()
"""
CALL = """            arguments = json.loads(call["function"]["arguments"])
"""
RUN = """        with self.scope():
            return await super().run(text)
"""
SCHEMA = """    function = {"name": name, "description": description, "parameters": parameters}
"""
HISTORY = "messages=copy.deepcopy(self.agent.messages)"
REGISTER = "self.sample_id = rollout.register_agent(name, TinySource(self), derived=True)"
TOOLS = """            self.messages += await asyncio.gather(*results)
"""
SENT = """        body = {"model": MODEL, "messages": messages, **options}
"""
ANSWER = """            answer = await self.model.complete(self._shown(), self._schemas())
"""

BUGS = [
    # whose call it is
    bug(
        "calls of every agent are labelled main",
        "osmosis",
        "agent_scope(self.sample_id,",
        'agent_scope("main",',
        "calls_carry_rollout_and_sample",
        "parallel_agents_of_one_rollout_are_told_apart",
    ),
    bug(
        "a client of its own for each call",
        "osmosis",
        COMPLETE,
        OWN_CLIENT % "httpx2.AsyncClient()",
        "calls_carry_rollout_and_sample",
        "key_of_the_rollout_is_sent",
        "run_leaves_no_socket",
    ),
    bug(
        "one client of its own for all loops",
        "osmosis",
        COMPLETE,
        OWN_CLIENT % "OWN",
        "one_model_serves_one_loop_after_the_other",
    ),
    bug(
        "the key of the environment is sent along",
        "osmosis",
        "post(URL, json=body)",
        "post(URL, json=body, headers={'x-api-key': __import__('os').environ.get('OPENAI_API_KEY')"
        " or ''})",
        "keys_of_the_environment_are_not_used",
    ),
    bug(
        "the model is bound to the rollout it was created in",
        "osmosis",
        "class TinyModel:\n",
        "class TinyModel:\n"
        "    def __init__(self):\n"
        "        self.rollout = get_rollout_context()\n"
        "        if self.rollout is None:\n"
        '            raise NoActiveRolloutError("TinyModel")\n\n',
        "model_lives_outside_of_rollouts",
        "concurrent_rollouts_never_meet",
    ),
    bug(
        "the current rollout is a global",
        "osmosis",
        COMPLETE,
        "        CURRENT.append(get_rollout_context())\n        await asyncio.sleep(0.001)\n"
        "        headers = bound_headers(CURRENT[-1], current_scope().sample_id)\n"
        + COMPLETE.replace("json=body", "json=body, headers=headers"),
        "concurrent_rollouts_never_meet",
        "two_policies_at_once_keep_their_keys",
    ),
    bug(
        "finished rollouts are kept",
        "osmosis",
        REGISTER,
        REGISTER + "\n        KEPT.append(rollout)",
        "finished_rollouts_are_let_go",
    ),
    bug(
        "a call outside a rollout answers nothing",
        "osmosis",
        SENT,
        SENT + "        if get_rollout_context() is None:\n"
        '            return {"role": "assistant", "content": ""}\n',
        "calling_the_model_outside_a_rollout_says_so",
    ),
    bug(
        "an agent outside a rollout is a KeyError",
        "osmosis",
        'raise NoActiveRolloutError("TinyAgent")',
        'raise KeyError("rollout")',
        "agent_outside_a_rollout_says_so",
    ),
    bug(
        "the scope stays open after the run",
        "osmosis",
        RUN,
        "        self.kept = self.scope()\n        self.kept.__enter__()\n"
        "        return await super().run(text)\n",
        "a_run_leaves_no_scope_behind",
    ),
    bug(
        "calls without an agent get an id of their own",
        "osmosis",
        "await model.complete([",
        'with agent_scope("model"):\n            await model.complete([',
        "call_without_an_agent_belongs_to_the_scope",
    ),
    # ids
    bug(
        "a second agent of a name is refused",
        "osmosis",
        ", derived=True",
        "",
        "second_agent_of_a_name_gets_its_own_sample",
    ),
    bug(
        "ids are random",
        "osmosis",
        "register_agent(name,",
        'register_agent(f"{name}-{id(self)}",',
        "sample_id_is_the_encoded_name",
    ),
    # what the sample holds
    bug("first message lost", "osmosis", HISTORY, f"{HISTORY}[1:]", "every_message_is_there_once"),
    bug("last message lost", "osmosis", HISTORY, f"{HISTORY}[:-1]", "tool_loop_is_recorded_whole"),
    bug(
        "last message doubled",
        "osmosis",
        HISTORY,
        f"{HISTORY} + self.agent.messages[-1:]",
        "every_message_is_there_once",
    ),
    bug(
        "messages sorted by role",
        "osmosis",
        HISTORY,
        'messages=sorted(copy.deepcopy(self.agent.messages), key=lambda m: m["role"])',
        "messages_are_in_order",
    ),
    bug(
        "the sample is the live history",
        "osmosis",
        HISTORY,
        "messages=self.agent.messages",
        "samples_are_copies",
    ),
    bug(
        "messages are objects",
        "osmosis",
        HISTORY,
        'messages=[{**m, "raw": object()} for m in self.agent.messages]',
        "messages_are_json",
        "sample_survives_being_written",
    ),
    bug(
        "only a run that ends well is kept",
        "osmosis",
        HISTORY,
        "messages=copy.deepcopy(self.agent.kept)",
        "error_mid_run_keeps_what_was_said",
        also=(
            (REGISTER, REGISTER + "\n        self.kept = []"),
            (
                RUN,
                "        with self.scope():\n            said = await super().run(text)\n"
                "        self.kept = self.messages\n        return said\n",
            ),
        ),
    ),
    bug(
        "the prompt is not in the sample",
        "osmosis",
        HISTORY,
        'messages=[m for m in copy.deepcopy(self.agent.messages) if m["role"] == "assistant"]',
        "sample_holds_the_prompt",
    ),
    bug(
        "text goes out in ASCII",
        "osmosis",
        SENT,
        "        messages = [\n"
        '            {**m, "content": m["content"].encode("ascii", "ignore").decode()}\n'
        '            if isinstance(m.get("content"), str) else m\n'
        "            for m in messages\n        ]\n" + SENT,
        "text_of_any_script_survives",
    ),
    bug(
        "long answers are cut",
        "agents",
        'return answer.get("content") or ""',
        'return (answer.get("content") or "")[:4096]',
        "long_answer_arrives_whole",
    ),
    # prompts
    bug(
        "the prompt is extended in place",
        "osmosis",
        "        messages = copy.deepcopy(messages)\n",
        "",
        "prompt_is_not_changed",
        "one_prompt_serves_two_agents",
        also=((f"        {REGISTER}", f"        self.messages = messages\n        {REGISTER}"),),
    ),
    bug(
        "the prompt's messages are numbered in place",
        "osmosis",
        "        messages = copy.deepcopy(messages)\n",
        "        for number, message in enumerate(messages):\n"
        '            message["number"] = number\n',
        "prompt_is_not_changed",
    ),
    bug(
        "system messages are dropped",
        "osmosis",
        SENT,
        '        messages = [m for m in messages if m["role"] != "system"]\n' + SENT,
        "whole_prompt_reaches_the_policy",
    ),
    bug(
        "tool messages of the prompt are dropped",
        "osmosis",
        "        messages = copy.deepcopy(messages)\n",
        '        messages = [m for m in messages if m["role"] != "tool"]\n',
        "tool_messages_of_the_prompt_stay_paired",
    ),
    bug(
        "only the text of parts is sent",
        "osmosis",
        SENT,
        "        messages = [\n"
        '            {**m, "content": [p for p in m["content"] if p["type"] == "text"]}\n'
        '            if isinstance(m.get("content"), list) else m\n'
        "            for m in messages\n        ]\n" + SENT,
        "image_reaches_the_policy",
    ),
    # tools
    bug(
        "the description of tools is dropped",
        "agents",
        SCHEMA,
        SCHEMA.replace('"description": description, ', ""),
        "schema_arrives_as_declared",
    ),
    bug(
        "required parameters are not named",
        "agents",
        SCHEMA,
        '    parameters = {k: v for k, v in parameters.items() if k != "required"}\n' + SCHEMA,
        "required_parameters_arrive",
    ),
    bug(
        "every parameter is a string",
        "agents",
        SCHEMA,
        '    properties = {n: {"type": "string"} for n in parameters["properties"]}\n'
        '    parameters = {**parameters, "properties": properties}\n' + SCHEMA,
        "parameter_types_arrive",
    ),
    bug(
        "an empty list of tools is sent",
        "osmosis",
        '        if tools:\n            body["tools"] = tools\n',
        '        body["tools"] = list(tools)\n',
        "no_tools_means_none_on_the_wire",
    ),
    bug(
        "only the first tool call is answered",
        "agents",
        'for call in answer["tool_calls"]]',
        'for call in answer["tool_calls"][:1]]',
        "several_calls_of_one_answer_are_all_answered",
    ),
    bug(
        "parallel tool calls share an attribute",
        "agents",
        CALL,
        "            self.current = call\n" + CALL + "            await asyncio.sleep(0.01)\n"
        "            call = self.current\n",
        "several_calls_of_one_answer_are_all_answered",
    ),
    bug(
        "tools run one after the other",
        "agents",
        TOOLS,
        "            for result in results:\n                self.messages.append(await result)\n",
        "tool_calls_of_one_answer_run_at_once",
    ),
    bug(
        "tools run without the context",
        "agents",
        "await asyncio.to_thread(function, **arguments)",
        "await asyncio.get_running_loop().run_in_executor(None, lambda: function(**arguments))",
        "tool_sees_the_rollout",
    ),
    bug(
        "the error of a tool is an empty result",
        "agents",
        'value = f"Error: {error!r}"',
        'value = ""',
        "error_of_a_tool_is_not_swallowed",
        "unknown_tool_keeps_the_turn",
    ),
    bug(
        "broken arguments become zeros",
        "agents",
        CALL,
        "            try:\n    " + CALL + "            except ValueError:\n"
        '                arguments = {"a": 0, "b": 0}\n',
        "arguments_that_are_not_json_call_nothing",
    ),
    bug(
        "an answer with unknown tools is thrown away",
        "agents",
        ANSWER,
        ANSWER + '            calls = answer.get("tool_calls") or []\n'
        '            if any(c["function"]["name"] not in self.tools for c in calls):\n'
        '                return ""\n',
        "unknown_tool_keeps_the_turn",
    ),
    bug(
        "text beside tool calls is dropped",
        "agents",
        ANSWER,
        ANSWER + '            if answer.get("tool_calls"):\n'
        '                answer = {**answer, "content": None}\n',
        "text_beside_a_tool_call_is_kept",
    ),
    bug(
        "tool arguments are written anew, as numbers in text",
        "agents",
        "await asyncio.to_thread(function, **arguments)",
        "await asyncio.to_thread(function, **{k: str(v) for k, v in arguments.items()})",
        "arguments_keep_their_types",
    ),
    # retries and failures
    bug(
        "retries above the transport",
        "osmosis",
        COMPLETE,
        "        for _ in range(3):\n"
        "            response = await async_client(httpx2).post(URL, json=body)\n"
        "            if response.is_success:\n                break\n"
        "        response.raise_for_status()\n",
        "nothing_above_the_transport_retries",
        "refused_request_is_not_repeated",
    ),
    bug(
        "a failed turn is run again",
        "agents",
        ANSWER,
        "            try:\n    " + ANSWER + "            except Exception:\n    " + ANSWER,
        "refused_request_is_not_repeated",
    ),
    bug(
        "errors of the policy are empty answers",
        "osmosis",
        COMPLETE,
        "        response = await async_client(httpx2).post(URL, json=body)\n"
        "        if response.is_error:\n"
        '            return {"role": "assistant", "content": ""}\n',
        "failing_policy_is_an_http_error",
        "malformed_answer_is_an_http_error",
        "unreachable_policy_is_an_http_error",
        "deadline_ends_the_call",
    ),
    bug(
        "errors of the policy lose their cause",
        "osmosis",
        "        response.raise_for_status()\n        return",
        "        if response.is_error:\n"
        '            raise RuntimeError("the model call did not work")\n        return',
        "failing_policy_is_an_http_error",
        "error_says_what_the_policy_said",
    ),
    bug(
        "a failure switches the model off",
        "osmosis",
        COMPLETE,
        '        if getattr(self, "is_broken", False):\n            raise RuntimeError("broken")\n'
        + COMPLETE.replace(
            "        response.raise",
            "        self.is_broken = response.is_error\n        response.raise",
        ),
        "next_run_after_a_failure_works",
    ),
    bug(
        "a truncated answer is asked for again",
        "osmosis",
        COMPLETE,
        COMPLETE + '        if response.json()["choices"][0]["finish_reason"] == "length":\n'
        "    " + COMPLETE.replace("\n        r", "\n            r"),
        "truncated_answer_is_asked_for_once",
    ),
    bug(
        "an empty answer is asked for again",
        "osmosis",
        COMPLETE,
        COMPLETE + '        if not response.json()["choices"][0]["message"].get("content"):\n'
        "    " + COMPLETE.replace("\n        r", "\n            r"),
        "refusal_is_an_answer",
        "filtered_answer_is_an_answer",
    ),
    # cancelling
    bug(
        "CancelledError is swallowed",
        "osmosis",
        RUN,
        "        try:\n            with self.scope():\n"
        "                return await super().run(text)\n"
        "        except asyncio.CancelledError:\n            return 'cancelled'\n",
        "timeout_of_the_caller_ends_the_run",
        "cancelled_agent_leaves_its_sample",
    ),
    bug(
        "the run goes on in a task of its own",
        "osmosis",
        RUN,
        "        with self.scope():\n"
        "            return await asyncio.shield(asyncio.ensure_future(super().run(text)))\n",
        "cancelled_run_leaves_no_task",
    ),
    # options
    bug(
        "the stream ends with the whole text",
        "agents",
        '        self.messages.append({"role": "assistant", "content": "".join(pieces)})\n',
        '        self.messages.append({"role": "assistant", "content": "".join(pieces)})\n'
        '        yield "".join(pieces)\n',
        "stream_says_what_the_policy_says",
    ),
    bug(
        "streamed answers are not kept",
        "agents",
        '        self.messages.append({"role": "assistant", "content": "".join(pieces)})\n',
        "",
        "streamed_run_is_recorded_whole",
    ),
    bug(
        "a stream that is left early goes on",
        "osmosis",
        '        async with async_client(httpx2).stream("POST", URL, json=body) as response:\n',
        "        client = async_client(httpx2)\n"
        '        request = client.build_request("POST", URL, json=body)\n'
        "        response = await client.send(request, stream=True)\n"
        "        if True:\n",
        "stream_that_is_closed_leaves_nothing_running",
        also=(("await deltas.aclose()", "OPEN.append(deltas)"),),
    ),
    bug(
        "a wrong structured answer is patched up",
        "agents",
        'return schema.model_validate_json(answer["tool_calls"][0]["function"]["arguments"])',
        'made = json.loads(answer["tool_calls"][0]["function"]["arguments"])\n'
        "        return schema.model_construct(**made)",
        "wrong_answer_is_no_instance",
    ),
    bug(
        "the schema of structured output is not sent",
        "agents",
        "schema_of(schema.__name__, schema.__doc__, schema.model_json_schema())",
        "schema_of(schema.__name__, schema.__doc__, {})",
        "schema_reaches_the_policy",
    ),
    bug(
        "a structured answer is not kept",
        "agents",
        "        self.messages.append(answer)\n        return schema",
        "        return schema",
        "structured_answer_is_recorded",
    ),
    bug(
        "sub-agents run in their caller's scope",
        "osmosis",
        RUN,
        "        with self.scope() if current_scope().sample_id == 'main' else nullcontext():\n"
        "            return await super().run(text)\n",
        "sub_agent_is_its_own_sample",
        "agent_called_inside_a_tool_is_its_own_sample",
    ),
    bug(
        "tools inherit nothing from the model call",
        "agents",
        "value = await function(**arguments)",
        "value = await asyncio.create_task(function(**arguments), context=self.context.copy())",
        "sub_agent_names_the_call_that_started_it",
        "sub_agents_nest_four_deep",
        also=(
            (
                "    def _begin(self, text):\n",
                "    def _begin(self, text):\n"
                "        self.context = __import__('contextvars').copy_context()\n",
            ),
        ),
    ),
    bug(
        "helpers are trained on",
        "osmosis",
        "trainable=current_scope().trainable",
        "trainable=True",
        "helper_is_recorded_and_not_trained_on",
    ),
    bug(
        "each turn begins anew",
        "agents",
        "        if text is not None:\n",
        "        if text is not None:\n            self.messages = []\n",
        "each_turn_sees_the_ones_before",
    ),
    bug(
        "each turn is a new registration",
        "osmosis",
        "            said = await agent.run(turn)\n",
        "            said = await agent.run(turn)\n"
        "            agent = TinyAgent(agent.name, agent.messages, window=agent.window)\n",
        "conversation_is_one_sample",
    ),
    bug(
        "what is trimmed is gone",
        "agents",
        "return self.messages[-self.window :] if self.window else self.messages",
        "self.messages = self.messages[-(self.window or 0) :]\n        return self.messages",
        "trimmed_history_is_still_in_the_sample",
    ),
    bug(
        "history is shown without its first turns",
        "agents",
        "return self.messages[-self.window :] if self.window else self.messages",
        "return self.messages[-(self.window or 4) :]",
        "conversation_goes_on_from_call_to_call",
    ),
    bug(
        "the blocking run is in a context of its own",
        "osmosis",
        "return asyncio.run(self.run_agent(name, prompt))",
        "import contextvars\n\n"
        "        run = lambda: asyncio.run(self.run_agent(name, prompt))\n"
        "        return contextvars.Context().run(run)",
        "blocking_run_belongs_to_the_rollout",
    ),
    # the process
    bug(
        "importing phones home",
        "osmosis",
        "URL = ",
        "try:\n    __import__('socket').getaddrinfo('telemetry.invalid', 443, flags=4)\n"
        "except OSError:\n    pass\nURL = ",
        "nothing_but_the_policy_is_contacted",
    ),
    bug(
        "a vendor's key in the environment switches telemetry on",
        "osmosis",
        RUN,
        "        if 'OPENAI_API_KEY' in __import__('os').environ:\n"
        "            with __import__('socket').socket() as traces:\n"
        "                traces.settimeout(0.05)\n"
        "                traces.connect_ex(('192.0.2.1', 443))\n" + RUN,
        "nothing_but_the_policy_is_contacted",
    ),
    bug(
        "importing sets up logging",
        "osmosis",
        "URL = ",
        "__import__('logging').basicConfig(level='INFO')\nURL = ",
        "importing_changes_nothing_of_the_process",
    ),
    bug(
        "importing silences warnings",
        "agents",
        "import inspect\n",
        "import inspect\nimport warnings\n\nwarnings.simplefilter('ignore')\n",
        "importing_changes_nothing_of_the_process",
    ),
    bug(
        "the key goes into the environment",
        "osmosis",
        RUN,
        "        __import__('os').environ['TINY_API_KEY'] = get_rollout_context().api_key or ''\n"
        + RUN,
        "running_changes_nothing_of_the_process",
        "key_outlives_no_rollout",
    ),
    bug(
        "a default client keeps the key",
        "osmosis",
        RUN,
        "        tiny_agents.DEFAULT = type('Client', (), {})()\n"
        "        tiny_agents.DEFAULT.api_key = get_rollout_context().api_key\n" + RUN,
        "key_outlives_no_rollout",
    ),
    bug(
        "the model keeps the key",
        "osmosis",
        SENT,
        "        self.api_key = getattr(get_rollout_context(), 'api_key', None)\n" + SENT,
        "key_is_in_no_repr",
    ),
    bug(
        "the key is a header in the sample",
        "osmosis",
        HISTORY,
        HISTORY + ', extra_fields={"key": self.agent.key}',
        "key_is_in_no_sample",
        also=((REGISTER, REGISTER + "\n        self.key = rollout.api_key"),),
    ),
    bug(
        "the key is in the error",
        "osmosis",
        "        response.raise_for_status()\n        return",
        "        if response.is_error:\n"
        "            from osmosis_core import PolicyError\n\n"
        "            raise PolicyError(f'no answer for {get_rollout_context().api_key}')\n"
        "        return",
        "key_is_in_no_error",
    ),
    bug(
        "the key is logged",
        "osmosis",
        SENT,
        "        key = getattr(get_rollout_context(), 'api_key', None)\n"
        "        __import__('logging').getLogger('tiny').debug('calling with %s', key)\n" + SENT,
        "key_is_in_no_log",
    ),
    bug(
        "tokens are printed",
        "agents",
        ANSWER,
        ANSWER + "            print(answer)\n",
        "run_prints_nothing",
    ),
    bug(
        "a task outlives the run",
        "osmosis",
        RUN,
        "        self.task = asyncio.create_task(asyncio.sleep(60))\n" + RUN,
        "run_leaves_no_task",
    ),
    bug(
        "a thread outlives the run",
        "osmosis",
        RUN,
        "        __import__('threading').Timer(1, int).start()\n" + RUN,
        "run_leaves_no_thread",
    ),
    bug(
        "the entry module imports the framework",
        "plugin",
        "import sys\n",
        "import sys\n\nimport tiny_agents\n",
        "entry_module_is_light",
    ),
    bug(
        "every foreign object loads the framework",
        "plugin",
        '    if "tiny_agents" not in sys.modules:\n        return None\n',
        "",
        "asking_for_a_sample_source_is_light",
    ),
]
