"""What mkdocs adds to pages of the reference: settings, commands, and an executed notebook."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ramen_ray.config import RunConfig, shown_dataset

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = RunConfig.model_json_schema()


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace a page's mark by what the code says; mkdocs calls this with each page."""
    for name, generated in PARTS.items():
        if (mark := f"<!-- {name} -->") in markdown:
            markdown = markdown.replace(mark, "\n".join(generated()))
    return markdown


def _settings() -> Iterator[str]:
    """Make a table of the settings of each section."""
    sections = {"": SCHEMA, **dict(_sections())}
    for name, section in sections.items():
        yield f"\n## {name or 'run'}\n\n{section.get('description', '')}\n"
        yield "| flag | values | default | meaning |\n|---|---|---|---|"
        for key, setting in section["properties"].items():
            if _section_of(setting) is None:
                words = (name, key.replace("_", "-"), "SET" * ("additionalProperties" in setting))
                default = setting.get("default", "–")
                default = shown_dataset(default) if key == "dataset" else default
                meaning = setting.get("description", "").replace("\n", " ").replace("|", "\\|")
                flag = "--" + ".".join(filter(None, words))
                yield f"| `{flag}` | {_values(setting)} | `{default}` | {meaning} |"


def _sections() -> Iterator[tuple[str, dict[str, Any]]]:
    for key, setting in SCHEMA["properties"].items():
        if name := _section_of(setting):
            yield key, SCHEMA["$defs"][name]


def _section_of(setting: dict[str, Any]) -> str | None:
    return setting["$ref"].rpartition("/")[2] if "$ref" in setting else None


def _values(setting: dict[str, Any]) -> str:
    """Say what a setting takes, from its JSON schema."""
    kinds = setting.get("anyOf", [setting.get("additionalProperties", setting)])
    found = (", ".join(map(str, one.get("enum", [one.get("type")]))) for one in kinds)
    return ", ".join("None" if kind == "null" else kind for kind in found)


def _commands() -> Iterator[str]:
    """Give each command's own description, as its ``--help`` does."""
    for file in sorted((ROOT / "jobs").glob("[a-z]*.py")):
        said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        first, _, rest = said.partition("\n")
        yield f"\n## {file.stem}\n\n{first}\n\n```text\n{rest.strip()}\n```"


def _notebook() -> Iterator[str]:
    """Give the cells of the notebook, with what they have shown."""
    file = ROOT / "docs" / "tutorials" / "notebook.ipynb"
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield f"{text.replace('# ', '## ', 1)}\n"
            continue
        yield f"```python\n{text}\n```\n"
        for output in cell["outputs"]:
            shown = output["text"] if "text" in output else output["data"]["text/plain"]
            yield f"```text\n{''.join(shown)}\n```\n"


PARTS = {"settings": _settings, "commands": _commands, "notebook": _notebook}
