"""What of a PostgreSQL URL is a secret."""

import pytest

from penstock.process.postgres_url import is_masked, masked, unmasked

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
