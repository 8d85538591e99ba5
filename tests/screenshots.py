"""A picture of the MLflow UI, taken with headless Chromium."""

from pathlib import Path

from browser import browser_page
from mlflow.tracking import MlflowClient

DRAWN_MS = 3000  # charts are drawn a while after the page has loaded


def take_screenshots(url: str, search: str, folder: Path) -> None:
    """Photograph a sweep and its trials in the UI at ``url``, which takes Chromium.

    Args:
        url: of an MLflow server.
        search: name of the sweep's run.
        folder: gets ui_runs.png.
    """
    client = MlflowClient(tracking_uri=url)
    experiment = client.get_experiment_by_name("ramen_ray").experiment_id
    runs = client.search_runs([experiment])
    (parent,) = (run.info.run_id for run in runs if run.info.run_name == search)
    below = f"tags.`mlflow.parentRunId` = '{parent}'"
    best_first = ["metrics.`best/validation/P_at_1` DESC"]
    trials = client.search_runs([experiment], below, order_by=best_first)
    at = f"{url}/#/experiments/{experiment}/runs"
    with browser_page(width=1400, height=800) as page:
        page.goto(url)
        page.get_by_text("Model training", exact=True).first.click()
        page.get_by_role("button", name="Close", exact=True).click()
        page.goto(at)
        page.locator("[data-component-id*=runnamecellrenderer]").first.click()  # the trials below
        _take(page, trials[0].info.run_name, folder / "ui_runs.png")


def _take(page, shown, file):
    page.get_by_text(shown, exact=True).first.wait_for()
    page.wait_for_timeout(DRAWN_MS)
    page.screenshot(path=file)
