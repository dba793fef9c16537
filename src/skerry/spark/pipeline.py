"""`@skerry.pipeline`: what a user declares. Nothing here needs Spark.

    @skerry.pipeline(source="sensors/#", sink="alerts", format="json", schema="degrees DOUBLE")
    def hot(readings):
        return readings.where("degrees > 30").selectExpr("to_json(struct(*)) AS value")

A pipeline reads one topic or pattern, or several by name, which the function then gets by keyword;
what the function returns is written to the sink. It is still a function: tests may call it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from skerry.errors import BadName, BadSetting
from skerry.model.names import check_subscription, check_topic
from skerry.model.pattern import Pattern
from skerry.model.quantities import parse_duration
from skerry.spark.options import read_source

METRICS = "pipelines"
"""The topic that takes the metrics of all pipelines, each in a sub-topic of its name."""

Frame = Any
"""A DataFrame of Spark."""
T = TypeVar("T")

_OURS = ("topic", "format", "start", "data", "connection", "user", "end")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a pipeline reads."""

    topic: str
    format: str
    schema: str | None
    options: dict[str, str]
    """The options of the source, without those that say which site."""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A declared pipeline. Call it as the function that it was made of."""

    name: str
    function: Callable[..., Frame]
    sources: dict[str, Source]
    """By the name of the parameter that takes it."""
    by_name: bool
    """Whether the function takes its sources by keyword."""
    sink: str
    every: float
    """Seconds between batches; 0: as soon as there is something to do."""

    def __call__(self, *frames: Frame, **named: Frame) -> Frame:
        """Apply the function."""
        return self.function(*frames, **named)


declared: list[Pipeline] = []
"""What was declared in this process, in that order."""


def pipeline(
    *,
    source: str | Mapping[str, str],
    sink: str,
    format: str | Mapping[str, str] = "binary",
    schema: str | Mapping[str, str] | None = None,
    name: str | None = None,
    start: str = "earliest",
    every: float | str = 0,
    options: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Frame]], Pipeline]:
    """Declare that a function of DataFrames is a pipeline from topics to a topic.

    `source` is a topic or pattern, or a mapping of the function's parameters to such; `format` and
    `schema` say what payloads are, for all sources or for each by name. `sink` is a topic. `name`
    is the function's unless given; checkpoint and metrics go by it. `start` is where a pipeline
    begins that has no checkpoint yet. `every` is the time between batches. `options` are further
    options of the sources (docs/spark.md). Raises `BadSetting` or `BadName`.
    """

    def declare(function: Callable[..., Frame]) -> Pipeline:
        if not inspect.isroutine(function):
            raise BadSetting(
                f"a pipeline is made of a function, not of {function!r}",
                "Write @skerry.pipeline(…) above a `def`.",
            )
        own = name or function.__name__
        by_name = not isinstance(source, str)
        topics = {_parameter(own, function): source} if isinstance(source, str) else dict(source)
        if not topics:
            raise BadSetting(f"the pipeline {own} reads nothing", "Give it a source.")
        made = Pipeline(
            name=check_name(own),
            function=function,
            sources={
                parameter: _source(own, parameter, topic, format, schema, start, options or {})
                for parameter, topic in topics.items()
            },
            by_name=by_name,
            sink=check_topic(sink),
            every=parse_duration(str(every)),
        )
        _check_parameters(made)
        _check_loops(made)
        declared.append(made)
        return made

    return declare


def check_name(name: str) -> str:
    """Return `name` if a pipeline can have it; else raise `BadName`."""
    try:
        return check_subscription(name)
    except BadName:
        raise BadName(
            f"{name!r} cannot name a pipeline", 'Give name="…" of 1 to 64 letters, digits, _ or -.'
        ) from None


def _source(
    pipeline: str,
    parameter: str,
    topic: str,
    formats: str | Mapping[str, str],
    schemas: str | Mapping[str, str] | None,
    start: str,
    more: Mapping[str, Any],
) -> Source:
    format = _of(formats, parameter, "binary")
    schema = _of(schemas, parameter, None)
    for option in more:
        if option.lower() in _OURS:
            raise BadSetting(
                f"the pipeline {pipeline} gives {option!r} as an option of its source",
                "Topic, format and start are arguments of their own; the command says which site.",
            )
    options = {key: str(value) for key, value in more.items()}
    options |= {"topic": topic, "format": format, "start": start}
    if read_source(options).format not in ("binary", "text") and not schema:
        raise BadSetting(
            f"the pipeline {pipeline} reads {topic} as {format}, and has no schema",
            'Name the fields of a payload: schema="sensor STRING, degrees DOUBLE".',
        )
    return Source(topic=topic, format=format, schema=schema, options=options)


def _of(given: Any, parameter: str, default: Any) -> Any:
    return given.get(parameter, default) if isinstance(given, Mapping) else given


def _parameter(name: str, function: Callable[..., Frame]) -> str:
    parameters = list(inspect.signature(function).parameters)
    if not parameters:
        raise BadSetting(
            f"the function of the pipeline {name} takes no DataFrame",
            f"Write `def {function.__name__}(events):`.",
        )
    return parameters[0]


def _check_parameters(pipeline: Pipeline) -> None:
    signature = inspect.signature(pipeline.function)
    try:
        if pipeline.by_name:
            signature.bind(**dict.fromkeys(pipeline.sources))
        else:
            signature.bind(None)
    except TypeError as error:
        raise BadSetting(
            f"the function of the pipeline {pipeline.name} does not take its sources: {error}",
            f"It is called with {', '.join(pipeline.sources)}.",
        ) from None


def _check_loops(pipeline: Pipeline) -> None:
    for source in pipeline.sources.values():
        pattern = Pattern.parse(source.topic)
        for topic, what in (
            (pipeline.sink, "what it writes"),
            (f"{METRICS}/{pipeline.name}", "its own metrics"),
        ):
            if pattern.matches(topic):
                raise BadSetting(
                    f"the pipeline {pipeline.name} would read {what}, for ever: {source.topic} "
                    f"means {topic} too",
                    "Name the topics that it is to read.",
                )
