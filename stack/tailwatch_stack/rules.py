"""`tailwatch rules`: render the alert rules with a person's own thresholds and links."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from tailwatch_stack.data import data_dir
from tailwatch_stack.errors import UsageError
from tailwatch_stack.rules_render import render_rules, write_files
from tailwatch_stack.rules_runbooks import load_remedies, renew_page
from tailwatch_stack.rules_thresholds import load_thresholds

DEFAULT_BASE_URL = "http://127.0.0.1:12162"  # the viewer

# Quotes, spaces or braces would end up inside YAML and Prometheus' templates.
_BASE_URL = re.compile(r"https?://[A-Za-z0-9._~:\[\]-]+(/[A-Za-z0-9._~/%-]*)?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `tailwatch rules build` and `tailwatch rules runbooks`."""
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    build = actions.add_parser(
        "build",
        help="render the rule files",
        description="Render the recording rules and alerts from their templates and thresholds.",
    )
    build.add_argument(
        "--thresholds",
        type=Path,
        metavar="FILE",
        help="YAML with your own thresholds, only what differs from the shipped ones",
    )
    build.add_argument(
        "--base-url",
        default=DEFAULT_BASE_URL,
        metavar="URL",
        help="where dashboards and runbooks are served (default: %(default)s)",
    )
    build.add_argument(
        "--output",
        type=Path,
        default=Path("tailwatch-rules"),
        metavar="DIR",
        help="directory to write recording/ and alerts/ to (default: %(default)s)",
    )
    build.set_defaults(act=_build)
    runbooks = actions.add_parser(
        "runbooks",
        help="renew the runbooks' lists of remedies",
        description="Make the Mitigation lists of runbook pages anew from remedies.yaml.",
    )
    runbooks.add_argument(
        "--pages",
        type=Path,
        required=True,
        metavar="DIR",
        help="directory with the pages, which are changed in place",
    )
    runbooks.set_defaults(act=_renew_runbooks)


def run(args: argparse.Namespace) -> int:
    """Do what the command line asks and return 0.

    Raises:
        UsageError: --base-url is no http URL, the thresholds are malformed, or there are no pages.
        TailwatchError: the files cannot be written.
    """
    act: Callable[[argparse.Namespace], str] = args.act
    print(act(args))
    return 0


def _build(args: argparse.Namespace) -> str:
    files = render(args.thresholds, args.base_url)
    write_files(args.output, files)
    return f"wrote {len(files)} rule files to {args.output}"


def _renew_runbooks(args: argparse.Namespace) -> str:
    pages = {path.name: path.read_text(encoding="utf-8") for path in args.pages.glob("*.md")}
    if not pages:
        raise UsageError(f"--pages is {args.pages}, expected a directory with *.md pages")
    remedies = load_remedies(data_dir("alert_rules") / "remedies.yaml")
    renewed = {name: renew_page(page, remedies) for name, page in pages.items()}
    changed = {name: page for name, page in renewed.items() if page != pages[name]}
    write_files(args.pages, changed)
    return f"renewed {len(changed)} of {len(pages)} pages in {args.pages}"


def render(thresholds: Path | None = None, base_url: str = DEFAULT_BASE_URL) -> dict[str, str]:
    """Return relative file name -> text of all rule files.

    Args:
        thresholds: a person's own thresholds over the shipped ones.
        base_url: what /d/<uid> and /runbooks/<Alert> are appended to.

    Raises:
        UsageError: `base_url` is no http URL, or the thresholds are malformed.
    """
    if _BASE_URL.fullmatch(base_url) is None:
        raise UsageError(
            f"--base-url is {base_url!r}, expected http://host[:port][/path] without a query"
        )
    rules = data_dir("alert_rules")
    values: dict[str, object] = {
        name: threshold.value
        for name, threshold in load_thresholds(rules / "thresholds.yaml", thresholds).items()
    }
    return render_rules(rules / "templates", {**values, "base_url": base_url.rstrip("/")})
