"""Changes of a retriever's ads that cannot be made."""

import pytest

from jobs import index


def _ads(store, uri):
    own = store.registry.load(uri).ads
    return dict(zip(own.ids.to_pylist(), own.texts.to_pylist(), strict=True))


def _write(file, ads):
    file.write_text("ad_id,text\n" + "".join(f"{ad},{text}\n" for ad, text in ads.items()))
    return file


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--remove", "{file}"], "{file}"),
        (["--remove", "{most}"], "{most} would remove 38 of 40 ads"),
        (["--sync", "{cut}"], "{cut} would remove 38 of 40 ads"),
        (["--ads", "{file}"], "{file}, row 2, column 'ad_id': 40"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    flags, message, store, logged_retriever, refused, done, tmp_path
):
    ads = _ads(store, logged_retriever)
    files = {
        "file": _write(tmp_path / "all.csv", ads),
        "cut": _write(tmp_path / "cut.csv", dict([*ads.items()][:2])),
        "most": _write(tmp_path / "most.csv", dict([*ads.items()][2:])),
    }
    words = [word.format(**files) for word in flags]
    to = ("--model", logged_retriever, "--output", store.output)
    assert message.format(**files) in refused(index, *to, *words)
    if "{cut}" in flags or "{most}" in flags:
        printed = done(index, *to, *words, "--allow-lost-ads")
        assert " has 2 ads: 38 removed" in printed
