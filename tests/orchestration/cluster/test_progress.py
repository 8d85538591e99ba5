"""Lines about the time left, by a clock that the test winds."""

import logging

import pytest

from ramen_ray.orchestration.cluster import progress


def test_lines_begin_after_five_seconds_and_tell_the_time_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter([0, 3, 4, 6, 7, 27])  # the start, and the end of each part
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with caplog.at_level(logging.INFO):
        parts = progress.with_time_left([10] * 5, lambda size: size, 100, "searched")
        assert [*parts] == [10] * 5
    assert caplog.messages == [
        "searched 30 of 100 texts, about 10 s left",
        "searched 50 of 100 texts, about 30 s left",
    ]
