"""Tables with plots as a page: one HTML file."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment

from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.reports.plots import as_svg
from ramen_ray.reports.tables import ReportTable
from ramen_ray.tracking.runs import TrackingError

TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff }
h1 { font-size: 1.6rem }
p { margin: .4rem 0; color: #555 }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; text-align: right; vertical-align: top }
th { border-bottom: 2px solid #888 } td { border-bottom: 1px solid #ddd }
.text { text-align: left } td.text { overflow-wrap: anywhere }
.plots { display: flex; flex-wrap: wrap; gap: 1rem }
img { width: 32rem; max-width: 100% }
summary { font-weight: 600; margin: 1rem 0 .2rem; cursor: pointer }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ note }}</p>
<ul>
{% for sentence in words %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
<div class="plots">
{% for plot in plots %}
<img alt="{{ plot.x_label }}" src="data:image/svg+xml;base64,{{ draw(plot) }}">
{% endfor %}
</div>
{% for table in tables %}
<details{% if table.is_open %} open{% endif %}>
<summary>{{ table.title }}</summary>
{% if table.note %}<p>{{ table.note }}</p>{% endif %}
<div class="wide"><table>
<tr>
{%- for column in table.columns -%}
<th{% if loop.index0 < table.text_columns %} class="text"{% endif %}>{{ column }}</th>
{%- endfor -%}
</tr>
{% for row in table.rows %}
<tr>
{%- for cell in row -%}
<td{% if loop.index0 < table.text_columns %} class="text"{% endif %}>{{ cell }}</td>
{%- endfor -%}
</tr>
{% endfor %}
</table></div>
</details>
{% endfor %}
</body>
</html>
"""


def write_page(
    file: Path, title: str, note: str, words: Sequence[str], tables: Sequence[ReportTable]
) -> None:
    """Write one HTML page that loads nothing from elsewhere, or raise a TrackingError."""
    template = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE)
    plots = [plot for table in tables for plot in table.plots]
    html = template.render(
        title=title, note=note, words=words, plots=plots, tables=tables, draw=as_svg
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as aside:
            aside.write_text(html, encoding="utf-8")
    except OSError as error:
        raise TrackingError(f"cannot write the page {file}: {error.strerror}") from error
