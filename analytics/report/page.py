"""Facts to one HTML file by the templates in ``templates/``, without scripts or external files.

``templates/report.html`` has the sections in order, with their texts. ``plots`` computes the
drawings, ``words`` and ``sentences`` the texts. Jinja2 escapes all values. Step before: ``gather``.
Step after: a browser.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analytics.report import plots, sentences, words
from analytics.report.axes import times
from analytics.report.facts import Facts
from analytics.statuses import BY_SEVERITY, TABLE, URGENT, Level

TILES: Final = (
    (Level.PAGE, "look now"),
    (Level.TICKET, "look today"),
    (Level.INFO, "only to know"),
    (Level.UNKNOWN, "not known"),
    (Level.NONE, "in time"),
)
_TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_TEMPLATES.globals |= {"plots": plots, "sentences": sentences, "words": words, "times_of": times}
_TEMPLATES.filters |= {
    "duration": words.duration,
    "moment": words.moment,
    "number": words.number,
    "plural": words.plural,
    "rate": words.rate,
    "share": words.share,
    "status_words": words.status_words,
    "subject_words": words.subject_words,
}


def page(facts: Facts) -> str:
    """Return the whole file as text; equal facts give equal text."""
    drawn = (*facts.attention, *facts.others)
    seen = {status for one in drawn for status in one.course.status}
    return _TEMPLATES.get_template("report.html").render(
        facts=facts,
        tiles=TILES,
        colours=[(status.lower(), row) for status, row in TABLE.items() if row.light],
        # There are few cards; the list of all pairs has each of them, in the same order.
        named=[pair for pair in facts.pairs if pair.level in URGENT or pair.was_late],
        drawn=drawn,
        seen=[each for each in BY_SEVERITY if each in seen and TABLE[each].is_known],
        forecasts=[each for each in facts.forecasts if len(each.at) > 1],
    )
