"""Converts panels to Grafana's panel models, by kind. Pure.

The SDK builds each kind. Properties that all kinds share are set on the built model, because the
SDK's builders have no common base. Step before: a board's values. Step after: ``frame`` assigns
ids and places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import heatmap as heatmap_builders
from grafana_foundation_sdk.builders import prometheus as prometheus_builders
from grafana_foundation_sdk.builders import stat as stat_builders
from grafana_foundation_sdk.builders import statetimeline as timeline_builders
from grafana_foundation_sdk.builders import table as table_builders
from grafana_foundation_sdk.builders import timeseries as timeseries_builders
from grafana_foundation_sdk.models import common, dashboard, heatmap, prometheus
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

from deploy.grafana import texts
from deploy.grafana.panels import (
    ENDLESS,
    GREEN,
    GREY,
    Column,
    Heat,
    Lines,
    Link,
    Panel,
    Stat,
    Step,
    Table,
    Timeline,
    Word,
)
from deploy.grafana.queries import Query

DATASOURCE: Final = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
SCRAPE_PERIOD: Final = "15s"
"""Smallest step of a graph, equal to the scrape configuration's interval."""
PER_CELL: Final = "cps"
"""Unit of a heat map's cell: observations per second."""
LETTERS: Final = "ABCDEFGHIJKL"
DASHED: Final[Mapping[str, object]] = {
    "custom.stacking": {"mode": "none", "group": "A"},
    "custom.fillOpacity": 0,
    "custom.lineWidth": 2,
    "custom.lineStyle": {"fill": "dash", "dash": [10, 6]},
}


def draw(panel: Panel) -> dashboard.Panel:
    """Return the panel's model, without id and place. Raises TypeError for an unknown kind."""
    match panel:
        case Stat():
            model = _stat(panel)
        case Lines():
            model = _lines(panel)
        case Heat():
            model = _heat(panel)
        case Timeline():
            model = _timeline(panel)
        case Table():
            model = _table(panel)
        case _:
            raise TypeError(f"{type(panel).__name__} has no drawing")
    model.title, model.description = texts.title(panel), texts.description(panel)
    model.datasource, model.interval = DATASOURCE, SCRAPE_PERIOD
    nothing = texts.nothing(panel)
    if nothing and model.field_config is not None:
        model.field_config.defaults.no_value = nothing
    model.targets = [
        _target(panel, letter, query) for letter, query in zip(LETTERS, panel.queries, strict=False)
    ]
    if panel.links:
        model.links = [_link(link).build() for link in panel.links]
    return model


def _target(panel: Panel, letter: str, query: Query) -> prometheus.Dataquery:
    builder = (
        prometheus_builders.Dataquery()
        .ref_id(letter)
        .expr(query.expr)
        .legend_format(query.legend)
        .datasource(DATASOURCE)
        .editor_mode(QueryEditorMode.CODE)
    )
    match panel:
        case Table():
            return builder.instant().format(PromQueryFormat.TABLE).build()
        case Heat():
            return builder.range().format(PromQueryFormat.HEATMAP).build()
        case Stat(spark=False):
            return builder.instant().format(PromQueryFormat.TIME_SERIES).build()
        case _:
            return builder.range().format(PromQueryFormat.TIME_SERIES).build()


def _stat(panel: Stat) -> dashboard.Panel:
    return (
        stat_builders.Panel()
        .unit(texts.unit(panel))
        .no_value(panel.unknown)
        .mappings(_mappings(panel.words, panel.unknown))
        .thresholds(_thresholds(panel.steps, panel.calm))
        .color_scheme(_colours(dashboard.FieldColorModeId.THRESHOLDS))
        .color_mode(common.BigValueColorMode.BACKGROUND)
        .graph_mode(common.BigValueGraphMode.AREA if panel.spark else common.BigValueGraphMode.NONE)
        .text_mode(common.BigValueTextMode.VALUE)
        .justify_mode(common.BigValueJustifyMode.CENTER)
        .orientation(common.VizOrientation.AUTO)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["last"]).values(False))
        .build()
    )


def _lines(panel: Lines) -> dashboard.Panel:
    builder = (
        timeseries_builders.Panel()
        .unit(texts.unit(panel))
        .span_nulls(False)
        .show_points(common.VisibilityMode.AUTO)
        .line_width(1)
        .fill_opacity(60 if panel.stacked or panel.bars else 8)
        .draw_style(common.GraphDrawStyle.BARS if panel.bars else common.GraphDrawStyle.LINE)
        .thresholds(_thresholds(panel.steps, GREEN))
        .color_scheme(_colours(dashboard.FieldColorModeId.PALETTE_CLASSIC))
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
        .legend(_legend(shown=True))
    )
    if not panel.below_zero and not panel.log:
        builder = builder.min(0)
    if panel.top is not None:
        builder = builder.max(panel.top)
    if panel.log:
        builder = builder.scale_distribution(
            common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        )
    if panel.stacked:
        builder = builder.stacking(
            common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
        )
    if panel.steps:
        builder = builder.thresholds_style(
            common_builders.GraphThresholdsStyleConfig().mode(
                common.GraphThresholdsStyleMode.DASHED
            )
        )
    for name in panel.over:
        builder = builder.override_by_name(name, _values(DASHED))
    for name, colour in panel.colours:
        fixed = {"color": {"mode": "fixed", "fixedColor": colour}}
        builder = builder.override_by_name(name, _values(fixed))
    return builder.build()


