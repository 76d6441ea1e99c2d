"""One sentence for each pair and tick that is not OK: status, number of queues, begin. Pure.

A broker clock that differs from the scraper's is mentioned even if the pair is OK.

Step before: the roll-up. Step after: the report and the alerts show the sentence.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.columns import Floats
from analytics.kernel.status import CODE, Codes
from analytics.schema import Gap
from analytics.statuses import Reason, Status


def causes(
    status: Codes,
    since: Floats,
    affected: Floats,
    queues: Floats,
    broker: pa.Array,
    skew_kind: pa.Array,
    top_queue: pa.Array,
    reason: pa.Array,
) -> pa.Array:
    """Return a sentence for each row, null where the pair is OK.

    since: microseconds since 1970. affected: queues of that status, out of queues. skew_kind and
    top_queue: null where lag is even. reason: why the queues are unknown, null if they are known.
    """
    not_ok = np.flatnonzero(status != CODE[Status.OK])
    if not not_ok.size:
        return pa.nulls(status.size, pa.string())
    at = pa.array(not_ok)
    codes, whole = status[not_ok], queues[not_ok].astype(np.int64)
    when = pc.strftime(columns.times(since[not_ok].astype(np.int64)), "%H:%M UTC")
    names = pa.array([each.value for each in Status]).take(pa.array(codes.astype(np.int64)))
    number = pa.array(affected[not_ok].astype(np.int64)).cast(pa.string())
    of = pa.array(whole).cast(pa.string())
    plural = pa.array(np.where(whole == 1, " queue", " queues").tolist(), pa.string())
    kind = pc.replace_substring(skew_kind.take(at), "_", " ")
    queue = top_queue.take(at).cast(pa.string())
    uneven = pc.binary_join_element_wise(" (", kind, ", queue ", queue, ")", "")
    known = pc.binary_join_element_wise(
        names, " on ", number, " of ", of, plural, " since ", when, pc.fill_null(uneven, ""), ""
    )
    why = reason.take(at)
    silent = pc.fill_null(pc.starts_with(why, Reason.NO_SNAPSHOT), False)
    blind = pc.binary_join_element_wise(
        "broker ", broker.take(at), " has sent no snapshot since ", when, ""
    )
    unscraped = pc.fill_null(pc.equal(why, f"{Reason.NO_SNAPSHOT}: {Gap.UNSCRAPED}"), False)
    not_asked = pc.binary_join_element_wise(
        "broker ",
        broker.take(at),
        " was not scraped since ",
        when,
        ": the collection or its Prometheus was down",
        "",
    )
    blind = pc.if_else(unscraped, not_asked, blind)
    unknown_since = pc.binary_join_element_wise(
        "UNKNOWN on all queues since ", when, ": ", pc.fill_null(why, "not known"), ""
    )
    repeats = pc.fill_null(pc.equal(why, Reason.NOTHING_NEW), False)
    nothing_new = pc.binary_join_element_wise(
        "broker ", broker.take(at), " answers and has reported nothing new of it since ", when, ""
    )
    blind = pc.if_else(repeats, nothing_new, blind)
    silent = pc.or_(silent, repeats)
    unknown = pa.array(codes == CODE[Status.UNKNOWN])
    sentence = pc.if_else(unknown, pc.if_else(silent, blind, unknown_since), known)
    places = np.full(status.size, -1, np.int64)
    places[not_ok] = np.arange(not_ok.size)
    return sentence.take(pa.array(places, mask=places < 0))


def with_clocks(sentence: pa.Array, broker: pa.Array, ahead: Floats, bound_s: float) -> pa.Array:
    """Add the difference to the sentences of brokers whose clock is off by the bound or more.
    ahead: difference to the scraper's clock [s]; NaN: not known."""
    off = np.abs(ahead) >= bound_s
    if not off.any():
        return sentence
    seconds = pa.array(np.rint(np.abs(np.where(off, ahead, 0.0))).astype(np.int64))
    side = pa.array(np.where(ahead > 0, " s ahead", " s behind").tolist(), pa.string())
    named = pc.binary_join_element_wise(
        "the clock of broker ", broker, " is ", seconds.cast(pa.string()), side, ""
    )
    both = pc.binary_join_element_wise(sentence, named, "; ")
    return pc.if_else(pa.array(off), pc.coalesce(both, named), sentence)
