import pytest

from osmosis_core import ConfigError, PluginError
from osmosis_core.hookspecs import PolicyEndpoint
from osmosis_core.testing import ScriptedPolicy
from osmosis_eval.endpoint import check_endpoint, external_policy, registered_policy


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("https://user:pass@host/v1?key=1#f", "https://host/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_url_is_shown_without_credentials(given: str, shown: str) -> None:
    choice = external_policy(given, "m", None)
    assert choice.shown == {"base_url": shown, "model": "m"}
    assert choice.is_external


@pytest.mark.parametrize("url", ["", "localhost:8000/v1", "ftp://h/v1", "http://", "http://h:x/v1"])
def test_url_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        external_policy(url, None, None)


async def test_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_API_KEY", "default")
    monkeypatch.setenv("MY_KEY", "mine")
    for name, key in ((None, "default"), ("MY_KEY", "mine")):
        async with external_policy("http://h/v1", "m", name).factory() as endpoint:
            assert endpoint == PolicyEndpoint("http://h/v1", key, "m")


@pytest.mark.parametrize("name", ["sk-123456", "NOT_SET_ANYWHERE", "EMPTY"])
def test_key_variable_that_is_wrong_is_not_echoed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(ConfigError, match="--api-key-env") as raised:
        external_policy("http://h/v1", None, name)
    assert name not in str(raised.value)


def test_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(PluginError, match=r"no policy 'dem'; there is .*did you mean 'demo'\?"):
        registered_policy("dem")


async def test_endpoint_is_asked_for_one_token_of_the_model() -> None:
    with ScriptedPolicy("hello", api_key="secret-key") as policy:
        await check_endpoint(PolicyEndpoint(policy.base_url, "secret-key", "big-model"))
    assert [request.body for request in policy.requests] == [
        {
            "model": "big-model",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
