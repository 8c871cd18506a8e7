"""The dashboards that users provision: current, sound, and with links that lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build import DASHBOARDS, FOLDER
from tests.dashboards import lint
from tests.dashboards.boards import NAMES, ROOT, load


@pytest.fixture(params=NAMES)
def board(request: pytest.FixtureRequest) -> lint.Json:
    return load(request.param)


def texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from texts(item)
    if isinstance(node, str):
        yield node


@pytest.mark.parametrize("name", NAMES)
def test_the_json_is_what_the_code_builds(name: str) -> None:
    built = DASHBOARDS[name]()
    current = (FOLDER / name).read_text(encoding="utf-8")
    assert current == built, f"dashboards/{name} is not current: make dashboards"


def test_every_json_has_a_builder() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.json")) == NAMES


def test_lint(board: lint.Json) -> None:
    assert lint.problems(board) == []


def test_uids_are_those_that_links_use() -> None:
    uids = {Path(name).stem: load(name)["uid"] for name in DASHBOARDS}
    assert uids == {name: f"tailwatch-{name}" for name in uids}


def test_links_lead_to_pages_and_runbooks_that_exist(board: lint.Json) -> None:
    links = {
        match
        for text in texts(board)
        for match in re.findall(r"/(d|runbooks)/([\w-]+|\$\{[^}]+\})", text)
    }
    uids = {load(name)["uid"] for name in DASHBOARDS}
    runbooks = {path.stem for path in (ROOT / "runbooks").glob("*.md")}
    pages = {name for kind, name in links if kind == "d"}
    books = {name for kind, name in links if kind == "runbooks"} - {
        "${__field.labels.alertname}"  # one per alert: alerts and runbooks are paired elsewhere
    }
    assert pages == uids - {board["uid"]} or pages == uids
    assert books <= runbooks


def test_the_sdk_hides_no_link(board: lint.Json) -> None:
    """0.0.21 writes placement inControlsMenu on every link and annotation."""
    assert "inControlsMenu" not in set(texts(board))
    assert board["links"]
    assert board["annotations"]["list"]


def test_descriptions_say_what_good_looks_like(board: lint.Json) -> None:
    for panel in lint.panels(board):
        if panel["type"] not in lint.WITHOUT_QUERY:
            assert "Good: " in panel["description"], panel["title"]


def test_the_overview_fits_on_one_screen() -> None:
    """1600 x 1000: a grid row is 38 pixels, the head of the page takes 120."""
    bottom = max(
        panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in load("overview.json")["panels"]
    )
    assert 120 + bottom * 38 <= 1000


def test_the_overview_shows_what_it_promises() -> None:
    asked = " ".join(query["expr"] for _, query in lint.queried(load("overview.json")))
    for metric in (
        "gpu_utilization_ratio",
        "gpu_memory_used_bytes",
        "host_cpu_seconds_total",
        "host_memory_available_bytes",
        "host_network_receive_bytes_total",
        "inference_request_duration_seconds_bucket",
        "inference_requests_total",
        "inference_outcomes_total",
        "ALERTS",
        "service:cause:active",
    ):
        assert re.search(rf"(?<![\w:]){metric}(?![\w:])", asked), metric


def test_latency_panels_ask_for_exemplars() -> None:
    for name in ("overview.json", "request-path.json"):
        assert any(query.get("exemplar") for _, query in lint.queried(load(name))), name


def test_lines_are_drawn_where_alerts_fire() -> None:
    sections = yaml.safe_load((ROOT / "alert_rules" / "thresholds.yaml").read_text())
    budget = 1 - sections["slo"]["objective"]["value"]
    expected = {
        ("overview.json", "TP99 / TP50"): sections["latency_tail"]["ratio_min"]["value"],
        ("overview.json", "Errors"): budget * sections["slo"]["fast_burn"]["value"],
        ("overview.json", "Errors by kind"): budget,
        ("gpu.json", "SM active"): sections["gpu_starved"]["sm_active_max"]["value"],
    }
    for (name, title), value in expected.items():
        (panel,) = (one for one in lint.panels(load(name)) if one["title"] == title)
        last = panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"]
        assert last == pytest.approx(value), title


def test_the_reference_names_every_page_variable_and_no_panel_that_is_gone() -> None:
    text = (ROOT / "docs" / "reference" / "dashboards.md").read_text(encoding="utf-8")
    titles = set()
    for name in DASHBOARDS:
        page = load(name)
        titles |= {panel["title"] for panel in lint.panels(page)}
        assert f"`/d/{page['uid']}`" in text
        for variable in page["templating"]["list"]:
            assert f"| `{variable['name']}` |" in text
            assert variable["type"] == "datasource" or f"`{variable['query']}`" in text
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text)) - {"All"}
    assert named - titles == set()
