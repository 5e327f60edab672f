from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest

from osmosis_core.cli import BackendCommand, backend_option

PLUGIN = """
    from osmosis_core import LocalBackend, hookimpl

    @hookimpl
    def osmosis_register_backends(register):
        def factory(*, address, num_workers=1, **options):
            print(f"at {address!r} with {num_workers!r}")
            return LocalBackend(**options)

        register("far-away", factory)
"""


def parsed(*arguments: str) -> Any:
    """What a command with these options understands."""
    found: list[Any] = []

    @click.command(cls=BackendCommand)
    @click.argument("target")
    @click.option("--backend", default="local")
    @backend_option
    @click.option("--ray-tracing", is_flag=True)
    def command(target: str, backend_options: Any, **_: Any) -> None:
        found.extend((target, backend_options))

    command.main(list(arguments), standalone_mode=False)
    return found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ('{"CPU": 0.5}', {"CPU": 0.5}),
        ("true", True),
        ("null", None),
        ("10.0.0.5:6379", "10.0.0.5:6379"),
        ("a=b", "a=b"),
        ('"4"', "4"),
        ("", ""),
    ],
)
def test_value_is_json_or_text(text: str, value: Any) -> None:
    assert parsed("flow.py", "--backend-option", f"some-thing={text}")[1] == {"some_thing": value}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--backend", "ray", "--ray-num-workers", "4", "flow.py"),
        ("flow.py", "--ray-num-workers=4", "--backend=ray"),
        ("--backend", "local", "flow.py", "--backend", "ray", "--ray-num-workers", "4"),
    ],
)
def test_option_with_the_name_of_the_backend_is_its_argument(arguments: tuple[str, ...]) -> None:
    assert parsed(*arguments) == ["flow.py", {"num_workers": 4}]


def test_options_of_the_command_itself_stay_its_own() -> None:
    assert parsed("--backend", "ray", "flow.py", "--ray-tracing") == ["flow.py", {}]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ray-address", "x"),
        ("--backend", "local", "--ray-address", "x"),
        ("--backend", "ray", "--ray-address"),
        ("--backend-option", "address"),
        ("--backend-option", "=x"),
        ("--backend", "ray", "--ray-", "x"),
    ],
)
def test_option_of_no_backend_or_without_a_value_is_a_usage_error(
    arguments: tuple[str, ...],
) -> None:
    with pytest.raises(click.UsageError):
        parsed("flow.py", *arguments)


@pytest.fixture
def far_away(flow: Any) -> Any:
    """A workspace with the plugin above."""
    flow.write("fake_plugin.py", PLUGIN)
    info = flow.path / "fake-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[osmosis_core]\nfake = fake_plugin\n")
    return flow


def test_backend_of_a_plugin_gets_its_arguments(far_away: Any, policy: Any) -> None:
    extra = ("--base-url", policy.base_url, "--backend", "far-away", "--far-away-address", "h:1")
    command = far_away.arguments(*extra, "--backend-option", "num_workers=2")
    ended = far_away.run(*command, PYTHONPATH=str(far_away.path))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("at 'h:1' with 2\n")


@pytest.mark.parametrize(
    ("option", "why"),
    [("max_queud=1", "unexpected keyword argument 'max_queud'"), ("workflow=x", "multiple values")],
)
def test_argument_that_the_backend_does_not_take_is_one_line(
    flow: Any, osmosis: Callable[..., Any], option: str, why: str
) -> None:
    ended = osmosis(*flow.arguments("--policy", "demo", "--backend-option", option))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: backend 'local' cannot be built: ") and why in ended.err
    assert len(ended.err.splitlines()) == 1
