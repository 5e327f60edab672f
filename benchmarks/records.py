"""What chains and records cost: finding a request's place, memory, and the JSON of long samples."""

import gc
import json
import time
import tracemalloc

from osmosis_core import RolloutContext, RolloutSample
from osmosis_core.active import Scope
from osmosis_core.policy.calls import begin_call, complete_call, end_call


def turn(number, words):
    """An answer that calls a tool, and the tool's result."""
    function = {"name": "look", "arguments": json.dumps({"page": number, "text": "word " * words})}
    call = {"id": f"c{number}", "type": "function", "function": function}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return answer, {"role": "tool", "tool_call_id": f"c{number}", "content": "value " * words}


def tool_loop(turns, words, *, tokens=0):
    """The calls of one rollout, the seconds that each took to begin, and the bytes they hold."""
    context = RolloutContext("http://127.0.0.1:9/v1", rollout_id="r")
    messages = [{"role": "user", "content": "go"}]
    ids, seconds, logprobs = list(range(50)), [], [-0.25 * (i % 7) for i in range(tokens)]
    for number in range(turns):
        body = json.loads(json.dumps({"messages": messages}))
        began = time.perf_counter()
        call = begin_call(context, Scope(), body)
        seconds.append(time.perf_counter() - began)
        answer, result = turn(number, words)
        generated = [number * tokens + i for i in range(tokens)]
        entries = [{"token": "", "logprob": value} for value in logprobs]
        choice = {"message": answer, "finish_reason": "tool_calls", "token_ids": generated}
        choice |= {"logprobs": {"content": entries}} if tokens else {}
        complete_call(
            call, {"choices": [choice], "prompt_token_ids": list(ids) if tokens else None}
        )
        end_call(context, call)
        ids += [*generated, 7, 8, 9]
        messages += [answer, result]
    return context, seconds


def main():
    """Print the figures."""
    for words in (10, 5000):
        _, seconds = tool_loop(200, words)
        print(f"place of a request of 400 messages of {words} words: {seconds[-1] * 1000:.2f} ms")
    for turns, words, tokens in ((5, 150, 0), (5, 150, 200), (200, 50, 0), (200, 50, 5000)):
        gc.collect()
        tracemalloc.start()
        context, _ = tool_loop(turns, words, tokens=tokens)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        sample = RolloutSample(id="main", calls=list(context.calls))
        began = time.perf_counter()
        text = sample.model_dump_json()
        dumped = time.perf_counter()
        again = RolloutSample.model_validate_json(text)
        loaded = time.perf_counter()
        assert again.calls == sample.calls
        print(
            f"{turns} turns, {turns * tokens} tokens: {held / 1e6:.1f} MB held, "
            f"{len(text) / 1e6:.1f} MB as JSON ({held / len(text):.2f} x), dumped in "
            f"{dumped - began:.2f} s, loaded in {loaded - dumped:.2f} s"
        )


if __name__ == "__main__":
    main()
