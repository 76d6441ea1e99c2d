"""Console scripts: what they run, and what they print if a package is missing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tidemark.cli import programs

SCRIPTS = [
    (programs.tidemark, "tidemark.cli.main", "server"),
    (programs.broker, "services.broker.__main__", "server"),
    (programs.reput, "services.reput.__main__", "server"),
    (programs.ha, "services.ha.__main__", "server"),
    (programs.names, "services.names.__main__", "server"),
    (programs.analytics, "analytics.main", "analytics"),
]


@pytest.mark.parametrize(("script", "module", "extra"), SCRIPTS)
def test_a_script_without_its_packages_names_the_extra_that_has_them(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: Callable[[], None],
    module: str,
    extra: str,
) -> None:
    def imported(name: str) -> None:
        assert name == module
        raise ModuleNotFoundError("No module named 'rich.table'", name="rich.table")

    monkeypatch.setattr(programs, "import_module", imported)
    with pytest.raises(SystemExit) as ended:
        script()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "tidemark: the package rich.table is not installed: "
        f'run pip install "tidemark-mq[{extra}]"\n'
    )


def test_a_job_that_imports_its_packages_late_names_the_extra_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")

    monkeypatch.setattr(programs, "import_module", lambda _: SimpleNamespace(main=main))
    with pytest.raises(SystemExit):
        programs.analytics()
    assert 'pyarrow is not installed: run pip install "tidemark-mq[analytics]"' in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ["tidemark.cli.gone", "services.broker", "analytics", None])
def test_a_missing_module_of_tidemark_itself_is_not_taken_for_an_extra(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    def imported(_: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(programs, "import_module", imported)
    with pytest.raises(ModuleNotFoundError):
        programs.broker()
