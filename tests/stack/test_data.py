from pathlib import Path

import pytest

from tailwatch_stack import data
from tailwatch_stack.errors import TailwatchError


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package folder that is in no checkout."""
    package = tmp_path / "lib" / "tailwatch_stack"
    package.mkdir(parents=True)
    monkeypatch.setattr(data, "_HERE", package)
    monkeypatch.setattr(data, "_CHECKOUT", tmp_path)
    return package


@pytest.mark.parametrize("name", ["dashboards", "alert_rules", "runbooks"])
def test_a_checkout_gives_the_originals(name: str) -> None:
    assert data.data_dir(name) == Path(__file__).parents[2] / name


def test_a_wheel_gives_its_copy(installed: Path) -> None:
    (installed / "_data" / "dashboards").mkdir(parents=True)
    assert data.data_dir("dashboards") == installed / "_data" / "dashboards"
    assert data.checkout_dir() is None


def test_missing_data_names_both_places(installed: Path, tmp_path: Path) -> None:
    with pytest.raises(TailwatchError) as error:
        data.data_dir("runbooks")
    assert str(error.value) == f"no runbooks: tried {installed}/_data/runbooks, {tmp_path}/runbooks"
