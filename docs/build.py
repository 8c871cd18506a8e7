"""Write the tables of the reference of service metrics from the code that they are about.

`python -m docs.build` fills every block between two such lines; the words around them are written
by hand:

    <!-- metrics: inference_queue_* inference_rejected_total -->
    <!-- options: StageTimingMiddleware -->
    <!-- end -->
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import textwrap
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import tailwatch_tracing
from tailwatch_tracing.families import METRICS, Metric

REFERENCE = Path(__file__).parent / "reference" / "service-metrics.md"
SOURCE = Path(tailwatch_tracing.__path__[0])

_BLOCK = re.compile(
    r"^(<!-- (metrics|options): ([^>]*?) -->\n).*?^(<!-- end -->)$", re.DOTALL | re.MULTILINE
)
_RETURNED = frozenset(("BatchPlace", "LoadedModel", "QueuePlace"))  # by what others call
_ARGUMENT = re.compile(r"(\w+(?:, \w+)*): (.*)")


def filled(text: str) -> str:
    """Return the page with every block's table written anew.

    Raises:
        ValueError: a metric or a public name in no block or in two, or one that there is not.
    """
    placed: list[str] = []

    def fill(block: re.Match[str]) -> str:
        if block[2] == "metrics":
            metrics = [metric for pattern in block[3].split() for metric in named(pattern)]
            placed.extend(metric.name for metric in metrics)
            return block[1] + metrics_table(metrics) + block[4]
        placed.append(block[3])
        return block[1] + options_table(block[3]) + block[4]

    page = _BLOCK.sub(fill, text)
    for name in (*METRICS, *_names_with_options()):
        if placed.count(name) != 1:
            raise ValueError(f"{name} is in {placed.count(name)} tables, expected 1")
    return page


def named(pattern: str) -> list[Metric]:
    """Return the metrics whose names a shell pattern matches, in the order of the page.

    Raises:
        ValueError: there is none.
    """
    metrics = [metric for name, metric in METRICS.items() if fnmatchcase(name, pattern)]
    if not metrics:
        raise ValueError(f"metrics: {pattern}: expected the name of a metric")
    return metrics


def metrics_table(metrics: Iterable[Metric]) -> str:
    """Return a Markdown table of metrics; the values of a closed label end their meaning."""
    rows = []
    for metric in metrics:
        meaning = _marked(metric.help)
        if metric.row:
            meaning += f" `{metric.labels[-1]}`: " + ", ".join(f"`{v}`" for v in metric.row) + "."
        rows.append((f"`{metric.name}`", metric.kind, ", ".join(metric.labels), meaning))
    return _table(("metric", "type", "labels", "meaning"), rows)


def options_table(name: str, source: Path = SOURCE) -> str:
    """Return a Markdown table of what a public name of the library takes, but for an `app`.

    The code is read and not imported: some of it needs PyTorch.

    Raises:
        ValueError: there is no such name, or its docstring and its signature differ.
    """
    options, docstring = _signature(name, source)
    meanings = arguments(docstring)
    if list(meanings) != list(options):
        raise ValueError(f"{name}: its docstring has {list(meanings)}, it takes {list(options)}")
    rows = [
        (f"`{option}`", _default(default, source), meanings[option])
        for option, default in options.items()
        if option != "app"
    ]
    return _table(("option", "default", "meaning"), rows)


def arguments(docstring: str) -> dict[str, str]:
    """Return what the section Args of a docstring says of each argument."""
    _, _, after = docstring.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", after)[0]
    meanings: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(section).strip()):
        found = _ARGUMENT.fullmatch(" ".join(entry.split()))
        if found:
            meanings |= dict.fromkeys(found[1].split(", "), found[2])
    return meanings


def _names_with_options() -> list[str]:
    return [
        name
        for name in (*tailwatch_tracing.__all__, "TrainingMonitor")
        if name not in _RETURNED and _signature(name, SOURCE)[0]
    ]


def _signature(name: str, source: Path) -> tuple[dict[str, ast.expr | None], str]:
    """Return option -> default, None for one that is required, and the docstring."""
    for node in _statements(source):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            docstring = ast.get_docstring(node) or ""
            if isinstance(node, ast.ClassDef):
                (node,) = (
                    each
                    for each in node.body
                    if isinstance(each, ast.FunctionDef) and each.name == "__init__"
                )
            taken = node.args
            required = len(taken.args) - len(taken.defaults)
            defaults = [*[None] * required, *taken.defaults, *taken.kw_defaults]
            names = [each.arg for each in (*taken.args, *taken.kwonlyargs)]
            options = dict(zip(names, defaults, strict=True))
            options.pop("self", None)
            return options, docstring
    raise ValueError(f"options: {name}: expected a name that tailwatch_tracing defines")


def _default(default: ast.expr | None, source: Path) -> str:
    if default is None:
        return "required"
    if isinstance(default, ast.Name):
        (default,) = (
            node.value
            for node in _statements(source)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == default.id
        )
    value = ast.literal_eval(default)
    return ", ".join(f"`{each}`" for each in (value if isinstance(value, tuple) else (value,)))


@functools.cache
def _statements(source: Path) -> list[ast.stmt]:
    files = sorted(source.rglob("*.py"))
    return [node for file in files for node in ast.parse(file.read_text(encoding="utf-8")).body]


def _marked(text: str) -> str:
    """Return prose for Markdown: what has an underscore is code."""
    return re.sub(r"\w*_\w+", lambda word: f"`{word[0]}`", text)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [_line(head), "|---" * len(head) + "|\n", *(_line(row) for row in rows)]
    return "".join(lines)


def _line(cells: Iterable[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n"


def main() -> int:
    """Write the page; 1 and a line when it cannot be."""
    try:
        REFERENCE.write_text(filled(REFERENCE.read_text(encoding="utf-8")), encoding="utf-8")
    except ValueError as error:
        print(f"{REFERENCE.name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
