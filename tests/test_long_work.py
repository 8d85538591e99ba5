"""Lines about what takes long."""

import logging
import re

from support import wait_until

from ramen_ray import long_work
from ramen_ray.long_work import logged_blocks


def test_lines_tell_the_time_left_once_something_is_done(monkeypatch, caplog):
    for name in ("FIRST_LINE_S", "BETWEEN_LINES_S", "BETWEEN_LOOKS_S"):
        monkeypatch.setattr(long_work, name, 0.01)
    caplog.set_level(logging.INFO)
    passed = []
    for block in logged_blocks("searching", [10, 20, 30], lambda size: size, 120):
        before = len(caplog.messages)
        wait_until(lambda before=before: len(caplog.messages) > before + 2, "not told")
        passed.append(block)
    assert passed == [10, 20, 30]
    assert re.fullmatch(r"searching: 0 s", caplog.messages[0])
    assert any(re.fullmatch(r"searching: \d+ s, about \d+ s left", one) for one in caplog.messages)


def test_what_is_done_soon_is_not_told(caplog):
    caplog.set_level(logging.INFO)
    assert [*logged_blocks("searching", [1, 2], lambda size: size, 3)] == [1, 2]
    assert not caplog.messages
