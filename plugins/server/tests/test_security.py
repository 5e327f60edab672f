"""Who may call the server, and whom requests may make it call."""

import socket

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver

from osmosis_core import ConfigError
from osmosis_server.security import (
    CheckedResolver,
    RequireKey,
    UrlPolicy,
    check_key,
    fresh_key,
    is_loopback,
)

METADATA = [
    "http://169.254.169.254/latest/meta-data",
    "http://169.254.169.254:80",
    "http://169.254.0.1/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://169.254.43518/",
    "http://169.254.169.254./",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[::a9fe:a9fe]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2002:a9fe:a9fe::1]/",
    "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fd00:ec2::254]/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://metadata.google.internal/computeMetadata/v1",
    "http://METADATA.google.internal./",
    "http://metadata.goog/",
    "https://\uff11\uff16\uff19.254.169.254/",
]


class TestUrls:
    @pytest.mark.parametrize("url", METADATA)
    def test_metadata_addresses_are_refused_in_every_form(self, url):
        with pytest.raises(ConfigError):
            UrlPolicy().check(url)

    @pytest.mark.parametrize("url", METADATA[:12])
    def test_metadata_addresses_are_refused_where_everything_is_allowed(self, url):
        with pytest.raises(ConfigError, match="never called"):
            UrlPolicy(["*", "0.0.0.0/0", "::/0"]).check(url)

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "x",
            "/v1",
            "//host/v1",
            "http://",
            "http:///v1",
            "ftp://host/",
            "file:///etc/passwd",
            "http+unix://%2Frun%2Fdocker.sock/v1",
            "http://user:secret@host/",
            "http://host\\@other/",
            "http://host/\r\nx: y",
            "http://ho st/",
            "http://host:99999/",
            "http://[::1/",
        ],
    )
    def test_what_is_no_plain_http_url_is_refused(self, url):
        with pytest.raises(ConfigError):
            UrlPolicy().check(url)

    def test_password_in_a_url_is_not_repeated(self):
        with pytest.raises(ConfigError) as caught:
            UrlPolicy().check("http://user:hunter2@host/")
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            "http://127.0.0.1:9/v1",
            "https://controller.example.com/cb?x=1",
            "http://[::1]:8000/",
            "http://10.1.2.3",
            "http://localhost:8000/v1/rollouts/a%2Fb/chat",
        ],
    )
    def test_other_urls_pass_unchanged_without_patterns(self, url):
        assert UrlPolicy().check(url) == url

    @pytest.mark.parametrize(
        ("pattern", "url"),
        [
            ("controller.example.com", "https://controller.example.com/x"),
            ("Controller.Example.com", "https://CONTROLLER.example.com./x"),
            ("*.example.com", "https://a.b.example.com/x"),
            ("*.example.com:8443", "https://a.example.com:8443/x"),
            ("*.example.com:443", "https://a.example.com/x"),
            ("10.0.0.0/8", "http://10.1.2.3:999/"),
            ("10.0.0.0/8:80", "http://10.1.2.3/"),
            ("127.0.0.1", "http://2130706433/"),
            ("::1", "http://[::1]:5/"),
            ("[::1]:5", "http://[::1]:5/"),
            ("fd00::/8", "http://[fd12::1]/"),
            ("[fd00::/8]:5", "http://[fd12::1]:5/"),
            ("*", "http://anywhere/"),
        ],
    )
    def test_allowed_host_passes(self, pattern, url):
        assert UrlPolicy(["other.example.org", pattern]).check(url) == url

    @pytest.mark.parametrize(
        ("pattern", "url"),
        [
            ("*.example.com", "https://example.com/"),
            ("*.example.com", "https://example.com.evil.org/"),
            ("*.example.com", "https://evil.org/x.example.com"),
            ("*.example.com", "https://evil.org#a.example.com"),
            ("*.example.com:8443", "https://a.example.com/"),
            ("10.0.0.0/8", "http://11.0.0.1/"),
            ("10.0.0.0/8", "http://ten.example.com/"),
            ("127.0.0.1", "http://127.0.0.2/"),
        ],
    )
    def test_host_that_no_pattern_covers_is_refused_and_named(self, pattern, url):
        with pytest.raises(ConfigError, match="not among the allowed hosts"):
            UrlPolicy([pattern]).check(url)

    @pytest.mark.parametrize(
        "pattern", ["", "a b", "a b:c", "10.0.0.0/99", "[::1", "host:port", "http://x"]
    )
    def test_pattern_that_cannot_be_read_is_a_config_error(self, pattern):
        with pytest.raises(ConfigError, match="allowed host"):
            UrlPolicy([pattern])


