"""The page /ui/map: each request that it makes is one of REST, and a browser can work with it."""

import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

from tests.servers import Postgres
from tests.service.maps import TOKEN, Api, made, mapped


@pytest.fixture
def api(tmp_path: Path, postgres: Postgres) -> Iterator[Api]:
    with made(postgres) as databases:
        yield mapped(tmp_path, databases)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("", "text/html"), ("map.js", "text/javascript"), ("app.css", "text/css"),
     ("ok.svg", "image/svg+xml")],
)  # fmt: skip
def test_its_files_are_served_and_load_nothing_from_elsewhere(
    api: Api, path: str, kind: str
) -> None:
    found = api.client.get(f"/ui/{path}")
    assert (found.status_code, found.headers["content-type"].partition(";")[0]) == (200, kind)
    assert found.headers["content-security-policy"].startswith("default-src 'self'")
    assert "http" not in found.text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("path", ["other", "../server.py", "index.html%00", "server.py"])
def test_nothing_else_is_served(api: Api, path: str) -> None:
    assert api.client.get(f"/ui/{path}").status_code == 404


def test_each_request_of_the_page_is_one_of_rest(api: Api) -> None:
    text = files("penstock.ops").joinpath("ui", "map.js").read_text()
    asked = re.findall(r'api\("([A-Z]+)", (?:"|`)([^"`]+)', text)
    known = {(each.method, each.path.removeprefix("/api")) for each in api.api.endpoints()}
    assert {(method, re.sub(r"\$\{[^}]*\}", "{id}", path)) for method, path in asked} <= known
    assert len(asked) == 11


@pytest.fixture
def page(api: Api, opened: Callable[..., Any]) -> Iterator[Any]:
    with api.server:
        yield opened(f"{api.server.url}/ui/map#/map")


def tables(page: Any) -> dict[str, list[str]]:
    rows = page.locator("#mapped tbody tr")
    return {cells[1]: cells for cells in (row.split("\t") for row in rows.all_inner_texts())}


def expect(page: Any, selector: str) -> Any:
    """What is expected of the elements; within a minute."""
    sync_api.expect.set_options(timeout=60_000)
    return sync_api.expect(page.locator(selector))


def test_a_table_is_cloned_by_keyboard(api: Api, page: Any) -> None:
    expect(page, "#mapped tbody tr").to_have_count(4)
    assert tables(page)["public.d1"][2:5] == ["clone", "d1", "starting"]
    expect(page, "#map-sources tbody tr:nth-child(2) td:nth-child(4)").to_have_text("down")

    page.get_by_label("Clone d2").focus()
    page.keyboard.press("Enter")
    expect(page, "#message").to_contain_text("token")
    assert page.evaluate("document.activeElement.name") == "token"
    page.keyboard.type(TOKEN)
    page.get_by_label("Clone d2").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Reload d2").wait_for()
    assert api.table("d2")["present"] is True
    assert page.evaluate("sessionStorage.token") == TOKEN
    assert page.evaluate("document.cookie + localStorage.length + location.search") == "0"


def test_options_are_edited_in_a_form(api: Api, page: Any) -> None:
    page.fill("[name=token]", TOKEN)
    page.get_by_label("Clone u3").click()  # it has partitions, and asks for a pattern
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    page.get_by_label("Options u3").click()
    page.locator("#map-options [value=confirm]").click()
    expect(page, "[role=alert]").to_contain_text("partitioned")
    page.fill("dialog [name=partitions_regex]", "u3_.*")
    page.fill("dialog [name=set]", "id = id * 2\nname = coalesce(name, '=')")
    page.fill("dialog [name=filter]", "id > 0")
    page.locator("#map-options [value=confirm]").click()
    page.locator("dialog[open]").wait_for(state="detached")
    page.get_by_label("Reload u3").wait_for()
    found = api.table("u3")
    assert found["set"] == {"id": "id * 2", "name": "coalesce(name, '=')"}
    assert (found["partitions_regex"], found["filter"]) == ("u3_.*", "id > 0")

    page.get_by_label("Options u3").click()
    page.fill("dialog [name=filter]", "")
    page.fill("dialog [name=columns]", "id, name")
    page.locator("#map-options [value=confirm]").click()
    page.locator("dialog[open]").wait_for(state="detached")
    assert (api.table("u3")["filter"], api.table("u3")["columns"]) == ("", ["id", "name"])

    page.get_by_label("Options u3").click()
    page.locator("dialog [data-map=remove]").click()
    page.get_by_label("Clone u3").wait_for()
    assert api.table("u3")["replicated"] is False


def test_a_source_is_added(api: Api, page: Any) -> None:
    page.fill("[name=token]", TOKEN)
    page.locator("[data-screen=map] summary").click()
    for name, value in (("db", "db3"), ("sid", "ca"), ("url", api.source.url)):
        page.fill(f"#source [name={name}]", value)
    page.locator("#source button").click()
    expect(page, "#map-sources tbody tr").to_have_count(3)
    expect(page, "#mapped tbody tr").to_have_count(8)
    page.fill("[name=map]", "db3 more")
    assert list(tables(page)) == ["more.d3"]


def test_names_are_text_and_a_page_that_is_left_alone_says_so(api: Api, page: Any) -> None:
    api.source.execute('CREATE TABLE "<img src=x>" (id int PRIMARY KEY)')
    page.fill("[name=token]", TOKEN)
    page.locator("[data-map=refresh]").click()
    page.get_by_label("Clone <img src=x>").wait_for()
    assert "public.<img src=x>" in tables(page)
    assert page.locator("img").count() == 0
    api.server.close()
    expect(page, "body").to_have_attribute("data-connection", "lost")
