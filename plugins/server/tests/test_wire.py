"""Samples on the wire: always JSON, no reward that nobody may train on."""

import json
import logging
from collections import OrderedDict
from dataclasses import dataclass

import pytest

from osmosis_core import RolloutSample
from osmosis_server.protocols.wire import encode, json_safe, wire_sample

NAN, INF = float("nan"), float("inf")


@dataclass
class Box:
    size: float


class Scalar:
    """A number of NumPy's kind."""

    def __init__(self, value):
        self._value = value

    def tolist(self):
        return self._value


def sent(sample, *, has_succeeded=True):
    fields = wire_sample(sample, has_succeeded=has_succeeded)
    return json.loads(encode({"sample": fields}), parse_constant=pytest.fail)["sample"]


def test_sample_has_the_documented_fields_and_no_others():
    sample = RolloutSample(id="a", messages=[{"role": "user"}], label="l", reward=0.5)
    assert sent(sample) == {
        "messages": [{"role": "user"}],
        "label": "l",
        "reward": 0.5,
        "remove_sample": False,
        "metrics": {},
        "extra_fields": {},
    }


@pytest.mark.parametrize(
    ("fields", "has_succeeded"),
    [({}, False), ({"remove_sample": True}, True), ({"trainable": False}, True)],
)
def test_reward_is_null_unless_the_sample_is_for_training(fields, has_succeeded):
    sample = RolloutSample(id="a", reward=1.0, **fields)
    assert sent(sample, has_succeeded=has_succeeded)["reward"] is None


def test_sample_of_a_helper_is_marked_as_removed():
    assert sent(RolloutSample(id="a", trainable=False))["remove_sample"] is True


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"a": NAN, "b": INF, "c": 1.5}, {"c": 1.5}),
        ({"a": object(), "b": 1}, {"b": 1}),
        ({1: "x", 2.5: "y", None: "z"}, {"1": "x", "2.5": "y", "None": "z"}),
        ({"a": (1, 2), "b": [NAN, 3]}, {"a": [1, 2], "b": [None, 3]}),
        ({"a": Scalar(2), "b": Scalar(NAN), "c": Scalar([1.0, INF])}, {"a": 2, "c": [1.0, None]}),
        ({"a": Box(2.0), "b": Box(INF)}, {"a": {"size": 2.0}, "b": {}}),
        ({"a": OrderedDict(x=1), "b": True, "c": 10**30}, {"a": {"x": 1}, "b": True, "c": 10**30}),
        ({"a": "\ud800"}, {"a": "?"}),
    ],
)
def test_what_json_cannot_say_is_converted_or_dropped(value, wanted):
    safe = json_safe(value, "metrics")
    assert safe == wanted
    json.dumps(safe, allow_nan=False)


def test_one_warning_names_what_was_dropped(caplog):
    with caplog.at_level(logging.WARNING):
        json_safe({"loss": NAN, "more": {"acc": INF}}, "metrics")
    (record,) = caplog.records
    assert "metrics.loss, metrics.more.acc" in record.getMessage()


def test_value_that_contains_itself_leaves_the_sample_without_it():
    loop = {"a": 1}
    loop["again"] = [loop, loop]
    assert json_safe(loop, "metrics") == {"a": 1, "again": [None, None]}


def test_value_beyond_all_depth_is_dropped_below_it():
    deep = []
    for _ in range(5000):
        deep = [deep]
    sample = RolloutSample(id="a", messages=[{"content": deep}], reward=1.0)
    assert sent(sample)["reward"] == 1.0


def test_messages_keep_all_that_json_can_say():
    sample = RolloutSample(id="a", messages=[{"content": b"\xff", "score": NAN}])
    assert sent(sample)["messages"] == [{"content": "_w==", "score": None}]


def test_unencodable_part_of_a_message_is_dropped_and_the_rest_is_sent():
    sample = RolloutSample(id="a", messages=[{"content": "hi", "tool": object()}], reward=1.0)
    assert (got := sent(sample))["messages"] == [{"content": "hi"}]
    assert got["reward"] == 1.0


def test_error_text_that_no_utf8_holds_is_sent_all_the_same():
    assert json.loads(encode({"err_message": "bad \ud800"})) == {"err_message": "bad ?"}
