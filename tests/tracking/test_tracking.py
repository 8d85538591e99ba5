import shlex
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
from conftest import free_port
from mlflow.tracking import MlflowClient

from ramen_ray import command_line
from ramen_ray.errors import UserError, redacted_reason, shown_address
from ramen_ray.method.metrics.comparison import Difference
from ramen_ray.reports.report_tables import headlines
from ramen_ray.tracking.addresses import TrackingError, tracking_uri, ui_command
from ramen_ray.tracking.runs import DESCRIPTION_TAG, Run, open_run
from ramen_ray.tracking.step_logger import UNSENT_FILE, StepLogger

AT_ONCE = "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0"  # what fails is tried again without a wait


@pytest.fixture(autouse=True)
def _hasty(monkeypatch):
    """Half of the pauses in which MLflow waits for a server."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")


@pytest.fixture
def run(output):
    return open_run(f"sqlite:///{output}/mlflow.db", "tests", "a run", output)


def test_a_store_is_where_its_folder_is_whatever_its_name(monkeypatch, tmp_path, empty_store):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    named = [tmp_path / folder / "a b#c'd\"e f;$g\\h" for folder in ("there", "moved")]
    named[0].mkdir(parents=True)
    shutil.copy(empty_store, named[0])
    for folder in named:
        if folder == named[1]:
            folder.parent.mkdir()
            named[0].rename(folder)
        run = open_run(tracking_uri(folder), folder.parent.name, "a run", folder)
        (tmp_path / "note.txt").write_text("kept")
        run.log_artifacts(tmp_path / "note.txt")
        assert {file.name for file in folder.iterdir()} == {"mlflow.db", "mlartifacts"}
    assert len(list(named[1].rglob("note.txt"))) == 2
    *command, uri = shlex.split(ui_command(tracking_uri(named[1])))
    assert command[-1] == "--backend-store-uri"
    assert len(MlflowClient(tracking_uri=uri).search_experiments()) == 3


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("mysql+pymysql://ann:s3cret@h/db", "mysql+pymysql://***@h/db"),
        ("http://ann:p@ss:w/rd@host:5000/x", "http://***@host:5000/x"),
        ("databricks://TOKEN:x@", "databricks://***@"),
        ("postgresql://h1:1,h2:2/db?user=a&sslpassword=abc", "postgresql://h1:1,h2:2/db?***"),
        ("https://host/x.csv?X-Amz-Signature=abc&sig=d", "https://host/x.csv?***"),
        ("https://host/x#access_token=abc", "https://host/x#***"),
        ("ann:s3cret@host/x", "***@host/x"),
        ("file:///home/ann@corp/x", "file:///home/ann@corp/x"),
        ("models:/shop@champion", "models:/shop@champion"),
        ("s3://lake/clicks@v12", "s3://lake/clicks@v12"),
    ],
)
def test_of_an_address_only_scheme_host_port_and_path_are_shown(address, shown, capsys):
    assert shown_address(address) == shown_address(shown) == shown
    assert str(UserError(f"cannot open {address} now")) == f"cannot open {shown} now"
    assert shown in ui_command(address)
    error = ConnectionError(f"cannot open {address} now")
    command_line.sys.excepthook(type(error), error, None)
    assert capsys.readouterr().err.strip() == f"ConnectionError: cannot open {shown} now"


def test_of_what_a_library_says_the_words_of_a_secret_are_not_shown():
    address = "postgresql://ann:pass%20word@s3cret@host:5432/db"
    reason = "bad port 'word@s3cret' of host:5432, user ann"
    assert redacted_reason(reason, address) == "bad port '***@***' of host:5432, user ***"


def test_a_reopened_run_is_the_same_and_runs_again(run, output):
    run.close("FAILED")
    assert open_run(run.uri, "tests", "a run", output, run.id) == run
    assert MlflowClient(run.uri).get_run(run.id).info.status == "RUNNING"


@pytest.mark.parametrize(
    ("error", "nested", "status"),
    [
        (None, False, "FINISHED"),
        (ValueError, False, "FAILED"),
        (SystemExit, False, "KILLED"),
        (SystemExit, True, "RUNNING"),
    ],
)
def test_a_run_ends_with_its_block(error, nested, status, run):
    with nullcontext() if error is None else pytest.raises(error), run.closing(nested):
        if error is not None:
            raise error
    assert MlflowClient(run.uri).get_run(run.id).info.status == status


def test_a_run_s_list_and_description_show_figures_and_what_was_registered(run):
    gains = {"P@1": Difference(0.012, 0.0, 0.02), "R@10": Difference(-0.003, -0.01, 0.0)}
    run.rename(f"{headlines({'P@1': 0.391, 'R@10': 0.562}, gains)} mine")
    assert run.client.get_run(run.id).info.run_name == "39.1+1.2 56.2-0.3 mine"
    run.describe("a table")
    for _ in range(2):
        run.add_registered("shop", "3")
    described = run.client.get_run(run.id).data.tags[DESCRIPTION_TAG]
    link = "Registered: [shop version 3](#/models/shop/versions/3)"
    assert described == f"{link}\n\na table"


def test_figures_are_kept_while_the_server_is_gone(run, tmp_path, monkeypatch, caplog):
    losses = np.arange(8.0).reshape(8, 1)
    known = np.ones((8, 1), dtype=bool)
    gone = StepLogger(Run(f"http://127.0.0.1:{free_port()}", run.id), tmp_path)
    started = time.monotonic()
    gone.log_losses(["loss/task"], losses[:5], known[:5], 5)
    gone.log_figures("validation", {"P@1": 0.25}, 5)
    assert time.monotonic() - started < 15
    (warning,) = (record for record in caplog.records if record.name.startswith("ramen_ray"))
    assert str(tmp_path / UNSENT_FILE) in warning.message
    monkeypatch.setenv(*AT_ONCE)
    with pytest.raises(TrackingError):
        gone.send_unsent()
    with (tmp_path / UNSENT_FILE).open("a") as file:
        file.write('["cut sho')
    for _ in range(2):  # the second has been resumed, and repeats them
        back = StepLogger(run, tmp_path)
        back.log_losses(["loss/task"], losses[3:], known[3:], 8)
        back.log_figures("validation", {"P@1": 0.25}, 5)
    assert run.read_history("loss/task") == (list(range(1, 9)), losses[:, 0].tolist())
    assert run.read_history("validation/P@1") == ([5], [0.25])
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_not_hidden_by_a_store_that_is_gone(monkeypatch):
    monkeypatch.setenv(*AT_ONCE)
    gone = Run(f"http://127.0.0.1:{free_port()}", "0" * 32)
    with pytest.raises(ValueError, match="the real error"), gone.closing():
        raise ValueError("the real error")


def test_several_processes_may_make_the_experiment_at_once(run, output):
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(open_run, run.uri, "fresh", f"run {n}", output) for n in range(4)]
    opened = {task.result().id for task in asked}
    experiment = run.client.get_experiment_by_name("fresh").experiment_id
    assert {found.info.run_id for found in run.client.search_runs([experiment])} == opened


def test_what_was_deleted_is_named_with_what_restores_it(output, empty_store, tmp_path):
    uri = f"sqlite:///{shutil.copy(empty_store, tmp_path)}"
    run = open_run(uri, "shop", "first", output)
    number = run.client.get_experiment_by_name("shop").experiment_id

    def is_refused(run_id, command):
        with pytest.raises(TrackingError, match=f"MLFLOW_TRACKING_URI={uri} mlflow {command}"):
            open_run(uri, "shop", "first", output, run_id=run_id)

    run.client.delete_run(run.id)
    is_refused(run.id, f"runs restore --run-id {run.id}")
    run.client.restore_run(run.id)
    run.client.delete_experiment(number)
    for run_id in (run.id, None):
        is_refused(run_id, f"experiments restore --experiment-id {number}")


@pytest.mark.parametrize(
    ("uri", "run_id", "place"),
    [
        ("mysql://ann:s3cret@host/db", None, r"mysql://\*\*\*@host/db"),
        ("http://ann:s3cret@[::1", None, "MLflow store"),
        ("http://127.0.0.1:{port}", None, r"http://127\.0\.0\.1"),
        ("sqlite:///file:{output}/mlflow.db?mode=ro&uri=true", None, r"mlflow\.db"),
        ("sqlite:////proc/nowhere/mlflow.db", None, "sqlite:////proc/nowhere"),
        ("sqlite:///{output}/mlflow.db", "0" * 32, r"mlflow\.db"),
    ],
)
def test_a_store_that_cannot_be_used_is_named_within_seconds_without_its_password(
    uri, run_id, place, output, capfd, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # where MLflow makes folders of what it takes for a path
    started = time.monotonic()
    with pytest.raises(TrackingError, match=place) as error:
        address = uri.format(output=output, port=free_port())
        open_run(address, "tests", "a run", output, run_id=run_id)
    assert time.monotonic() - started < 15
    assert "s3cret" not in str(error.value)
    assert error.value.__suppress_context__
    assert "Traceback" not in capfd.readouterr().err
