"""`penstock status` and `penstock top` ask a real ops server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from penstock.cli import main
from penstock.model.settings import Secret
from tests.service.test_dashboard import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path, token=Secret("key"), read_token=Secret("reader"))
    found.post(7)
    with found.server:
        yield found
    found.actions.close()


def ask(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, words, catch_exceptions=False)
    return found.exit_code, found.output


def test_a_frame_shows_the_pipeline_and_the_exit_code_its_health(served: Served) -> None:
    code, text = ask("top", served.server.url, "--once", "--token", "reader")
    assert (code, "shop" in text, "ok" in text, "7" in text) == (0, True, True, True)
    served.post(7, blocked="the slot is gone")
    code, text = ask("status", served.server.url, "--token", "key")
    assert (code, "the slot is gone" in text) == (1, True)


def test_a_file_says_where_and_with_which_token(served: Served, tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "name": "shop", "backends": [{"name": "a", "type": "memory"}], "sink": {"type": "memory"},
        "state": str(tmp_path), "ops": {"port": served.server.port, "read_token": "reader"},
    }  # fmt: skip
    file = tmp_path / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document))
    code, text = ask("status", str(file), "--json")
    assert (code, json.loads(text)["name"]) == (0, "shop")


def test_without_a_token_or_a_server_it_says_so(served: Served) -> None:
    assert "reading needs a token" in ask("status", served.server.url)[1]
    served.server.close()
    code, text = ask("status", served.server.url)
    assert (code, "no ops server answers" in text) == (1, True)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "https://"])
def test_another_url_is_refused(url: str) -> None:
    found = CliRunner().invoke(main, ["status", url])
    assert found.exit_code == 2
    assert "is no http:// or https:// URL" in found.stderr


def test_https_is_asked_with_tls(served: Served) -> None:
    """The server speaks none: it gets the begin of TLS, and nothing answers."""
    found = CliRunner().invoke(main, ["status", served.server.url.replace("http:", "https:")])
    assert found.exit_code == 1
    assert "no ops server answers" in found.stderr
