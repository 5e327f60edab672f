"""Every setting is an option, a variable, and a line of the docs."""

import re
from pathlib import Path
from typing import get_origin

import pytest

from osmosis_server import ServerSettings
from osmosis_server.cli import serve

PAGE = Path(__file__).parents[3] / "docs/server.md"
FIELDS = ServerSettings.model_fields
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| .+ \|$", re.MULTILINE)


def shown(field):
    value = field.default
    if isinstance(value, tuple):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def test_docs_list_every_setting_with_its_default():
    page = PAGE.read_text().partition("## Settings")[2].partition("\n## ")[0]
    assert dict(ROW.findall(page)) == {name: shown(field) for name, field in FIELDS.items()}


@pytest.mark.parametrize("name", FIELDS)
def test_each_setting_has_an_option_and_a_variable(name):
    option = next(option for option in serve.params if option.name == name)
    flag = "allow-host" if name == "allow_hosts" else name.replace("_", "-")
    assert f"--{flag}" in option.opts
    assert option.envvar == f"OSMOSIS_SERVER_{name.upper()}"
    assert len(option.help) > 20


def test_options_that_may_be_repeated_are_those_with_several_values():
    several = {option.name for option in serve.params if option.multiple}
    assert several - {"backend_options"} == {
        n for n, field in FIELDS.items() if get_origin(field.annotation) is tuple
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"polling_lease_timeout_sec": 30.0},
        {"result_wait_timeout_sec": float("inf")},
        {"drain_grace_sec": -1.0},
        {"callback_protocol": "polling"},
        {"max_pendng": 1},
    ],
)
def test_setting_out_of_range_is_a_value_error(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ServerSettings(**wrong)
