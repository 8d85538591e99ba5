"""What MLflow loads and serves: an adapter around the code that a retriever keeps.

MLflow keeps this file, too, so it imports nothing from ramen_ray.
"""

import runpy
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext


class ServedRetriever(PythonModel):
    """Answers the queries of a table that MLflow hands on; a refusal is its status 400."""

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
        """Return what :meth:`Retriever.answer_table` does of the input with these options."""
        try:
            answers = self.retriever.answer_table(model_input, **params or {})
        except self.retriever.refusal as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None
        return pd.DataFrame(answers.to_pydict(), dtype=object)


set_model(ServedRetriever())
