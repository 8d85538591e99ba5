"""What Ray says of lost processes and machines comes out as one line of ours."""

import pytest
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OwnerDiedError,
    RayError,
    WorkerCrashedError,
)

from ramen_ray.orchestration.cluster.resources import ClusterError, user_errors


@pytest.mark.parametrize(
    "error",
    [
        NodeDiedError("Task failed because the node it was running on is dead.\nAnd more."),
        LocalRayletDiedError(),
        ObjectLostError("00ff", None, "here"),
        OwnerDiedError("00ff", None, "here"),
    ],
)
def test_a_lost_machine_is_told_with_what_to_do(error: RayError) -> None:
    said = r"^a machine of the cluster was lost, .*; run the same command again \(.*\)$"
    with pytest.raises(ClusterError, match=said) as raised, user_errors():
        raise error
    assert str(error).splitlines()[0] in str(raised.value)


def test_a_lost_process_is_not_a_lost_machine() -> None:
    with pytest.raises(ClusterError, match="a process has died"), user_errors():
        raise WorkerCrashedError
