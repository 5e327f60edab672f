"""The journal: what it keeps, who may open it, what happens on a full disk."""

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from cryptography.fernet import Fernet

from osmosis_core import ConfigError, RolloutStatus
from osmosis_server.journal import Ending, Journal, JournalFull
from osmosis_server.submissions import Delivery, Duplicate, RolloutView

HOLD = """
import asyncio, sys
from osmosis_server.journal import Journal
journal = Journal.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def journal(path):
    journal = Journal.open(path)
    yield journal
    await journal.close()


def written(write, *arguments) -> asyncio.Future[None]:
    """A future of one write."""
    future = asyncio.get_running_loop().create_future()

    def done(error):
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    future.returned = write(*arguments, done)
    return future


async def admitted(journal, submission) -> int:
    future = written(journal.admit, submission)
    await future
    return future.returned.seq


async def finished(journal, seq, rollout_id="r1", *, ended_at=None, body=b"{}", deliveries=()):
    view = RolloutView(rollout_id, RolloutStatus.SUCCESS, 1.0, body=body)
    ending = Ending(view, time.time() if ended_at is None else ended_at)
    await written(journal.finish, seq, ending, journal.number(deliveries))


async def test_submission_comes_back_as_it_was(path, called_back):
    submission = called_back("http://h", metadata={"ü": [1, None, 1e300, "\ud800"]}, grade=False)
    journal = Journal.open(path)
    seq = await admitted(journal, submission)
    assert await journal.submissions([seq, 99]) == {seq: submission}
    assert await journal.unfinished() == []
    await journal.close()
    journal = Journal.open(path)
    (found,) = await journal.unfinished()
    assert (found.seq, found.is_told, found.submission) == (seq, False, submission)
    await journal.close()


async def test_keys_and_lease_tokens_are_not_in_the_files(journal, path, polled, called_back):
    await admitted(journal, polled(token="lease-secret"))
    await admitted(journal, called_back("http://h", "r2"))
    files = b"".join(p.read_bytes() for p in path.parent.iterdir() if p.suffix != ".key")
    assert b"http://127.0.0.1:9/v1" in files
    for secret in (b"sk-policy-secret", b"reply-secret", b"lease-secret"):
        assert secret not in files


async def test_files_are_for_their_owner_only(journal, path, polled):
    await admitted(journal, polled())
    assert {oct(p.stat().st_mode & 0o777) for p in path.parent.iterdir()} == {"0o600"}


async def test_duplicate_in_a_batch_spoils_no_other(journal, polled):
    await admitted(journal, polled())
    ids = ["r2", "r1", "r3", "r2"]
    tries = [written(journal.admit, polled(name)) for name in ids]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert [isinstance(o, Duplicate) for o in outcomes] == [False, True, False, True]


async def test_value_that_sqlite_cannot_take_spoils_no_other(journal, polled):
    first, second = await admitted(journal, polled()), await admitted(journal, polled("r2"))
    view = RolloutView("r1", RolloutStatus.SUCCESS, reward=2**70)
    bad = written(journal.finish, first, Ending(view, 1.0), ())
    await finished(journal, second, "r2")
    with pytest.raises(OverflowError):
        await bad
    assert await journal.stored("r1") is None and await journal.stored("r2")


async def test_live_server_keeps_others_out_until_it_is_dead(path):
    holder = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(ConfigError, match=f"held by the live server with pid {holder.pid};"):
            Journal.open(path)
        holder.send_signal(signal.SIGKILL)
    await Journal.open(path).close()


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("PRAGMA user_version = 7", "is a journal of version 7, this server writes version 1"),
        ("PRAGMA application_id = 7", "is not a journal of a rollout server"),
    ],
)
async def test_other_databases_are_refused(path, statement, complaint):
    await Journal.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    with pytest.raises(ConfigError, match=complaint):
        Journal.open(path)


async def test_file_that_is_no_database_is_refused(path):
    path.parent.mkdir()
    path.write_text("not a database " * 100)
    with pytest.raises(ConfigError, match=r"cannot be read as a journal: .* move it away"):
        Journal.open(path)
    assert path.read_text().startswith("not a database")


async def test_other_key_is_refused_and_names_the_variable(path, monkeypatch):
    await Journal.open(path).close()
    monkeypatch.setenv("OSMOSIS_JOURNAL_KEY", Fernet.generate_key().decode())
    with pytest.raises(ConfigError, match=r"another key; give that one in OSMOSIS_JOURNAL_KEY"):
        Journal.open(path)
    monkeypatch.setenv("OSMOSIS_JOURNAL_KEY", "short")
    with pytest.raises(ConfigError, match="not 32 bytes in URL-safe base64"):
        Journal.open(path)


async def test_purge_forgets_what_is_old_and_owes_nothing(journal, polled):
    for n in range(4):
        seq = await admitted(journal, polled(f"r{n}"))
        owed = [Delivery("completion", "http://h", b"{}")] if n == 1 else ()
        ended_at = 100.0 if n < 3 else 300.0
        await finished(journal, seq, f"r{n}", ended_at=ended_at, deliveries=owed)
    await admitted(journal, polled("running"))
    assert (await journal.purge(200.0, 2**40, keep=[3])).forgotten == 1
    left = [n for n in range(4) if await journal.stored(f"r{n}")]
    assert left == [1, 2, 3]


async def test_size_limit_forgets_the_oldest_and_gives_the_disk_back(journal, path, polled):
    for n in range(40):
        seq = await admitted(journal, polled(f"r{n}"))
        await finished(journal, seq, f"r{n}", ended_at=float(n), body=os.urandom(500_000))
    limit, forgotten = 10 * 2**20, 0
    while (purged := await journal.purge(0.0, limit)).forgotten:
        forgotten += purged.forgotten
    for _ in range(10):
        await journal.purge(0.0, limit)
    assert forgotten == 32 and purged.used_bytes <= limit
    assert await journal.stored("r39") and await journal.stored("r0") is None
    assert path.stat().st_size < 15 * 2**20


async def test_full_disk_refuses_admissions_and_writes_the_rest_when_there_is_room(
    journal, path, polled
):
    seq = await admitted(journal, polled())
    body, limits = b"x" * 3_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        held = asyncio.create_task(finished(journal, seq, body=body))
        with pytest.raises(JournalFull, match=r"cannot be written .* free some room") as refused:
            await admitted(journal, polled("big", metadata={"x": "y" * 2_000_000}))
        with pytest.raises(JournalFull):
            await admitted(journal, polled("r2"))
        assert not held.done() and await journal.stored("r1") is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await held
    assert refused.value.retry_after_sec == 5
    assert (await journal.stored("r1")).view.body == body
    await admitted(journal, polled("r2"))


async def test_close_says_how_many_writes_had_no_room(path, polled):
    journal, limits = Journal.open(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    seq = await admitted(journal, polled())
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        held = asyncio.create_task(finished(journal, seq, body=b"x" * 3_000_000))
        await asyncio.sleep(0)
        assert await journal.close() == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    held.cancel()


async def test_writes_take_effect_in_the_order_of_the_calls(journal, polled):
    seqs = [await admitted(journal, polled(f"r{n}")) for n in range(200)]
    order: list[int] = []
    owed = journal.number([Delivery("completion", "http://h", b"{}")])
    for seq in seqs:
        journal.tell(seq, owed, lambda error, seq=seq: order.append(seq))
        journal.settle(seq, owed[0][0], lambda error, seq=seq: order.append(-seq))
    await journal.purge(0.0, 2**40)
    assert order == [signed for seq in seqs for signed in (seq, -seq)]
