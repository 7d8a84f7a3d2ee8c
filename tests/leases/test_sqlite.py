"""What only a file can do wrong: other processes, kills, locks, damage."""

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from penstock.leases import Lease, replace
from penstock.leases.sqlite import SqliteStore
from penstock.model.errors import LeaseLost, SettingsError, Unavailable

RACE = """
import sys
from penstock.model.errors import LeaseLost
from penstock.leases import Lease, replace
from penstock.leases import sqlite
sqlite._BUSY_SECONDS = 60.0  # fifty commits of the other may take longer than a user would wait
store = sqlite.SqliteStore(sys.argv[1])
sys.stdin.readline()
won = 0
for i in range(50):
    try:
        store.put(Lease(name=f"n{i}", owner=sys.argv[2]))
        won += 1
    except LeaseLost:
        pass
print(won)
"""

WRITE = """
import sys
from penstock.leases import Lease
from penstock.leases.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
rows = [Lease(name=f"n{number}", continuation="x" * 200) for number in range(int(sys.argv[2]))]
while True:
    rows = store.put_all(rows) if len(rows) > 1 else [store.put(rows[0])]
    print(rows[0].revision, flush=True)
"""


PUT = """
import sys
from penstock.leases import Lease, replace
from penstock.leases.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
store.put(Lease(name="c"))
store.close()
"""


def child(code: str, *args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_of_two_processes_that_race_exactly_one_wins(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.db"  # also the race to create it
    children = [child(RACE, str(file), name) for name in ("x", "y")]
    for process in children:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [int(process.communicate(timeout=180)[0]) for process in children]
    assert sum(won) == 50
    owners = [lease.owner for lease in SqliteStore(file).list("")]
    assert [owners.count("x"), owners.count("y")] == won


@pytest.mark.parametrize("rows", [1, 200])
def test_what_was_written_survives_a_kill_all_or_none(tmp_path: Path, rows: int) -> None:
    file = tmp_path / "a.db"
    process = child(WRITE, str(file), str(rows))
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(10)]
    process.kill()
    # Not `communicate`: it passes over lines that are read already.
    said += [int(line) for line in process.stdout.read().splitlines()]
    process.wait(60)
    found = SqliteStore(file).list("")
    assert len(found) == rows
    (revision,) = {int(row.revision) for row in found}
    assert revision in (said[-1], said[-1] + 1)
    assert SqliteStore(file).put(found[0]).revision == str(revision + 1)


def test_constructing_a_store_makes_no_file(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "a" / "b.db").close()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_and_the_file_are_the_users_alone(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "a" / "b.db").get("x")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a/b.db")]
    assert modes == [0o700, 0o600]


def test_commits_are_synchronous_in_a_write_ahead_log(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "b.db")
    store.get("x")
    pragmas = [
        store._client().execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    ]
    assert pragmas == ["wal", 2]


def test_a_forked_child_opens_its_own_connection(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "b.db")
    lease = store.put(Lease(name="a"))
    pid = os.fork()
    if pid == 0:
        try:
            store.put(lease)
            store.close()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    with pytest.raises(LeaseLost):
        store.put(lease)


def test_a_second_store_of_a_process_leaves_the_first_its_locks(tmp_path: Path) -> None:
    """A process that closes a file, however it opened it, loses all its locks on it (POSIX). Then
    another process that leaves last would remove the write-ahead log under the first store."""
    file = tmp_path / "b.db"
    first, second = SqliteStore(file), SqliteStore(file)
    first.put(Lease(name="a"))
    second.put(Lease(name="b"))
    subprocess.run([sys.executable, "-c", PUT, str(file)], check=True)
    assert file.with_name("b.db-wal").exists()
    for store in (first, second):
        assert [lease.name for lease in store.list("")] == ["a", "b", "c"]
    first.put(Lease(name="d"))
    second.put(Lease(name="e"))


def test_a_locked_file_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.process.sqlite_file.BUSY_SECONDS", 0.05)
    file = tmp_path / "b.db"
    store = SqliteStore(file)
    store.put(Lease(name="a"))
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    rows = [Lease(name="b"), Lease(name="c")]
    for act in (lambda: store.put(rows[0]), lambda: store.put_all(rows)):
        with pytest.raises(Unavailable, match=r"b\.db.*locked.*another program holds a lock"):
            act()
    holder.rollback()
    holder.close()
    assert store.put_all(rows) == store.list("")[1:]


def test_a_file_that_is_no_database_is_a_settings_error(tmp_path: Path) -> None:
    file = tmp_path / "b.db"
    file.write_bytes(b"not a database at all, but long enough to look" * 40)
    with pytest.raises(SettingsError, match=r"b\.db.*move it away"):
        SqliteStore(file).get("a")
    assert file.read_bytes().startswith(b"not a database")


@pytest.mark.slow
def test_a_damaged_file_is_a_settings_error(tmp_path: Path) -> None:
    file = tmp_path / "b.db"
    store = SqliteStore(file)
    for i in range(300):
        store.put(Lease(name=f"n{i}", continuation="x" * 200))
    store.close()
    damaged = bytearray(file.read_bytes())
    damaged[4096:] = os.urandom(len(damaged) - 4096)
    file.write_bytes(damaged)
    with pytest.raises(SettingsError, match="damaged"):
        SqliteStore(file).list("")


@pytest.mark.parametrize("path", ["/proc/penstock/b.db", "/dev/null/b.db", "/proc/b.db"])
def test_a_place_where_nothing_can_be_written_is_a_settings_error(path: str) -> None:
    with pytest.raises(SettingsError, match="writable"):
        SqliteStore(path).get("a")


def test_a_file_of_an_earlier_version_is_used_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    with closing(sqlite3.connect(file)) as before, before:
        before.execute(
            "CREATE TABLE lease (name text PRIMARY KEY, owner text NOT NULL, continuation text"
            " NOT NULL, revision bigint NOT NULL, deleted boolean NOT NULL DEFAULT false)"
        )
        before.execute("""INSERT INTO lease VALUES ('a', 'me', '{"place": null}', 7, false)""")
    store = SqliteStore(file)
    found = store.get("a")
    assert found == Lease(name="a", owner="me", continuation='{"place": null}', revision="7")
    put = store.put(replace(found, properties={"team": "x"}))
    assert store.get("a") == put == replace(found, properties={"team": "x"}, revision="8")
    store.put(replace(put, properties={}))
    with closing(sqlite3.connect(file)) as after:
        rows = after.execute("SELECT continuation FROM lease").fetchall()
    assert rows == [('{"place": null}',)], "an earlier version reads a row without properties"
