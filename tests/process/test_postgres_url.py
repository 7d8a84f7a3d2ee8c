"""What of a PostgreSQL URL is a secret."""

import pytest
from pydantic import TypeAdapter, ValidationError

from penstock.process.postgres_url import PostgresUrl, is_masked, masked, unmasked

SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("before", ["?", "?sslmode=require&"])
def test_no_secret_of_libpq_is_shown(name: str, before: str) -> None:
    url = f"postgresql://u@h/db{before}{name}=hush%26&application_name=a"
    shown = masked(url)
    assert "hush" not in shown
    assert is_masked(shown)
    assert shown.endswith("&application_name=a")
    assert unmasked(shown, url) == url


def test_what_is_no_secret_is_shown() -> None:
    url = "postgresql://u@h/db?passfile=/p&oauth_client_id=me&scram_client_keys=no"
    assert masked(url) == url


def checked(url: str) -> str:
    return TypeAdapter(PostgresUrl).validate_python(url).get_secret_value()


@pytest.mark.parametrize(
    ("more", "left"),
    [
        # Of every line in kuvasz-streamer's manual.
        ("?replication=database&application_name=a", "?application_name=a"),
        ("?application_name=a&replication=database", "?application_name=a"),
        ("?sslmode=require&replication=true&user=a", "?sslmode=require&user=a"),
        ("?replication=database", ""),
        ("?replication=1&replication=database", ""),
        ("?application_name=replication%3Dtrue", "?application_name=replication%3Dtrue"),
        ("?options=-c%20search_path%3Da", "?options=-c%20search_path%3Da"),
        ("?dbname=other", "?dbname=other"),
        ("?target_session_attrs=read-write", "?target_session_attrs=read-write"),
        ("?service=shop", "?service=shop"),
        ("?application_name=a%40b&replication=database", "?application_name=a%40b"),
    ],
)  # fmt: skip
def test_what_asks_for_replication_is_taken_out_and_the_rest_is_kept(more: str, left: str) -> None:
    assert checked(f"postgresql://u:p@h/db{more}") == f"postgresql://u:p@h/db{left}"


def test_a_password_that_looks_like_an_option_is_kept() -> None:
    url = "postgresql://u:p?replication=a&b&replication=c@h/db"
    assert checked(url) == url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (
            "postgresql://u:hush@h/db?sslmode=no-verify",
            "sslmode: write one of disable, allow",
        ),
        ("postgresql://u:hush@h/db?sslmode=verify_full", "sslmode"),
        ("postgresql://u:hush@h/db?target_session_attrs=master", "target_session_attrs: write one"),
        ("postgresql://u:hush@h/?service=shop", "name the database in the URL"),
        ("postgresql://u:hush@h/db?pool_max_conns=5", "no option pool_max_conns: leave it out"),
        ("postgresql://u:hush@h/db?search_path=a", "options=-c%20search_path%3D..."),
        ("postgresql://u:pa?hush=x@h:%zz/db", "of the form"),
        ("postgresql://u@h/db?password=a&hush=x", "of the form"),
        ("mysql://u:hush@h/db", "of the form"),
    ],
)
def test_what_breaks_a_connection_is_refused_with_its_remedy(url: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        checked(url)
    (error,) = caught.value.errors()
    assert words in error["msg"]
    assert "hush" not in error["msg"]
