"""The inner client: limits, kept connections, proxies, IPv6, unix sockets and TLS."""

import asyncio
import datetime
import gc
import ipaddress
import json
import ssl
import weakref
from contextlib import asynccontextmanager

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from osmosis_core import RetryPolicy, RolloutContext
from osmosis_core.policy import wire
from osmosis_core.testing import ScriptedPolicy

ANSWER = json.dumps(
    {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
).encode()
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE")
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in (*PROXIES, "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def response(body=ANSWER, more=""):
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}{more}\r\n".encode() + body


class Served:
    """A hand-written HTTP server: `answers(connection, request)` gives bytes, or None to hang up.

    A hang-up is a reset; `heads` are the request heads in order of arrival.
    """

    def __init__(self, answers=lambda connection, request: response()):
        self.heads, self.connections, self.open, self.most = [], 0, 0, 0
        self.port, self._answers, self._writers = 0, answers, []

    async def _serve(self, reader, writer):
        self._writers.append(writer)
        self.connections += 1
        self.open += 1
        self.most = max(self.most, self.open)
        connection, request = self.connections, 0
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = {
                    k.lower(): v for k, _, v in (x.partition(": ") for x in head.split("\r\n"))
                }
                await reader.readexactly(int(fields.get("content-length", 0)))
                self.heads.append(head)
                request += 1
                answer = self._answers(connection, request)
                if asyncio.iscoroutine(answer):
                    answer = await answer
                if answer is None:
                    writer.transport.abort()
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    @asynccontextmanager
    async def on(self, host="127.0.0.1", *, path=None, context=None):
        if path is not None:
            server = await asyncio.start_unix_server(self._serve, path)
        else:
            server = await asyncio.start_server(self._serve, host, 0, ssl=context)
            self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.close()
            await asyncio.sleep(0.01)


async def said(ask, url, **options):
    """The record of one call to this URL."""
    with RolloutContext(url, **{"retry": ONCE, **options}) as rollout:
        await ask()
    return rollout.calls[0]


async def test_connections_are_unlimited_and_kept_by_default(ask):
    await said(ask, "http://127.0.0.1:1/v1")
    connector = (await wire.session()).connector
    assert (connector.limit, connector.limit_per_host) == (0, 0)
    assert connector._keepalive_timeout == 30.0


async def test_idle_connection_is_kept_as_long_as_asked(ask, monkeypatch):
    monkeypatch.setenv("OSMOSIS_KEEPALIVE_SEC", "0.01")
    async with Served().on() as server:
        for _ in range(2):
            await said(ask, f"http://127.0.0.1:{server.port}/v1")
            await asyncio.sleep(0.1)
    assert server.connections == 2


@pytest.mark.parametrize("name", ["MAX_CONNECTIONS", "MAX_CONNECTIONS_PER_HOST"])
async def test_calls_beyond_the_limit_wait_for_a_connection(ask, monkeypatch, name):
    async def slowly():
        await asyncio.sleep(0.01)
        return response()

    monkeypatch.setenv(f"OSMOSIS_{name}", "2")
    async with Served(lambda *_: slowly()).on() as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        calls = await asyncio.gather(*(said(ask, url) for _ in range(8)))
    assert all(call.received for call in calls)
    assert server.connections == server.most == 2


@pytest.mark.parametrize("value", ["many", "-1", "inf", "nan"])
async def test_limit_that_is_no_number_is_named(ask, monkeypatch, value):
    monkeypatch.setenv("OSMOSIS_MAX_CONNECTIONS", value)
    call = await said(ask, "http://127.0.0.1:1/v1", retry=RetryPolicy(max_attempts=3))
    assert f"OSMOSIS_MAX_CONNECTIONS is '{value}'; give a number" in call.error
    assert len(call.attempts) == 1


async def test_reset_of_a_kept_connection_uses_up_no_try(ask):
    def first_only(connection, request):
        return response() if request == 1 else None

    async with Served(first_only).on() as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        calls = [await said(ask, url) for _ in range(5)]
    assert all(call.received and len(call.attempts) == 1 for call in calls)
    assert server.connections == 5 and len(server.heads) == 9


async def test_reset_of_a_fresh_connection_is_a_try(ask):
    async with Served(lambda connection, _: response() if connection > 1 else None).on() as server:
        call = await said(ask, f"http://127.0.0.1:{server.port}/v1")
    assert not call.received and "cannot be reached" in call.error
    assert server.connections == len(call.attempts) == 1


async def test_answer_cut_on_a_kept_connection_is_a_try(ask):
    def cuts_second(connection, request):
        return response() if request == 1 else response()[:-20]

    async with Served(cuts_second).on() as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        await said(ask, url)
        asked = asyncio.ensure_future(said(ask, url))
        while len(server.heads) < 2:
            await asyncio.sleep(0.01)
    assert "was cut" in (await asked).error and len(server.heads) == 2


async def test_endpoint_that_always_resets_ends_after_its_tries(ask, quick):
    async with Served(lambda *_: None).on() as server:
        call = await said(ask, f"http://127.0.0.1:{server.port}/v1", retry=quick)
    assert not call.received and len(server.heads) == len(call.attempts) == quick.max_attempts


async def test_proxy_of_the_environment_carries_the_call(ask, monkeypatch):
    async with Served().on() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:secret@127.0.0.1:{proxy.port}")
        call = await said(ask, "http://policy.invalid/v1", api_key="k")
    (head,) = proxy.heads
    assert call.received and head.startswith("POST http://policy.invalid/v1/chat/completions ")
    assert "Proxy-Authorization: Basic bWU6c2VjcmV0" in head
    assert "authorization: bearer k" in head.lower()


async def test_all_proxy_is_the_last_resort(ask, monkeypatch):
    async with Served().on() as proxy:
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.port}")
        assert (await said(ask, "http://policy.invalid/v1")).received


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_loopback_never_goes_through_a_proxy(ask, monkeypatch, host):
    async with Served().on() as proxy, Served().on(host.strip("[]")) as server:
        for name in ("HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert (await said(ask, f"http://{host}:{server.port}/v1")).received
    assert len(server.heads) == 1 and not proxy.heads


@pytest.mark.parametrize("exempt", ["policy.invalid", ".invalid", "*", "policy.invalid:80"])
async def test_no_proxy_exempts_a_host(ask, monkeypatch, exempt):
    async with Served().on() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", exempt)
        call = await said(ask, "http://policy.invalid:80/v1")
    assert not call.received and not proxy.heads


async def test_unix_socket_is_an_address(ask, tmp_path):
    path = tmp_path / "x.sock"
    url = f"http+unix://{str(path).replace('/', '%2F')}/v1"
    async with Served().on(path=path) as server:
        calls = [await said(ask, url) for _ in range(2)]
    assert all(call.received for call in calls) and server.connections == 1
    assert server.heads[0].startswith("POST /v1/chat/completions ")
    missing = await said(ask, url)
    assert "cannot be reached" in missing.error and "x.sock" in missing.error


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of its own CA for 127.0.0.1: its path and a server's TLS context."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "policy")])
    now = datetime.datetime.now(datetime.UTC)
    alternative = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    pem = made.public_bytes(serialization.Encoding.PEM)
    (folder / "ca.pem").write_bytes(pem)
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(*encoding, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(pem + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return folder / "ca.pem", context


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
async def test_ca_of_the_environment_is_trusted(ask, monkeypatch, certificate, name):
    path, context = certificate
    monkeypatch.setenv(name, str(path))
    async with Served().on(context=context) as server:
        assert (await said(ask, f"https://127.0.0.1:{server.port}/v1")).received


async def test_unknown_ca_is_refused(ask, certificate):
    async with Served().on(context=certificate[1]) as server:
        call = await said(ask, f"https://127.0.0.1:{server.port}/v1")
    assert "certificate verify failed" in call.error.lower() and not server.heads


async def test_missing_ca_bundle_is_named_and_not_tried_again(ask, monkeypatch, quick):
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    call = await said(ask, "https://127.0.0.1:1/v1", retry=quick)
    assert "the CA bundle '/nowhere/ca.pem' cannot be read" in call.error
    assert len(call.attempts) == 1


async def test_kept_connection_does_not_keep_the_rollout_in_memory(ask):
    async def roll_out(policy):
        with policy.rollout() as rollout:
            await ask()
        return weakref.ref(rollout)

    with ScriptedPolicy("a") as policy:
        rollout = await asyncio.create_task(roll_out(policy))
        gc.collect()
        assert rollout() is None
