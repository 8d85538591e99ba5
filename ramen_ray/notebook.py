"""The library in a notebook: tables in memory to a dataset directory, training, search.

    from ramen_ray.notebook import Columns, fit, load_retriever, presets, write_dataset

    write_dataset("mine", clicks, ads=catalogue, columns=Columns(ad_text=("title",)))
    result = fit(presets.bag("mine"))
    load_retriever(result.run_directory).search(["red shoes"], top_k=3).to_pandas()

``Dataset("mine").read("ads")`` is a table of Arrow, as all that is returned. Only ``fit`` and
``evaluate`` need Ray, which they start if none runs. docs/reference/python.md has it all.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ramen_ray import presets as presets
from ramen_ray.answering.requests import QUERY_COLUMNS
from ramen_ray.config import RunConfig
from ramen_ray.config import overlay as overlay
from ramen_ray.data.checks import validation
from ramen_ray.data.findings import Finding
from ramen_ray.data.splits import judged as judged_splits
from ramen_ray.data.splits.judged import JudgedTable
from ramen_ray.data.store.dataset import Dataset as Dataset
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import Columns as Columns
from ramen_ray.data.tables.clicks.settings import UserTables
from ramen_ray.data.tables.graphs.anchor_sets import check_spelling
from ramen_ray.errors import UserError, first_line_of, printable
from ramen_ray.orchestration.deploy.retrievers import retriever_uri
from ramen_ray.tracking.addresses import tracking_uri
from ramen_ray.tracking.registry import Registry, RegistryError, ask

if TYPE_CHECKING:
    from ramen_ray.orchestration.run.fit import TrainResult

__all__ = [
    "Columns",
    "Dataset",
    "Retriever",
    "add_judgements",
    "evaluate",
    "fit",
    "load_retriever",
    "overlay",
    "presets",
    "validate",
    "write_dataset",
]

ANSWERS = pa.schema(
    [
        ("query", pa.string()),
        ("rank", pa.int64()),
        ("ad_id", pa.string()),
        ("ad", pa.string()),
        ("score", pa.float64()),
        ("doubt", pa.string()),
        ("error", pa.string()),
    ]
)
FRAMES = {"judged", "filters", "query_splits"}
"""Settings of an import that are tables: frames, or where they are stored."""
_FLAG = re.compile(r"(?:flags )?(?<![\w-])--([a-z][\w.-]*)")

Frame = Any  # a table of pandas, polars or Arrow: anything with ``__arrow_c_stream__``


@contextmanager
def _as_arguments(names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Let messages name arguments in place of flags, and of the files in ``names``."""

    def told(message: str) -> str:
        for file, argument in (names or {}).items():
            message = message.replace(file, argument)
        return _FLAG.sub(lambda flag: flag[1].replace("-", "_"), message)

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        entry = factory(*args, **kwargs)
        if entry.name.startswith("ramen_ray"):
            entry.msg = told(entry.getMessage())
            entry.args = ()
        return entry

    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(record)
    try:
        yield
    except UserError as error:
        error.args = (told(str(error)),)
        raise
    finally:
        logging.setLogRecordFactory(factory)


def write_dataset(
    path: str | Path,
    clicks: Frame,
    *,
    queries: Frame | None = None,
    ads: Frame | None = None,
    query_edges: Mapping[str, Frame] | None = None,
    ad_edges: Mapping[str, Frame] | None = None,
    **settings: Any,
) -> Dataset:
    """Write a dataset directory from tables in memory, checked as ``jobs/ingest.py tables`` does.

    Args:
        path: the folder, which must not exist.
        clicks: a row per click, or per query and ad with a weight.
        queries: id and text; without it, clicks name queries by their texts.
        ads: id and text; without it, clicks name ads by their texts.
        query_edges: by anchor set: query, anchor, and weight if ``columns`` names it.
        ad_edges: likewise for ads.
        settings: ``columns``, where they do not have the usual names, and others of
            :class:`~ramen_ray.data.tables.clicks.settings.UserTables`, of which ``judged``,
            ``filters`` and ``query_splits`` are frames too.

    Raises:
        DatasetError: a frame has mixed columns, a row is wrong, or the folder exists.
        TypeError: a frame is lazy.
    """
    names: dict[str, str] = {}
    with owned_folder() as folder, _as_arguments(names):
        written = partial(_written, folder, names)

        def edges(argument: str, frames: Mapping[str, Frame] | None) -> dict[str, str]:
            for name in frames or {}:
                check_spelling(name)
            return {
                name: written(f"{argument}[{name!r}]", frame, f"{argument}.{name}")
                for name, frame in (frames or {}).items()
            }

        for name in settings.keys() & FRAMES:
            if not isinstance(settings[name], str | None):
                settings[name] = written(name, settings[name], name)
        tables = UserTables(
            written("clicks", clicks, "clicks"),
            None if queries is None else written("queries", queries, "queries"),
            None if ads is None else written("ads", ads, "ads"),
            query_edges=edges("query_edges", query_edges),
            ad_edges=edges("ad_edges", ad_edges),
            **settings,
        )
        return import_tables(tables, Path(path))


