"""A server's answer to a range selector: series and their raw samples. Pure.

Arrow parses all numbers of an answer at once, without a Python object per value. An answer in
another layout (such as a proxy's, with blanks) is parsed as general JSON. Timestamps are in
milliseconds, as in the server. Step before: ``http`` got the bytes. Step after: ``reader`` keeps
the samples of its slice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv

from analytics.schema import Gap
from analytics.sources.gaps import Unanswered
from analytics.sources.labelled import Floats, Ints, Series, series

_BEGIN: Final = b'"result":['
_VALUES: Final = b'"values":[['
_ENDED: Final = b'"]]}'
_NEXT: Final = b'"],['
KNOWN_MAX: Final = 200_000
_known: dict[bytes, Series] = {}
"""Series by their text, because adjacent slices have nearly the same series."""


class Samples(NamedTuple):
    """Raw samples of one answer."""

    series: list[Series]
    at: Ints
    """Index of the series of each sample."""
    ts_us: Ints
    values: Floats


def parse(body: bytes) -> Samples:
    """Parse a matrix. Raises Unanswered (torn) if it is incomplete or has a warning."""
    try:
        found = _quickly(body)
    except (ValueError, pa.ArrowInvalid):
        found = None
    return found if found is not None else _slowly(body)


def error_of(body: bytes) -> str:
    """Error message in an answer; the whole body if it is not JSON."""
    try:
        message = json.loads(body)
        return str(message["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace").strip()


def instant_us(body: bytes) -> int | None:
    """Return the time in the answer to an instant query; None without one."""
    try:
        result = json.loads(body)["data"]["result"]
        # Prometheus returns a number; similar servers return one series without labels.
        at = result[0]["value"][0] if isinstance(result[0], dict) else result[0]
        return round(float(at) * 1000) * 1000
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _check(answer: Any) -> None:
    if not isinstance(answer, dict) or answer.get("status") != "success":
        message = answer.get("error") if isinstance(answer, dict) else None
        raise Unanswered(Gap.TORN, f"the query failed: {message or str(answer)[:100]}")
    warnings = answer.get("warnings")
    if warnings:
        # A partial answer does not say what it lacks; a commit could appear never to have been
        # made.
        raise Unanswered(Gap.TORN, f"the answer is partial: {'; '.join(map(str, warnings))}")


def _quickly(body: bytes) -> Samples | None:
    """Parse an answer of the usual layout; None or ValueError if it has another."""
    begin = body.find(_BEGIN)
    end = body.rfind(_ENDED + b"]}")
    if begin < 0 or end < 0 or b'"histograms":' in body:
        return None
    begin += len(_BEGIN)
    end += len(_ENDED)
    _check(json.loads(body[:begin] + body[end:]))
    pieces = body[begin:end].split(_VALUES)
    heads = [pieces[0]]
    numbers: list[bytes] = []
    for piece in pieces[1:]:
        at = piece.find(_ENDED)
        if at < 0:
            return None
        numbers.append(piece[:at])
        heads.append(piece[at + len(_ENDED) :])
    if heads.pop() or not numbers:
        return None
    counts = np.array([number.count(_NEXT) for number in numbers], np.int64) + 1
    text = _NEXT.join(numbers).replace(_NEXT, b"\n").replace(b',"', b",")
    if b"Inf" in text:
        text = text.replace(b"+Inf", b"inf").replace(b"-Inf", b"-inf")
    table = pc_csv.read_csv(
        pa.BufferReader(text),
        read_options=pc_csv.ReadOptions(use_threads=False, column_names=["t", "v"]),
        parse_options=pc_csv.ParseOptions(quote_char=False),
        convert_options=pc_csv.ConvertOptions(
            column_types={"t": pa.float64(), "v": pa.float64()}, null_values=[]
        ),
    )
    if table.num_rows != int(counts.sum()):
        return None
    return Samples(
        [_series(head.lstrip(b",")) for head in heads],
        np.repeat(np.arange(len(counts), dtype=np.int64), counts),
        _ts_us(table.column("t").to_numpy()),
        table.column("v").to_numpy(),
    )


def _series(head: bytes) -> Series:
    """Series of ``{"metric":{…},``; cached for the next slice."""
    found = _known.get(head)
    if found is None:
        if not (head.startswith(b'{"metric":') and head.endswith(b",")):
            raise ValueError("not the usual layout")
        found = series(json.loads(head[len(b'{"metric":') : -1]))
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        _known[head] = found
    return found


def _slowly(body: bytes) -> Samples:
    try:
        answer = json.loads(body)
        _check(answer)
        data = answer["data"]
        if data["resultType"] != "matrix":
            raise Unanswered(Gap.TORN, f"the answer is a {data['resultType']}, not a matrix")
        result = data["result"]
        if any("histograms" in each for each in result):
            raise Unanswered(Gap.DAMAGED, "native histograms are not read")
        values = [each["values"] for each in result]
        return Samples(
            [series(each["metric"]) for each in result],
            np.repeat(np.arange(len(values), dtype=np.int64), [len(each) for each in values]),
            _ts_us(np.array([at for each in values for at, _ in each], np.float64)),
            np.array([float(value) for each in values for _, value in each], np.float64),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Unanswered(Gap.TORN, f"the answer is not a matrix: {error}") from error


def _ts_us(seconds: Floats | Sequence[float]) -> Ints:
    """Microseconds; the server counts milliseconds and writes seconds with decimals."""
    found: Ints = np.rint(np.asarray(seconds) * 1000).astype(np.int64) * 1000
    return found
