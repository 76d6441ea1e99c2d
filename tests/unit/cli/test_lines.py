from __future__ import annotations

import asyncio
import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.cli import lines
from tidemark.cli.lines import Lines, LineSplitter, read_lines
from tidemark.errors import BadRequest

TEXTS = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"a", b"bc", b"\x00\xff", b"", b"long " * 9]), max_size=30
).map(b"".join)


def split(chunks: list[bytes]) -> list[Lines]:
    splitter = LineSplitter()
    return [*(splitter.feed(chunk) for chunk in chunks), splitter.finish()]


@given(TEXTS, st.integers(1, 7))
def test_lines_do_not_depend_on_how_the_input_is_cut(text: bytes, size: int) -> None:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    found = split(pieces)
    expected = text.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert [line for lines in found for line in lines.lines] == expected
    assert sum(lines.size for lines in found) == len(text)
    assert found[-1].open_ended == (bool(text) and not text.endswith(b"\n"))


@given(TEXTS)
def test_lines_joined_again_are_the_input(text: bytes) -> None:
    found = split([text])
    joined = b"".join(line + b"\n" for lines in found for line in lines.lines)
    assert (joined[:-1] if found[-1].open_ended else joined) == text


def test_input_that_never_ends_a_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_SIZE_MAX", 100)
    splitter = LineSplitter()
    splitter.feed(b"x" * 100)
    with pytest.raises(BadRequest, match="longer than 100 bytes"):
        splitter.feed(b"x")


async def test_a_file_is_read_to_its_end() -> None:
    text = b"".join(b"line %d\n" % number for number in range(300_000))
    found = [line async for read in read_lines(io.BytesIO(text)) for line in read.lines]
    assert b"\n".join(found) + b"\n" == text


async def test_lines_of_a_pipe_come_before_the_pipe_ends() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source:
        found = read_lines(source)
        os.write(writing, b"first\nhal")
        assert (await anext(found)).lines == [b"first"]
        os.write(writing, b"f\n")
        assert (await anext(found)).lines == [b"half"]
        os.close(writing)
        with pytest.raises(StopAsyncIteration):
            await anext(found)


async def test_a_failed_read_is_raised_where_lines_are_awaited() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "input/output error")

    with pytest.raises(OSError, match="input/output"):
        async with asyncio.timeout(5):
            await anext(read_lines(Broken()))