def add_judgements(
    dataset: str | Path | Dataset, judged: Frame, path: str | Path | None = None, **settings: Any
) -> Dataset:
    """Add judgements to a dataset directory, in place or as a new one at ``path``.

    Args:
        dataset: the directory.
        judged: query, ad, grade and source; queries and ads by your ids, or by texts where the
            dataset was made without ids.
        path: a folder, which must not exist; the dataset then stays as it is.
        settings: names of columns, ``judged_highest`` and others of
            :class:`~ramen_ray.data.splits.judged.JudgedTable`.

    Raises:
        DatasetError: a row is wrong, or a training holds the dataset.
        TypeError: the frame is lazy.
    """
    names: dict[str, str] = {}
    opened = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    with owned_folder() as folder, _as_arguments(names):
        table = JudgedTable(_written(folder, names, "judged", judged, "judged"), **settings)
        return judged_splits.add_judgements(opened, table, None if path is None else Path(path))


def _written(folder: Path, names: dict[str, str], argument: str, frame: Frame, name: str) -> str:
    """Write a frame to a file in ``folder``; ``names`` has the argument for each file."""
    if hasattr(frame, "collect") and not hasattr(frame, "__arrow_c_stream__"):
        raise TypeError(f"{argument} is lazy; call .collect() first")
    file = folder / f"{name}.parquet"
    names.update({str(file): argument, file.name: argument})
    try:
        pq.write_table(_without_views(pa.table(frame)), file)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DatasetError(f"{argument} is no table: {first_line_of(error)}") from error
    return str(file)


def _without_views(table: pa.Table) -> pa.Table:
    """Write out polars' categories, which parquet does not take."""
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        kind = column.type
        if pa.types.is_dictionary(kind) and kind.value_type == pa.string_view():
            texts = [
                chunk.dictionary.cast(pa.large_string()).take(chunk.indices)
                for chunk in column.chunks
            ]
            table = table.set_column(place, name, pa.chunked_array(texts, pa.large_string()))
    return table


@_as_arguments()
def validate(dataset: str | Path | Dataset) -> list[Finding]:
    """Return all that is wrong or doubtful in a dataset directory, errors first.

    Raises:
        DatasetError: there is none.
    """
    opened = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    return validation.validate(opened)


@_as_arguments()
def fit(config: RunConfig) -> "TrainResult":
    """Train a run, or resume an interrupted one; the result has metrics and the folder.

    Raises:
        UserError: the data, the encoder, the MLflow store or the machine cannot be used.
    """
    from ramen_ray.orchestration.run.fit import fit as train  # needs Ray

    return train(config)


@_as_arguments()
def evaluate(
    run: str | Path, split: str = "test", dataset: str | Path | None = None
) -> dict[str, float]:
    """Return the metrics, by name, of the finished run or the checkpoint in the folder ``run``.

    The split is ``validation``, ``test`` or ``zero_shot``. ``dataset`` replaces the one trained on.

    Raises:
        UserError: the folder or the dataset is missing, or not what it was.
    """
    from ramen_ray.orchestration.evaluate import evaluate_checkpoint  # needs Ray

    return evaluate_checkpoint(Path(run), split, None if dataset is None else str(dataset))


