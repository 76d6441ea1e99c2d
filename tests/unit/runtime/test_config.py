from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from shared.runtime.config import Ruled, load, setting
from tidemark.errors import BadConfig


@dataclass(frozen=True, slots=True)
class Sizes:
    file_size: int = setting(64, unit="bytes", minimum=16)
    visible_after: Literal["flushed", "written"] = "flushed"


@dataclass(frozen=True)
class Config(Ruled):
    store_dir: Path
    port: int = setting(8080, minimum=0, maximum=65535)
    flush_interval_ms: float = setting(5.0, unit="ms", minimum=0, maximum=1000)
    auto_create: bool = False
    name: str = "broker"
    advertised: str | None = None
    topics: tuple[str, ...] = ()
    sizes: Sizes = field(default_factory=Sizes)

    def broken_rules(self) -> Iterator[str]:
        if self.name == "forbidden":
            yield "name and store_dir do not fit"
        if self.port == 9 and not self.auto_create:
            yield "port 9 needs auto_create"


def mistakes(**sources: object) -> tuple[str, ...]:
    with pytest.raises(BadConfig) as caught:
        load(Config, **sources)  # type: ignore[arg-type]
    found: tuple[str, ...] = caught.value.mistakes
    return found


def test_defaults_hold_where_nothing_is_set() -> None:
    config = load(Config, overrides={"store_dir": Path("/s")})
    assert config == Config(Path("/s"))


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('store_dir = "/a"\nport = 1\nname = "file"\n[sizes]\nfile_size = 20\n')
    config = load(
        Config,
        file,
        "T_",
        {"port": 3, "name": None},
        environment={"T_PORT": "2", "T_NAME": "env", "T_SIZES_VISIBLE_AFTER": "written"},
    )
    assert (config.port, config.name, config.sizes) == (3, "env", Sizes(20, "written"))


def test_texts_of_the_environment_are_read_by_the_type_of_their_field() -> None:
    config = load(
        Config,
        None,
        "T_",
        environment={
            "T_STORE_DIR": "/s",
            "T_AUTO_CREATE": "true",
            "T_FLUSH_INTERVAL_MS": "0.5",
            "T_TOPICS": "a, b",
            "T_ADVERTISED": "",
            "OTHER": "x",
        },
    )
    assert config.store_dir == Path("/s")
    assert (config.auto_create, config.flush_interval_ms) == (True, 0.5)
    assert (config.topics, config.advertised) == (("a", "b"), None)


def test_all_mistakes_are_reported_together_by_name_with_unit_and_rule(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('port = true\nflush_intervall_ms = 3\n[sizes]\nfile_size = 3\ncolour = "red"\n')
    found = mistakes(
        path=file,
        env_prefix="T_",
        overrides={"sizes.visible_after": "soon"},
        environment={"T_FLUSH_INTERVAL_MS": "1e9", "T_TYPO": "1"},
    )
    assert set(found) == {
        "T_TYPO in the environment is not a setting",
        "flush_intervall_ms is not a setting",
        "store_dir is missing: must be a path".replace("must be ", ""),
        "port = True: must be a whole number from 0 to 65535",
        "flush_interval_ms = '1e9': must be a number from 0 to 1000 ms",
        "sizes.colour is not a setting",
        "sizes.file_size = 3: must be a whole number at least 16 bytes",
        "sizes.visible_after = 'soon': must be one of 'flushed', 'written'",
    }


def test_a_rule_between_fields_is_a_mistake_like_any_other() -> None:
    assert mistakes(overrides={"store_dir": Path("/s"), "name": "forbidden"}) == (
        "name and store_dir do not fit",
    )


def test_a_mistake_in_one_field_hides_no_rule_between_others_and_no_second_rule(
    tmp_path: Path,
) -> None:
    # `port = "x"` alone was reported, and the next start reported the next mistake.
    given = {"store_dir": Path("/s"), "name": "forbidden", "sizes.file_size": 1}
    assert mistakes(overrides={**given, "port": 9}) == (
        "sizes.file_size = 1: must be a whole number at least 16 bytes",
        "name and store_dir do not fit",
        "port 9 needs auto_create",
    )
    # A rule about a field that could not be read would report a mistake that is none.
    assert mistakes(overrides={**given, "port": 9, "auto_create": "x"}) == (
        "auto_create = 'x': must be true or false",
        "sizes.file_size = 1: must be a whole number at least 16 bytes",
        "name and store_dir do not fit",
    )


def test_each_mistake_is_on_a_line_of_its_own() -> None:
    with pytest.raises(BadConfig) as caught:
        load(Config, overrides={"store_dir": Path("/s"), "name": "forbidden", "port": "x"})
    assert str(caught.value).splitlines()[:3] == [
        "[bad-config] 2 mistakes in the configuration:",
        "  - port = 'x': must be a whole number from 0 to 65535",
        "  - name and store_dir do not fit",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [("port = ", "is not TOML"), ("sizes = 3", "sizes must be a table")],
)
def test_a_file_that_is_not_right_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    assert any(says in one for one in mistakes(path=file, overrides={"store_dir": Path("/s")}))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    found = mistakes(path=tmp_path / "none.toml", overrides={"store_dir": Path("/s")})
    assert "none.toml cannot be read" in found[0]


def test_not_a_number_is_no_number() -> None:
    found = mistakes(
        env_prefix="T_", environment={"T_STORE_DIR": "/s", "T_FLUSH_INTERVAL_MS": "nan"}
    )
    assert found == ("flush_interval_ms = 'nan': must be a number from 0 to 1000 ms",)


def test_addresses_that_kubernetes_puts_into_the_environment_are_no_settings() -> None:
    # A service called like our prefix makes T_PORT=tcp://…; it must neither break the start nor
    # become the port.
    config = load(
        Config,
        None,
        "T_",
        environment={
            "T_STORE_DIR": "/s",
            "T_PORT": "tcp://10.0.0.1:8080",
            "T_PORT_8080_TCP_ADDR": "10.0.0.1",
            "T_SERVICE_HOST": "10.0.0.1",
            "T_SERVICE_PORT_HTTP": "8080",
        },
    )
    assert config.port == 8080
