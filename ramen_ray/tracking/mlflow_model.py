"""What MLflow loads and serves: an adapter around the code that a retriever keeps.

MLflow keeps this file, too, so it imports nothing from ramen_ray.
"""

import runpy
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

QUERY_COLUMNS = ("query", "text")


class ServedRetriever(PythonModel):
    """Answers tables of queries as MLflow hands them on, with the first of their columns."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the retriever from the folder that the run wrote."""
        # MLflow makes a table of each request; Arrow's strings cannot hold half a surrogate pair
        pd.set_option("mode.string_storage", "python")
        folder = context.artifacts["retriever"]
        code = runpy.run_path(f"{folder}/code/__init__.py")["code_of"](folder)
        self.retriever = code.Retriever(folder, (context.model_config or {}).get("device"))

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Answer every query; ``params`` and the result are those of ``Retriever.answer``.

        Raises an MlflowException, which a server answers with status 400, for what it refuses.
        """
        options = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in (params or {}).items()
            if value is not None
        }
        try:
            answers = self.retriever.answer(_queries_of(model_input), **options)
        except self.retriever.refusal as error:
            _refuse(str(error))
        return pd.DataFrame(answers.to_pydict(), dtype=object)


def _queries_of(table: pd.DataFrame) -> list[Any]:
    """Return the queries of a request: of a list, in a column that has a number for a name."""
    name = table.columns[0]  # MLflow drops all others
    if isinstance(name, str) and name not in QUERY_COLUMNS:
        _refuse(
            f"the first column is {name!r}; put the queries first, in a column named "
            f"{' or '.join(QUERY_COLUMNS)}"
        )
    # of a list of objects MLflow makes arrays, of a text each
    return [cell.tolist() if isinstance(cell, np.ndarray) else cell for cell in table.iloc[:, 0]]


def _refuse(problem: str) -> NoReturn:
    raise MlflowException.invalid_parameter_value(problem)


set_model(ServedRetriever())