class Retriever:
    """A retriever in memory, which answers on the CPU."""

    def __init__(self, uri: str, registry: Registry) -> None:
        self.uri = uri
        self._model = registry.load(uri, "cpu")

    def search(
        self,
        queries: str | Iterable[str] | Frame,
        top_k: int = 10,
        filter: Mapping[str, str | Sequence[str]] | None = None,
        min_score: float | None = None,
        at_most: Mapping[str, int] | None = None,
        columns: Sequence[str] = (),
    ) -> pa.Table:
        """Return each query's best ads: query, rank (from 1), ad_id, ad, score, doubt and error.

        A query without an answer has one row, whose ``error`` says why; all others have none.
        ``doubt`` says why an answer may be a bad one.

        Args:
            queries: texts, or one, or a table with a column ``query`` or ``text``.
            top_k: ads per query; fewer if fewer match.
            filter: by column, the value that ads must have, or a list of values of which one:
                ``{"market": "DE"}``.
            min_score: lowest score of an ad.
            at_most: by column, how many of a query's ads may have one value: ``{"seller": 2}``.
            columns: those whose values the table has too, at its end.

        Raises:
            RegistryError: the retriever has fewer ads than ``top_k``, or no such column.
            TypeError: the queries are no texts and no such table.
        """
        texts = _texts(queries)
        params: dict[str, Any] = {"top_k": top_k, "filter": filter, "min_score": min_score}
        params |= {"at_most": at_most, "columns": tuple(columns)}
        blank = [None] * len(columns)
        rows = list[tuple[Any, ...]]()
        for query, answer in zip(texts, ask(self._model, texts, params).to_pylist(), strict=True):
            if answer["error"]:
                text = None if query is None else printable(str(query))
                rows.append((text, None, None, None, None, None, answer["error"], *blank))
            values = [answer["columns"][name] for name in columns]
            best = zip(answer["ad_ids"], answer["ads"], answer["scores"], *values, strict=True)
            for rank, (ad_id, ad, score, *beside) in enumerate(best, start=1):
                rows.append((query, rank, ad_id, ad, score, answer.get("doubt"), None, *beside))
        schema = pa.schema([*ANSWERS, *((name, pa.string()) for name in columns)])
        cells = zip(*rows, strict=True) if rows else [()] * len(schema)
        return pa.table([list(column) for column in cells], schema=schema)

    def embed(self, queries: str | Iterable[str] | Frame) -> NDArray[np.float32]:
        """Return the queries' vectors (queries, D), unit norm, to search an exported index with.

        Raises a RegistryError if one is no query, as of :meth:`search`.
        """
        texts = _texts(queries)
        for text in texts:
            if error := self._model.error_of(text):
                raise RegistryError(f"the query {text!r}: {error}")
        return self._model.embed(texts)


def _texts(queries: Any) -> list[Any]:
    """Return queries as Python values; those of a table are in its column of QUERY_COLUMNS."""
    if isinstance(queries, str):
        return [queries]
    if isinstance(queries, Mapping):
        raise TypeError("queries is a mapping; give texts, or a table of them")
    if hasattr(queries, "columns"):
        names = list(getattr(queries, "column_names", queries.columns))
        name = next((name for name in QUERY_COLUMNS if name in names), None)
        if name is None:
            raise TypeError(f"queries has no column {' or '.join(QUERY_COLUMNS)}, only {names}")
        queries = queries[name]
    return [text.as_py() if isinstance(text, pa.Scalar) else text for text in queries]


@_as_arguments()
def load_retriever(named: str | Path | None = None, output: str | Path = "outputs") -> Retriever:
    """Load a retriever.

    Args:
        named: its URI, such as ``models:/shop@champion``, or a run's folder; None for the run in
            ``output`` that was finished last.
        output: folder of the runs and, unless MLFLOW_TRACKING_URI is set, of the MLflow store.

    Raises:
        RegistryError, TrackingError: there is none, or it cannot be loaded.
    """
    registry = Registry(tracking_uri(Path(output)))
    model = None if named is None else str(named)
    return Retriever(retriever_uri(registry, model, Path(output)), registry)
