"""A login that the server refuses: a setting at first, and what passes once it worked."""

import pytest

from penstock.leases.mongodb import MongoStore
from penstock.model.errors import SettingsError, Unavailable
from tests.mongodb.reading import Read, feed_of
from tests.mongodb.server import ScriptedMongod


@pytest.fixture
def server(server: ScriptedMongod) -> ScriptedMongod:
    server.password = "right"
    return server


def url(server: ScriptedMongod, path: str = "/") -> str:
    """With a user whom LDAP knows by the password `right`."""
    hosts, _, options = server.url.removeprefix("mongodb://").partition("/")
    login = "authMechanism=PLAIN&authSource=%24external"
    return f"mongodb://me:right@{hosts}{path}{options or '?'}&{login}"


def renew(server: ScriptedMongod, password: str) -> None:
    """The password is another one, and connections are made anew."""
    server.__exit__()
    server.password = password
    server.__enter__()


def test_a_wrong_password_at_the_first_start_is_a_setting(server: ScriptedMongod) -> None:
    server.password = "another"
    with pytest.raises(SettingsError, match="Authentication failed") as caught:
        feed_of(server, connection=url(server)).begin()
    assert caught.value.hint == "correct user and password, or authSource, in `connection`"
    assert "right" not in str(caught.value)


@pytest.mark.slow
def test_a_login_that_worked_and_is_refused_for_a_while_goes_on(
    server: ScriptedMongod, reading: Read
) -> None:
    """However often: a directory that is away, or a password that is renewed here and there."""
    there = reading(feed_of(server, connection=url(server)))
    server.history.insert(1)
    assert there.read(1) == ["1"]
    renew(server, "another")
    there.until(lambda: sum("Authentication failed" in str(each) for each in there.errors) > 12)
    assert "the login worked before" in there.errors[-1].hint
    assert "correct user and password" in there.errors[-1].hint
    renew(server, "right")
    server.history.insert(2)
    assert there.read(2) == ["1", "2"]
    assert there.causes == []


def test_a_process_that_starts_with_a_refused_login_says_so_and_goes_on_once_it_is_accepted(
    server: ScriptedMongod, reading: Read
) -> None:
    """As a pipeline that stands still, which tries again."""
    first = reading(feed_of(server, connection=url(server)))
    first.step()
    bookmark = first.bookmark()
    first.close()
    renew(server, "another")
    again = reading(feed_of(server, connection=url(server)), bookmark)
    assert isinstance(again.step(), SettingsError)
    renew(server, "right")
    again.now += 60
    server.history.insert(1)
    assert again.read(1) == ["1"]


def test_positions_are_unavailable_while_a_login_that_worked_is_refused(
    server: ScriptedMongod,
) -> None:
    store = MongoStore(url(server, "/places"))
    server.password = "another"
    with pytest.raises(SettingsError, match="Authentication failed") as caught:
        store.get("a")
    assert caught.value.hint == "correct the user and password in `positions`"
    renew(server, "right")
    assert store.get("a") is None
    renew(server, "another")
    with pytest.raises(Unavailable):  # the connection is closed, and then a login is refused
        store.get("a")
    with pytest.raises(Unavailable, match="Authentication failed"):
        store.get("a")
    renew(server, "right")
    assert store.get("a") is None
    store.close()
