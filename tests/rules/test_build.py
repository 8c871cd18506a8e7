"""`tailwatch rules build`: what is checked in is what is rendered, and bad input is one line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tailwatch_stack.cli import main
from tailwatch_stack.errors import TailwatchError
from tailwatch_stack.rules import render
from tailwatch_stack.rules_render import HEADER, render_rules, write_files
from tailwatch_stack.rules_thresholds import load_thresholds
from tests.rules.files import ALERT_RULES, rule_files


def build(*arguments: str | Path) -> int:
    return main(["rules", "build", *map(str, arguments)])


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.strip()


def test_checked_in_files_are_what_the_templates_render() -> None:
    """After a change: make rules."""
    checked_in = {
        path.relative_to(ALERT_RULES).as_posix(): path.read_text(encoding="utf-8")
        for path in rule_files()
    }
    assert checked_in == render()


def test_nothing_of_the_template_language_is_left_and_prometheus_templates_are_whole() -> None:
    for name, text in render().items():
        assert "${" not in text
        template = (ALERT_RULES / "templates" / name).read_text(encoding="utf-8")
        assert text.count("{{") == template.count("{{")
        assert text.count("$labels") == template.count("$labels")
        assert text.count("$value") == template.count("$value")


def test_every_threshold_is_used_and_has_a_source() -> None:
    thresholds = load_thresholds(ALERT_RULES / "thresholds.yaml")
    templates = "".join(
        path.read_text(encoding="utf-8") for path in (ALERT_RULES / "templates").rglob("*.yaml")
    )
    for name, threshold in thresholds.items():
        assert f"${{{name}}}" in templates, name
        assert threshold.about and threshold.source, name


def test_own_thresholds_and_base_url_reach_the_rules(
    tmp_path: Path, promtool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "my.yaml"
    mine.write_text("gpu_starved:\n  sm_active_max: 0.25\n  for: {value: 10m, source: our SRE}\n")
    code = build("--thresholds", mine, "--base-url", "https://o.example/g/", "--output", tmp_path)
    assert code == 0
    assert capsys.readouterr().out == f"wrote 11 rule files to {tmp_path}\n"
    text = (tmp_path / "alerts" / "gpu-starved.yaml").read_text(encoding="utf-8")
    (rule,) = yaml.safe_load(text)["groups"][0]["rules"]
    assert "service:gpu_sm_active:ratio5m < 0.25" in rule["expr"]
    assert rule["for"] == "10m"
    assert 'limit {{ "0.25" | humanizePercentage }}' in rule["annotations"]["description"]
    assert rule["annotations"]["runbook_url"] == "https://o.example/g/runbooks/GpuStarvedUnderLoad"
    files = [*tmp_path.glob("recording/*.yaml"), *tmp_path.glob("alerts/*.yaml")]
    assert len(files) == 11
    subprocess.run([promtool, "check", "rules", *files], check=True, capture_output=True)


def test_a_copy_of_the_whole_file_is_accepted() -> None:
    assert render(ALERT_RULES / "thresholds.yaml") == render()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "gpu_starved: {sm_active_max: low}",
            "gpu_starved.sm_active_max is 'low', expected a number above 0 and at most 1",
        ),
        (
            "gpu_starved: {sm_active_max: 30}",
            "gpu_starved.sm_active_max is 30, expected a number above 0 and at most 1",
        ),
        (
            "gpu_starved: {sm_active_max: true}",
            "gpu_starved.sm_active_max is True, expected a number above 0 and at most 1",
        ),
        ("queue: {depth_min: .nan}", "queue.depth_min is nan, expected a number above 0"),
        ("queue: {depth_min: .inf}", "queue.depth_min is inf, expected a number above 0"),
        ("queue: {depth_min:}", "queue.depth_min is None, expected a number above 0"),
        ("queue: {depth_min: [1]}", "queue.depth_min is [1], expected a number above 0"),
        (
            "latency_tail: {ratio_min: 0.5}",
            "latency_tail.ratio_min is 0.5, expected a number of at least 1",
        ),
        *(
            (
                f"evaluation: {{interval_seconds: {value}}}",
                f"evaluation.interval_seconds is {value}, expected a whole number of seconds",
            )
            for value in (0, 15.5, 61)
        ),
        (
            "latency_tail: {p99_min_seconds: 0}",
            "latency_tail.p99_min_seconds is 0, expected a number of seconds above 0",
        ),
        ("queue: {for: 180}", "queue.for is 180, expected a duration such as 30s, 5m or 1h"),
        ("queue: {for: 3 min}", "queue.for is '3 min', expected a duration such as 30s, 5m or 1h"),
        (
            "queue: {depth: 3}",
            "unknown threshold queue.depth, expected one of "
            "queue.timeout_share, queue.depth_min, queue.growth_min, queue.for",
        ),
        (
            "gpu: {sm: 1}",
            "unknown threshold gpu.sm, expected one of evaluation, traffic, gpu_starved, "
            "latency_tail, queue, slo, histogram, causes",
        ),
        (
            "queue: {depth_min: {value: 3, sources: x}}",
            "queue.depth_min has the unknown field sources, expected value, unit, about, source",
        ),
        (
            "queue: {depth_min: {unit: ratio, value: 3}}",
            "queue.depth_min has unit 'ratio', expected 'count'",
        ),
        (
            "queue: {depth_min: {source: x}}",
            "queue.depth_min has no value, expected a number above 0",
        ),
        ("queue: 3", "queue is 3, expected a group of thresholds"),
        ("[1, 2]", "holds a list, expected groups of thresholds"),
        ("", "holds nothing, expected groups of thresholds"),
        ("queue: {depth_min: 3\n", "line 2: expected ',' or '}', but got '<stream end>', "),
        ("queue: {depth_min: 3, depth_min: 4}", "line 1: key depth_min given twice, "),
        ("queue: {for: \x07}", "unacceptable character #x0007: "),
        ("queue: {for: 2026-13-41}", "month must be in 1..12, "),
        ("queue: {? [a] : 1}", "line 1: found unhashable key, "),
    ],
)
def test_malformed_thresholds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    mine = tmp_path / "my.yaml"
    mine.write_text(text)
    output = tmp_path / "out"
    assert build("--thresholds", mine, "--output", output) == 2
    assert one_line(capsys).startswith(f"tailwatch rules: {mine}: {message}")
    assert not output.exists()


def test_thresholds_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build("--thresholds", tmp_path / "none.yaml", "--output", tmp_path / "out") == 2
    assert one_line(capsys) == (
        f"tailwatch rules: {tmp_path}/none.yaml: cannot be read: No such file or directory"
    )
    (tmp_path / "latin1.yaml").write_bytes(b"queue: \xe9")
    assert build("--thresholds", tmp_path / "latin1.yaml", "--output", tmp_path / "out") == 2
    assert "latin1.yaml: is no UTF-8 text" in one_line(capsys)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "grafana.example",
        "ftp://x",
        "http://",
        "http://x/?a=b",
        "http://x/'",
        "http://x/{{ 1 }}",
    ],
)
def test_base_url_must_be_a_plain_http_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert build("--base-url", url, "--output", tmp_path / "out") == 2
    assert one_line(capsys) == (
        f"tailwatch rules: --base-url is {url!r}, "
        "expected http://host[:port][/path] without a query"
    )
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert build("--output", tmp_path / "file") == 1
    assert "cannot be written" in one_line(capsys)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_failure_half_way_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"alerts/a.yaml": "old a", "alerts/b.yaml": "old b"})
    written: list[Path] = []
    real = os.fchmod

    def full_disk(descriptor: int, mode: int) -> None:
        written.append(tmp_path)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        real(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", full_disk)
    with pytest.raises(TailwatchError, match="No space left on device"):
        write_files(tmp_path, {"alerts/a.yaml": "new a", "alerts/b.yaml": "new b"})
    assert {path.name: path.read_text() for path in (tmp_path / "alerts").iterdir()} == {
        "a.yaml": "old a",
        "b.yaml": "old b",
    }


def test_a_rule_file_of_an_earlier_rendering_goes_and_others_stay(tmp_path: Path) -> None:
    write_files(tmp_path, {"alerts/old.yaml": HEADER, "alerts/a.yaml": HEADER})
    (tmp_path / "alerts" / "my-own.yaml").write_text("groups: []\n")
    write_files(tmp_path, {"alerts/a.yaml": HEADER})
    assert {path.name for path in (tmp_path / "alerts").iterdir()} == {"a.yaml", "my-own.yaml"}


def test_a_template_with_an_unknown_name_or_broken_yaml_is_refused(tmp_path: Path) -> None:
    template = tmp_path / "a.yaml"
    template.write_text("groups: ${queue.deep}\n")
    with pytest.raises(TailwatchError, match=r"a\.yaml: \$\{queue\.deep\} stands for no threshold"):
        render_rules(tmp_path, {"queue.depth": 1})
    template.write_text("groups: [${x}\n")
    with pytest.raises(TailwatchError, match=r"a\.yaml: renders to no YAML"):
        render_rules(tmp_path, {"x": 1})
    template.unlink()
    with pytest.raises(TailwatchError, match="holds no rule template"):
        render_rules(tmp_path, {})
