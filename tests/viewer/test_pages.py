from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tailwatch_stack.errors import TailwatchError
from tailwatch_stack.viewer.address import ListenAddress
from tailwatch_stack.viewer.documents import Dashboards
from tailwatch_stack.viewer.server import ViewerSettings, create_app
from tests.viewer.conftest import Client


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/d/overview", 200),
        ("/d/overview/any-slug?from=now-1h", 200),
        ("/d/nope", 404),
        ("/runbooks", 200),
        ("/runbooks/TooHot", 200),
        ("/runbooks/Nope", 404),
    ],
)
def test_every_page_is_the_one_page_with_the_right_status(
    client: Client, path: str, status: int
) -> None:
    response = client.get(path)
    assert (response.status_code, response.text) == (status, "<html>the page</html>")
    assert response.headers["Cache-Control"] == "no-cache"


def test_an_unknown_path_is_the_page_for_a_person_and_json_for_a_program(client: Client) -> None:
    person = client.get("/nowhere", headers={"Accept": "text/html,*/*"})
    assert (person.status_code, person.text) == (404, "<html>the page</html>")
    program = client.get("/nowhere")
    assert (program.status_code, program.json()) == (404, {"detail": "Not Found"})


def test_dashboards_are_listed_with_the_overview_first(client: Client) -> None:
    listed = client.get("/api/dashboards").json()
    assert [one["title"] for one in listed] == ["Overview", "GPU", "Host"]
    assert listed[0] == {"uid": "overview", "title": "Overview", "description": "", "tags": ["x"]}


def test_a_dashboard_is_served_whole(client: Client) -> None:
    assert client.get("/api/dashboards/a-gpu").json()["panels"] == []


def test_an_unknown_dashboard_is_named(client: Client) -> None:
    response = client.get("/api/dashboards/nope")
    assert response.status_code == 404
    assert response.json() == {"detail": "There is no dashboard nope"}


def test_an_edited_dashboard_shows_at_once(client: Client, folder: Path) -> None:
    (folder / "dashboards" / "new.json").write_text('{"uid": "new", "title": "New"}')
    assert client.get("/api/dashboards/new").json()["title"] == "New"


def test_a_dashboard_broken_while_running_is_told(client: Client, folder: Path) -> None:
    (folder / "dashboards" / "new.json").write_text("{")
    response = client.get("/api/dashboards")
    assert response.status_code == 500
    assert "new.json: not readable as JSON" in response.json()["detail"]
    page = client.get("/d/overview", headers={"Accept": "text/html,*/*"})
    assert (page.status_code, page.text) == (500, "<html>the page</html>")


def test_runbooks_are_served_as_markdown(client: Client) -> None:
    assert client.get("/api/runbooks").json() == ["TooHot"]
    assert client.get("/api/runbooks/TooHot").json() == {
        "alert": "TooHot",
        "markdown": "# TooHot\n\n## Meaning\n",
    }
    assert client.get("/api/runbooks/Nope").json() == {"detail": "There is no runbook for Nope"}


@pytest.mark.parametrize("name", ["..%2Fsecret", "%2E%2E%2Fsecret", "../secret", "TooHot.md"])
def test_a_runbook_name_cannot_leave_the_folder(client: Client, name: str) -> None:
    assert client.get(f"/api/runbooks/{name}").status_code == 404


def test_the_page_is_told_the_scrape_interval(client: Client) -> None:
    assert client.get("/api/settings").json() == {"scrapeIntervalSeconds": 15}


def test_it_says_that_it_is_healthy(client: Client) -> None:
    assert client.get("/-/healthy").text == "ok\n"


def test_hashed_files_may_be_kept_and_others_not_for_long(client: Client) -> None:
    assert "immutable" in client.get("/assets/index-abc.js").headers["Cache-Control"]
    assert client.get("/favicon.svg").headers["Cache-Control"] == "public, max-age=3600"
    missing = client.get("/assets/nope.js")
    assert missing.status_code == 404
    assert "immutable" not in missing.headers.get("Cache-Control", "")


@pytest.mark.parametrize("path", ["/", "/api/dashboards", "/prom/api/v1/query", "/nope.js"])
def test_every_response_carries_the_security_headers(client: Client, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize("host", ["127.0.0.1:12162", "localhost", "[::1]:12162", "127.0.0.1"])
def test_loopback_names_are_answered(client: Client, host: str) -> None:
    assert client.get("/-/healthy", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.test", "evil.test:12162", "127.0.0.1.evil.test", ""])
def test_another_name_for_loopback_is_refused(client: Client, host: str) -> None:
    """A page of another site could make its name resolve to 127.0.0.1."""
    response = client.get("/api/dashboards", headers={"Host": host})
    assert response.status_code == 421
    assert f"Host {host!r} is not this machine" in response.text


def test_a_server_that_listens_wider_answers_to_any_name(settings: ViewerSettings) -> None:
    app = create_app(dataclasses.replace(settings, listen=ListenAddress("", 12162)))
    client = Client(app, base_url="http://gpu-box.test")
    assert client.get("/-/healthy").status_code == 200


def test_a_missing_bundle_says_how_to_build_it(settings: ViewerSettings, folder: Path) -> None:
    (folder / "dist" / "index.html").unlink()
    with pytest.raises(TailwatchError, match=r"no viewer bundle in .*dist: run `make viewer`"):
        create_app(settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not readable as JSON"),
        ("[]", "expected a JSON object, found list"),
        ('{"title": "x"}', "expected a text under 'uid'"),
        ('{"uid": "x", "title": ""}', "expected a text under 'title'"),
        ('{"uid": "overview", "title": "x"}', "uid overview is also that of overview.json"),
    ],
)
def test_a_file_that_is_no_dashboard_is_named(folder: Path, text: str, expected: str) -> None:
    (folder / "dashboards" / "z.json").write_text(text)
    with pytest.raises(TailwatchError, match=rf"z\.json: {expected}"):
        Dashboards(folder / "dashboards").all()


def test_a_folder_without_dashboards_is_named(tmp_path: Path) -> None:
    with pytest.raises(TailwatchError, match=r"no dashboard, expected \*\.json files"):
        Dashboards(tmp_path).all()