def _heat(panel: Heat) -> dashboard.Panel:
    return (
        heatmap_builders.Panel()
        .calculate(False)
        .y_axis(heatmap_builders.YAxisConfig().unit(texts.unit(panel)))
        .rows_frame(heatmap_builders.RowsHeatmapOptions().layout(common.HeatmapCellLayout.AUTO))
        .color(
            heatmap_builders.HeatmapColorOptions()
            .mode(heatmap.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .scale(heatmap.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        # Empty cells stay empty: a bucket without observations must not have a pale colour.
        .filter_values(heatmap_builders.FilterValueRange().le(1e-9))
        .cell_gap(1)
        .cell_values(heatmap_builders.CellValues().unit(PER_CELL))
        .unit(PER_CELL)
        .build()
    )


def _timeline(panel: Timeline) -> dashboard.Panel:
    modes = dashboard.FieldColorModeId
    mode = modes.THRESHOLDS if panel.words or panel.steps else modes.PALETTE_CLASSIC
    return (
        timeline_builders.Panel()
        .unit(texts.unit(panel))
        .mappings(_mappings(panel.words))
        .thresholds(_thresholds(panel.steps, GREEN if panel.words else GREY))
        .color_scheme(_colours(mode))
        .merge_values(True)
        .show_value(common.VisibilityMode.AUTO)
        .row_height(0.85)
        .fill_opacity(80)
        .line_width(0)
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.SINGLE))
        .legend(_legend(shown=bool(panel.words)))
        .build()
    )


def _table(panel: Table) -> dashboard.Panel:
    alone = len(panel.queries) == 1
    sources = [_field_name(column, alone) for column in panel.columns]
    titles = [column.title for column in panel.columns]
    transformations = {
        "merge": {},
        "filterFieldsByName": {"include": {"names": sources}},
        "organize": {
            "indexByName": {name: index for index, name in enumerate(sources)},
            "renameByName": dict(zip(sources, titles, strict=True)),
        },
    }
    builder = (
        table_builders.Panel()
        .unit(texts.unit(panel))
        .cell_height(common.TableCellHeight.SM)
        .sort_by([common_builders.TableSortByFieldState().display_name(panel.sort).desc(True)])
    )
    for kind, options in transformations.items():
        step = dashboard.DataTransformerConfig(id_val=kind, options=options)
        builder = builder.with_transformation(step)
    for column in panel.columns:
        builder = builder.override_by_name(column.title, _column(column))
    return builder.build()


def _field_name(column: Column, alone: bool) -> str:
    # Grafana names the values of a single query "Value", of several "Value #A", "Value #B", …
    if column.source not in LETTERS:
        return column.source
    return "Value" if alone else f"Value #{column.source}"


def _column(column: Column) -> list[dashboard.DynamicConfigValue]:
    coloured = column.words or column.steps
    properties = {
        "unit": column.unit,
        "custom.width": column.width,
        "mappings": column.words and _mappings(column.words),
        "thresholds": column.steps and _thresholds(column.steps, GREEN).build(),
        "color": column.steps and {"mode": "thresholds"},
        "custom.cellOptions": coloured and {"type": "color-text"},
        "links": [{"title": link.title, "url": link.url} for link in column.links],
    }
    # An empty cell stays empty: the panel's text for "no data" is for a table without rows.
    return _values({"noValue": ""} | {name: each for name, each in properties.items() if each})


def _values(properties: Mapping[str, object]) -> list[dashboard.DynamicConfigValue]:
    return [
        dashboard.DynamicConfigValue(id_val=name, value=value) for name, value in properties.items()
    ]


def _link(link: Link) -> dashboard_builders.DashboardLink:
    return (
        dashboard_builders.DashboardLink(link.title)
        .type(dashboard.DashboardLinkType.LINK)
        .url(link.url)
        .include_vars(True)
        .keep_time(True)
    )


def _colours(mode: dashboard.FieldColorModeId) -> dashboard_builders.FieldColor:
    return dashboard_builders.FieldColor().mode(mode)


def _legend(*, shown: bool) -> common_builders.VizLegendOptions:
    return (
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(shown)
    )


def _thresholds(steps: Sequence[Step], calm: str) -> dashboard_builders.ThresholdsConfig:
    models = [dashboard.Threshold(value=step.value, color=step.colour) for step in steps]
    return (
        dashboard_builders.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value=None, color=calm), *models])
    )


def _mappings(words: Sequence[Word], unknown: str = "unknown") -> list[dashboard.ValueMapping]:
    def shown(text: str, colour: str, index: int) -> dashboard.ValueMappingResult:
        return dashboard.ValueMappingResult(text=text, color=colour, index=index)

    options = {
        # The key is the number in JavaScript's notation, which Grafana compares.
        "Infinity" if word.value == ENDLESS else f"{word.value:g}": shown(*word[1:], index)
        for index, word in enumerate(words)
    }
    special = dashboard.DashboardSpecialValueMapOptions(
        match=dashboard.SpecialValueMatch.NULL_AND_NAN, result=shown(unknown, GREY, len(words))
    )
    mapped = [dashboard.ValueMap(options=options)] if words else []
    return [*mapped, dashboard.SpecialValueMap(options=special)]
