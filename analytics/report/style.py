"""How a report looks: light and dark as the reader's system is, from 320 pixels up. Data."""

from __future__ import annotations

from typing import Final

from analytics.statuses import TABLE

STYLE: Final = """
:root{color-scheme:light dark;
--back:#f4f5f7;--card:#ffffff;--ink:#18202c;--soft:#536071;--edge:#dde2e9;--grid:#e6eaef;
--page:#b3261e;--page-back:#fdecea;--ticket:#8a5200;--ticket-back:#fff3dc;--info:#1c5a9e;
--info-back:#e8f1fb;--none:#1c6b40;--none-back:#e5f5ec;--unknown:#5a6472;--unknown-back:#eceff3;
--age:#b3261e;--produce:#1f6fc4;--consume:#1d8a55;--replication:#7a5cc7;--dispatch:#1f7fc9;
--delivery:#12908e;--processing:#d97a1e;--forecast:#4a63d8;--hatch:#8792a2;--limit:#6b7686;
%LIGHT%}
@media (prefers-color-scheme:dark){:root{
--back:#0f141b;--card:#181f29;--ink:#e7ebf1;--soft:#a3afbe;--edge:#2a3441;--grid:#26303c;
--page:#ff9d94;--page-back:#3a1b1a;--ticket:#f6bd60;--ticket-back:#35280f;--info:#8fc1fb;
--info-back:#15283f;--none:#7fd6a3;--none-back:#12301f;--unknown:#b0bbc8;--unknown-back:#262f3b;
--age:#ff8a7e;--produce:#6db1ff;--consume:#5fd097;--replication:#a68df0;--dispatch:#58a9f0;
--delivery:#3fc1be;--processing:#f0a04f;--forecast:#92a5ff;--hatch:#6f7d8e;--limit:#93a0b0;
%DARK%}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;
-webkit-text-size-adjust:100%}
main,header,footer{max-width:1180px;margin:0 auto;padding:0 20px}
header{padding-top:28px}
h1{font-size:26px;line-height:1.25;margin:4px 0 6px;letter-spacing:-.01em;text-wrap:balance}
h2{font-size:19px;margin:40px 0 12px;letter-spacing:-.005em}
h3{font-size:17px;margin:0;overflow-wrap:anywhere}
p{margin:0 0 8px}
a{color:inherit}
.over{color:var(--soft);font-size:13px;margin:0}
.soft{color:var(--soft)}
.note{color:var(--soft);font-size:13.5px;max-width:75ch}
.card{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:18px 20px;
margin:0 0 16px;min-width:0}
.tiles{display:grid;grid-template-columns:repeat(5,minmax(0,1fr));gap:10px;margin:18px 0 16px;
padding:0;list-style:none}
.tiles li{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:10px 14px;
display:flex;flex-direction:column-reverse;
justify-content:flex-end}
.tiles b{font-size:26px;line-height:1.15;font-weight:650;font-variant-numeric:tabular-nums}
.tiles span{font-size:13px;color:var(--soft)}
.tiles .page b{color:var(--page)}.tiles .ticket b{color:var(--ticket)}
.tiles .info b{color:var(--info)}.tiles .none b{color:var(--none)}
.tiles .unknown b{color:var(--unknown)}.tiles .zero b{color:var(--soft);font-weight:400}
.badge{display:inline-block;border-radius:999px;padding:1px 11px;font-size:13px;font-weight:600;
white-space:nowrap}
.names{list-style:none;margin:0 0 16px;padding:0;display:flex;flex-wrap:wrap;gap:4px 18px}
.badge.page{color:var(--page);background:var(--page-back)}
.badge.ticket{color:var(--ticket);background:var(--ticket-back)}
.badge.info{color:var(--info);background:var(--info-back)}
.badge.none{color:var(--none);background:var(--none-back)}
.badge.unknown{color:var(--unknown);background:var(--unknown-back)}
.pair{border-left-width:5px}
.pair.page{border-left-color:var(--page)}.pair.ticket{border-left-color:var(--ticket)}
.pair.info{border-left-color:var(--info)}.pair.none{border-left-color:var(--none)}
.pair>.head{display:flex;flex-wrap:wrap;gap:4px 12px;align-items:baseline}
.pair .why{font-size:16px;margin:8px 0 14px;max-width:80ch}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(138px,1fr));gap:12px 18px;
margin:0 0 14px}
.numbers div{min-width:0}
.numbers dt{font-size:12.5px;color:var(--soft)}
.numbers dd{margin:0;font-size:16px;font-weight:600;font-variant-numeric:tabular-nums;
overflow-wrap:anywhere}
.numbers dd small{display:block;font-size:12.5px;font-weight:400;color:var(--soft);line-height:1.35}
.plots{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:18px 24px}
.two{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:18px 24px}
figure{margin:0;min-width:0}
figcaption{font-size:13.5px;font-weight:600;margin-bottom:8px}
figcaption .unit{font-weight:400;color:var(--soft)}
.axes{display:grid;grid-template-columns:54px minmax(0,1fr);grid-template-rows:132px 22px}
.wide .axes{grid-template-rows:170px 22px}
.y{position:relative;font-size:11.5px;color:var(--soft);font-variant-numeric:tabular-nums}
.y span{position:absolute;right:7px;transform:translateY(50%);line-height:1;white-space:nowrap}
.x{position:relative;grid-column:2;font-size:11.5px;color:var(--soft);height:22px;
font-variant-numeric:tabular-nums}
.x .t{position:absolute;top:5px;transform:translateX(-50%);line-height:1;white-space:nowrap}
.x .first{transform:none}.x .last{transform:translateX(-100%)}
.plots .x .minor{display:none}
.plot{position:relative;min-width:0}
.plot svg{display:block;width:100%;height:100%;overflow:hidden}
.hatched{background:repeating-linear-gradient(135deg,transparent 0 4px,var(--hatch) 4px 5px)}
.plot>.hatched{position:absolute;top:0;bottom:0;opacity:.6}
.line{fill:none;stroke-width:1.8;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.dashed{stroke-dasharray:5 4}
.grid{stroke:var(--grid);stroke-width:1;vector-effect:non-scaling-stroke}
line.limit{stroke:var(--limit);stroke-width:1.4;stroke-dasharray:6 5;
vector-effect:non-scaling-stroke}
.area{stroke:none;opacity:.85}
path.area.s-unknown{fill:url(#hatch);opacity:1}
.key.s-unknown{background:repeating-linear-gradient(135deg,transparent 0 4px,var(--hatch) 4px 5px);
border:1px solid var(--hatch)}
.hidden{position:absolute;width:0;height:0}
#hatch line{stroke:var(--hatch);stroke-width:1.4}
.band{stroke:none;opacity:.22}
.legend{list-style:none;margin:4px 0 0;padding:0 0 0 54px;display:flex;flex-wrap:wrap;gap:2px 16px;
font-size:12.5px;color:var(--soft)}
.legend b{color:var(--ink);font-weight:600;font-variant-numeric:tabular-nums}
.legend.flush{padding-left:0}
.note.below{margin:8px 0 0}
.key{display:inline-block;width:12px;height:10px;border-radius:2px;margin-right:6px;
vertical-align:-1px}
.key.faint{opacity:.3}
.key.limit{height:0;border-top:2px dashed var(--limit);border-radius:0;vertical-align:4px}
.key.hatched{border:1px solid var(--hatch)}
.line.age{stroke:var(--age)}.line.produce{stroke:var(--produce)}.line.consume{stroke:var(--consume)}
.line.forecast{stroke:var(--forecast)}
.key.age{background:var(--age)}.key.produce{background:var(--produce)}
.key.consume{background:var(--consume)}
.forecast{fill:var(--forecast)}.line.forecast{fill:none}.key.forecast{background:var(--forecast)}
.replication{fill:var(--replication)}.key.replication{background:var(--replication)}
.dispatch{fill:var(--dispatch)}.key.dispatch{background:var(--dispatch)}
.delivery{fill:var(--delivery)}.key.delivery{background:var(--delivery)}
.processing{fill:var(--processing)}.key.processing{background:var(--processing)}
%STATUS%
.bars{display:grid;grid-template-columns:auto minmax(0,1fr) auto;gap:3px 10px;font-size:12.5px;
align-items:center;font-variant-numeric:tabular-nums}
.bars .bar{height:11px;background:var(--grid);border-radius:3px;overflow:hidden;position:relative}
.bars .bar i{position:absolute;inset:0 auto 0 0;border-radius:3px}
.bars .bar .hatched{width:100%}
.bars .s-unknown{background:var(--unknown)}
.bars .end{text-align:right}
.queues{margin-top:16px}
.rows{display:grid;grid-template-columns:minmax(150px,280px) minmax(0,1fr);gap:6px 16px;
align-items:center}
.rows .name{font-size:13.5px;overflow-wrap:anywhere;line-height:1.3}
.rows .name small{color:var(--soft);display:block;font-size:12px}
.rows .plot{height:22px;background:var(--unknown-back);border-radius:4px;overflow:hidden}
.rows .x{grid-column:2}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;font-weight:600;font-size:12.5px;color:var(--soft);padding:0 20px 6px 0;
vertical-align:bottom}
td{padding:7px 20px 7px 0;border-top:1px solid var(--edge);vertical-align:top;
overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
th:last-child,td:last-child{padding-right:0}
td.n,th.n{text-align:right}
td small{color:var(--soft);display:block;line-height:1.35}
details{margin-top:12px}
summary{cursor:pointer;color:var(--soft);font-size:13.5px}
details table,details .bars{margin-top:12px}
details ul{margin:8px 0 0;padding-left:20px;columns:2;column-gap:30px;font-size:13.5px}
.changes{list-style:none;margin:0;padding:0}
.changes li{padding:6px 0;border-top:1px solid var(--edge);overflow-wrap:anywhere}
.changes li:first-child{border-top:0}
footer{padding-top:28px;padding-bottom:48px;color:var(--soft);font-size:13px}
footer dl{display:grid;grid-template-columns:auto minmax(0,1fr);gap:4px 16px;max-width:85ch}
footer dt{font-weight:600;color:var(--ink)}
footer dd{margin:0}
@media (max-width:900px){.plots{grid-template-columns:minmax(0,1fr)}.two{grid-template-columns:
minmax(0,1fr)}.plots .x .minor{display:inline}}
@media (max-width:620px){body{font-size:14.5px}main,header,footer{padding-left:12px;
padding-right:12px}h1{font-size:21px}.card{padding:14px}.tiles{grid-template-columns:repeat(6,
minmax(0,1fr));gap:8px}.tiles li{grid-column:span 2;padding:8px 10px}.tiles li:nth-child(n+4)
{grid-column:span 3}.tiles b{font-size:21px}.numbers{grid-template-columns:repeat(2,minmax(0,1fr));
gap:10px 14px}.x .minor,.plots .x .minor{display:none}.rows{grid-template-columns:minmax(0,1fr);
gap:2px}.rows .name{margin-top:8px}.rows .x{grid-column:1}.axes{grid-template-columns:46px
minmax(0,1fr)}.legend{padding-left:46px}details ul{columns:1}
table,tbody,tr,td{display:block}thead{display:none}tr{border-top:1px solid var(--edge);
padding:8px 0}tr:first-child{border-top:0;padding-top:0}td{border:0;padding:1px 0;display:grid;
grid-template-columns:38% minmax(0,1fr);gap:10px}
td::before{content:attr(data-of);color:var(--soft);font-size:12.5px}td.n{text-align:left}
footer dl{grid-template-columns:minmax(0,1fr)}footer dd{margin-bottom:8px}}
@media print{body{background:#fff}.card{break-inside:avoid}}
"""
"""Text and its ground differ by 4.5 to 1 or more, in light and in dark; a test measures it."""


def style() -> str:
    """The sheet with a colour for each status that is not hatched."""
    drawn = {status.lower(): row for status, row in TABLE.items() if row.light}
    rules = "".join(
        f"rect.s-{name},path.s-{name}{{fill:var(--s-{name})}}"
        f".bars .s-{name},.key.s-{name}{{background:var(--s-{name})}}"
        for name in drawn
    )
    light = ";".join(f"--s-{name}:{row.light}" for name, row in drawn.items())
    dark = ";".join(f"--s-{name}:{row.dark}" for name, row in drawn.items())
    sheet = STYLE.replace("%LIGHT%", light).replace("%DARK%", dark)
    return sheet.replace("%STATUS%", rules).strip()