class Names(AbstractResolver):
    """What a name server answers."""

    def __init__(self, *addresses):
        self._addresses = addresses

    async def resolve(self, host, port=0, family=0):
        common = {"hostname": host, "port": port, "family": socket.AF_INET, "proto": 6, "flags": 0}
        return [{**common, "host": address} for address in self._addresses]

    async def close(self):
        pass


class TestNames:
    @pytest.mark.parametrize("answers", [["169.254.169.254"], ["127.0.0.1", "fe80::1"]])
    async def test_name_that_resolves_to_a_forbidden_address_is_not_connected_to(self, answers):
        with pytest.raises(aiohttp.ClientConnectorError, match="never called"):
            await post_to("http://rebinds.example.com/", Names(*answers))

    async def test_other_names_are_connected_to(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://honest.example.com:{listener.getsockname()[1]}/"
            with pytest.raises(TimeoutError):
                await post_to(url, Names("127.0.0.1"))
            listener.accept()[0].close()


async def post_to(url, names):
    connector = aiohttp.TCPConnector(resolver=CheckedResolver(names))
    timeout = aiohttp.ClientTimeout(total=0.2)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await session.post(url)


class TestKeys:
    @pytest.mark.parametrize("key", ["", " ", "a b", "a\n", "\x00", "a\u00a0b"])
    def test_key_that_no_header_carries_is_a_value_error(self, key):
        with pytest.raises(ValueError, match="API key"):
            check_key(key)

    def test_fresh_key_has_the_documented_form(self):
        key = fresh_key()
        assert key.startswith("osm_rollout_")
        assert len(key) == len("osm_rollout_") + 43
        assert key != fresh_key()

    @pytest.mark.parametrize(
        ("header", "status"),
        [
            ("Bearer schlüssel", 200),
            ("bearer schlüssel", 401),
            ("schlüssel", 401),
            ("Bearer schlussel", 401),
            ("Bearer  schlüssel", 401),
            ("Bearer schlüssel ", 401),
            ("Bearer ", 401),
            (None, 401),
        ],
    )
    async def test_exactly_the_key_in_bearer_form_passes(self, header, status):
        assert await status_of(header and header.encode()) == status

    async def test_key_that_is_no_utf8_is_refused(self):
        assert await status_of(b"Bearer schl\xfcssel") == 401

    async def test_two_authorization_headers_are_refused(self):
        assert await status_of(b"Bearer wrong", "Bearer schlüssel".encode()) == 401

    async def test_open_paths_are_left_to_their_protocol(self):
        assert await status_of(path="/platform/health") == 200

    @pytest.mark.parametrize(
        ("host", "is_safe"),
        [
            ("127.0.0.1", True),
            ("127.9.9.9", True),
            ("::1", True),
            ("localhost", True),
            ("0.0.0.0", False),
            ("::", False),
            ("10.0.0.1", False),
            ("localhost.example.com", False),
        ],
    )
    def test_loopback_is_what_only_this_machine_reaches(self, host, is_safe):
        assert is_loopback(host) is is_safe


async def status_of(*authorization, path="/health"):
    """The status that a guarded application answers with; it never reads a body."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        raise AssertionError("the body was read")

    sent = []

    async def send(message):
        sent.append(message)

    headers = [(b"authorization", value) for value in authorization if value is not None]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    await RequireKey(app, "schlüssel", ["/platform/health"])(scope, receive, send)
    return sent[0]["status"]
