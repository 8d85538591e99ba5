"""Answers among ads of some markets or categories, against a brute-force search of those ads."""

import re
from typing import NamedTuple

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stores import FLAT, Store
from support import MAX_LENGTH, prepare_in_process, with_tables, write_rows

from jobs import ask, index, ingest, predict, promote
from ramen_ray.answering.retriever import Retriever
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.retrieval.index import FEWEST_IVF_PQ_ADS, filled_index
from ramen_ray.method.retrieval.retriever_folder import write_retriever
from ramen_ray.notebook import load_retriever

QUERIES = ["robin nest", "oak", "ship", "saw", "tango waltz"]
WORDS = ("robin", "oak", "elm", "ship", "saw", "waltz", "wren", "pine", "brig", "rasp")
MARKETS = ("DE", "FR", "a, b")
KINDS = ("new", "used")
RARE = {10: "LI", 20: "MC", 31: "MC", 40: "MC"}
FEWER = 4_000


class Large(NamedTuple):
    """A retriever of many ads, the vectors that its scores are of, and its columns."""

    model: Retriever
    vectors: np.ndarray
    columns: dict[str, np.ndarray]


def _market(number):
    return RARE.get(number) or (MARKETS[number % 3] if number % 7 else "")  # some have none


def _write(file, ads):
    columns = ["ad_id", *next(iter(ads.values()))]
    return write_rows(file, " ".join(columns), [(ad, *of.values()) for ad, of in ads.items()])


@pytest.fixture(scope="module")
def catalogue():
    texts = [f"{one} {other}" for one in WORDS for other in WORDS if one != other]
    return {
        f"A{n}": {"title": text, "market": _market(n), "state": KINDS[n % 2]}
        for n, text in enumerate(texts)
    }


@pytest.fixture(scope="module")
def shop(catalogue, tmp_path_factory):
    """A dataset that was imported with columns to filter by."""
    folder = tmp_path_factory.mktemp("filters")
    _write(folder / "ads.csv", catalogue)
    clicks = [[ad["title"], key] for key, ad in catalogue.items()]
    write_rows(folder / "clicks.csv", "query ad_id", clicks)
    with pytest.MonkeyPatch.context() as patched:
        words = ["tables", "--clicks", folder / "clicks.csv", "--ads", folder / "ads.csv"]
        words += ["--columns.ad-text", "title", "--columns.ad-filters", "market", "state"]
        patched.setattr("sys.argv", ["job", *map(str, words), "--output", str(folder / "shop")])
        ingest.main()
    return folder / "shop"


@pytest.fixture(scope="module")
def store(shop, encoder_path, output):
    """A store with a champion on the dataset."""
    data = prepare_in_process(
        Dataset(shop), shop.parent / "prepared", encoder_path, MAX_LENGTH, False
    )
    store = Store(output, data, encoder_path)
    store.champion("filtered", 0.0, shop)
    return store


@pytest.fixture(scope="module")
def champion(store):
    return store.registry.load("models:/filtered@champion")


def _answers(model, **params):
    found = model.answer(QUERIES, **params).to_pylist()
    return [dict(zip(one["ad_ids"], one["scores"], strict=True)) for one in found]


def _expected(model, ads, top_k, **wanted):
    """Answer with all ads, and keep the best of those that match."""
    of_all = _answers(model, top_k=len(model.ads))
    kept = [
        [(ad, score) for ad, score in one.items() if _matches(ads[ad], wanted)] for one in of_all
    ]
    return [dict(one[:top_k]) for one in kept]


def _matches(ad, wanted):
    return all(
        ad[name] == value if isinstance(value, str) else ad[name] in value
        for name, value in wanted.items()
    )


def test_a_filter_that_no_ad_matches_is_an_empty_answer_with_a_reason(champion):
    for wanted, reason in (
        ({"market": "US"}, "no ad has the market 'US'"),
        ({"market": ["US", "CH"], "state": "new"}, "no ad has the market 'US' or 'CH'"),
        ({"market": "LI", "state": "used"}, "no ad has the wanted values of market, state"),
    ):
        rows = champion.answer([*QUERIES, ""], filter=wanted, min_score=0.1).to_pylist()
        assert all(row["error"].startswith(reason) for row in rows[:-1])
        assert rows[-1]["error"] == "the query is empty"
        assert not any(row["ads"] for row in rows)
    answers = champion.answer(QUERIES, filter={"market": ["US", "DE"]})
    assert answers == champion.answer(QUERIES, filter={"market": "DE"})
    for wanted in ({"market": 7}, {"market": []}, {"country": "DE"}):
        with pytest.raises(champion.refusal, match=next(iter(wanted))):
            champion.answer(QUERIES, filter=wanted)


def _by_a_loop(answer, ads, most, top_k):
    taken = []
    for ad in answer:
        same = {name: [ads[other][name] for other in taken].count(ads[ad][name]) for name in most}
        if all(not ads[ad][name] or same[name] < most[name] for name in most):
            taken.append(ad)
    return taken[:top_k]


@pytest.mark.parametrize(
    ("most", "top_k"), [({"market": 1}, 7), ({"state": 3}, 90), ({"market": 2, "state": 4}, 7)]
)
def test_at_most_so_many_have_one_value(most, top_k, champion, catalogue):
    of_all = _answers(champion, top_k=90)
    found = champion.answer(QUERIES, top_k, at_most=most, columns=["state", "market"]).to_pylist()
    for answer, row in zip(of_all, found, strict=True):
        assert row["ad_ids"] == _by_a_loop(answer, catalogue, most, top_k)
        scores = [answer[ad] for ad in row["ad_ids"]]
        np.testing.assert_allclose(row["scores"], scores, atol=1e-6)
        assert list(row["columns"]) == ["state", "market"]
        for name, values in row["columns"].items():
            assert values == [catalogue[ad][name] or None for ad in row["ad_ids"]]


def test_commands_and_notebooks_filter(store, champion, done, refused, catalogue):
    uri = "models:/filtered@champion"
    flags = ("--model", uri, "--output", store.output, "--top-k", "90")
    printed = done(ask, "oak", *flags, "--filter", "market=DE", "market=FR", "state=new")
    cells = [line.split("│") for line in printed.splitlines() if line.startswith("│")]
    wanted = {"market": ["DE", "FR"], "state": ["new"]}
    expected = _expected(champion, catalogue, 90, **wanted)[1]
    assert [row[3].strip() for row in cells] == list(expected)
    retriever = load_retriever(uri, store.output)
    found = retriever.search(["oak"], 90, filter=wanted, min_score=0.2)
    assert found["ad_id"].to_pylist() == [ad for ad, s in expected.items() if s >= 0.2]
    (error,) = retriever.search(["oak"], filter={"market": "US"})["error"].to_pylist()
    assert error.startswith("no ad has the market 'US'")
    limited = ("--at-most", "market=1", "--with-columns", "state")
    lines = [line.split("│") for line in done(ask, "oak", *flags, *limited).splitlines()]
    rows = [[cell.strip() for cell in line[3:5]] for line in lines if len(line) > 5]
    best = retriever.search(["oak"], 90, at_most={"market": 1}, columns=["state"])
    assert rows == [list(row.values()) for row in best.select(["ad_id", "state"]).to_pylist()]
    in_turn = _answers(champion, top_k=90)[1]
    assert [row[0] for row in rows] == _by_a_loop(in_turn, catalogue, {"market": 1}, 90)
    assert "--filter market: " in refused(ask, "oak", *flags, "--filter", "market")


def test_columns_follow_a_catalogue(store, shop, catalogue, done, refused, tmp_path):
    store.champion("following", 0.0, shop)
    registry = store.registry
    champion = "models:/following@champion"
    to = ("--model", champion, "--output", store.output)
    text = ("--columns.ad-text", "title")
    today = {ad: dict(values) for ad, values in catalogue.items()}
    del today["A3"]
    today["A0"]["market"] = "US"
    today["A1"]["market"] = ""
    today["A2"] |= {"title": "a new oak", "state": "old"}
    before = _answers(registry.load(champion), top_k=len(catalogue))
    sync = ("--sync", _write(tmp_path / "1.csv", today), *text)
    printed = done(index, *to, *sync)
    said = "1 with another text, 2 with other values to filter by, 1 removed"
    assert printed.startswith(f"models:/following/2 has 89 ads: {said}\n")
    synced = registry.load(champion)
    _check(synced, today, market="US")
    _check(synced, today, state="old")
    for old, new in zip(before, _answers(synced, top_k=len(today)), strict=True):
        stayed = {ad: old[ad] for ad in new if ad != "A2"}
        assert {ad: new[ad] for ad in stayed} == pytest.approx(stayed, abs=1e-6)
    assert "has 89 ads: nothing to change" in done(index, *to, *sync)

    added = {"N1": {"title": "an elm", "market": "US", "state": ""}}
    done(index, *to, "--ads", _write(tmp_path / "2.csv", added), *text)
    (tmp_path / "3.csv").write_text("ad_id\nA0\nA3\n")
    printed = done(index, *to, "--remove", tmp_path / "3.csv")
    assert "1 removed, 1 to be removed were not there" in printed
    now = {ad: values for ad, values in (today | added).items() if ad != "A0"}
    _check(registry.load(champion), now, market="US")

    lacking = {"N2": {"title": "an ash"}}
    assert "'market'" in refused(index, *to, "--ads", _write(tmp_path / "4.csv", lacking), *text)
    for flags in (("--ads", tmp_path / "2.csv"), ("--remove", tmp_path / "3.csv")):
        assert "--sync" in refused(index, *to, *flags, *text, "--columns.ad-filters", "state")
    others = {ad: {"title": one["title"], "shop": f"S{ad[-1]}"} for ad, one in now.items()}
    words = (*to, "--sync", _write(tmp_path / "5.csv", others), *text)
    flags = ("--columns.ad-filters", "shop")
    assert "market, state" in refused(index, *words, *flags)
    done(index, *words, *flags, "--allow-lost-filters")
    _check(registry.load(champion), others, shop="S4")
    empty = {ad: one | {"shop": ""} for ad, one in others.items()}
    words = (*to, "--sync", _write(tmp_path / "6.csv", empty), *text)
    assert "6.csv: " in refused(index, *words)
    done(promote, "--restore", "--name", "following", "--output", store.output)
    _check(registry.load(champion), now, market="US")


@pytest.mark.parametrize("lost", ["market, state", "state"])
def test_a_retriever_that_loses_filters_is_promoted_only_if_that_is_allowed(
    lost, store, shop, done, refused, tmp_path
):
    whole = Dataset(shop)
    ads = whole.read("ads").drop_columns("filter_state")
    if lost == "state":
        ads = ads.append_column("filter_state", pa.nulls(len(ads), pa.string()))
    else:
        ads = ads.drop_columns("filter_market")
    unfiltered = with_tables(whole, tmp_path / "unfiltered", {"ads": ads}).path
    name = f"lost-{lost[:5]}"
    store.champion(name, 1000.0, shop)
    words = (store.run(0.0, unfiltered), "--name", name, "--output", store.output)
    for force in ((), ("--force",)):
        error = refused(promote, *words, *force)
        assert lost in error
    printed = done(promote, *words, "--allow-lost-filters")
    assert re.search(rf"│ filters +│.+│ market, state │ +{lost} lost │", printed)


def _check(model, ads, **wanted):
    found = _answers(model, top_k=20, filter=wanted)
    assert found[1]
    expected = _expected(model, ads, 20, **wanted)
    assert [list(one) for one in found] == [list(one) for one in expected]


@pytest.fixture(scope="module", params=["half", "hnsw", "ivf_pq"])
def large(request, store, shop, tmp_path_factory):
    kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    draw = np.random.default_rng(3)
    model = store.model(0.0)
    write_retriever(folder, model, Dataset(shop), store.data, FLAT)
    number = FEWEST_IVF_PQ_ADS if kind == "ivf_pq" else FEWER
    vectors = draw.standard_normal((number, model.dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    made = filled_index(kind, vectors)
    faiss.write_index(made, str(folder / "index.faiss"))
    if kind == "ivf_pq":
        made.make_direct_map()
    if kind in ("half", "ivf_pq"):
        vectors = made.reconstruct_n(0, number)
    markets = draw.choice(["DE", "FR", "AT"], number, p=[0.02, 0.4, 0.58]).astype(object)
    markets[[*RARE]] = [*RARE.values()]
    columns = {"market": markets, "half": np.repeat(["first", "second"], number // 2)}
    names = [f"A{row}" for row in range(number)]
    ads = pa.table(
        {"ad_id": names, "text": names, **{f"filter_{k}": v for k, v in columns.items()}}
    )
    pq.write_table(ads, folder / "ads.parquet")
    return Large(Retriever(folder), vectors, columns)


def _brute_force(large, wanted):
    """Return the scores (queries, ads), -inf of ads that do not match."""
    queries = large.model.embed(QUERIES)
    matches = np.logical_and.reduce([large.columns[name] == one for name, one in wanted.items()])
    return np.where(matches, queries @ large.vectors.T, -np.inf)


def test_every_kind_of_index_finds_all_that_match(large):
    for wanted, number in (
        ({"market": "DE"}, 50),
        ({"market": "FR", "half": "second"}, 50),
        ({"market": "MC"}, 3),
        ({"market": "LI", "half": "second"}, 0),
    ):
        scores = _brute_force(large, wanted)
        found = large.model.answer(QUERIES, 50, wanted)
        rows = [[int(ad[1:]) for ad in ads] for ads in found["ad_ids"].to_pylist()]
        best = -np.sort(-scores, axis=1)[:, :number]
        for row, similar, answered, expected in zip(
            rows, scores, found["scores"].to_pylist(), best, strict=True
        ):
            np.testing.assert_allclose(answered, expected, atol=1e-5)
            np.testing.assert_allclose(similar[row], expected, atol=1e-5)


def test_of_more_ads_than_are_scanned_most_are_found(large, monkeypatch):
    search = large.model.nearest.__globals__["search_index"]  # of the code that is kept
    monkeypatch.setitem(search.__globals__, "MOST_SCANNED", 100)
    scores = _brute_force(large, {"market": "FR"})
    found = large.model.answer(QUERIES, 50, {"market": "FR"})
    best = np.argsort(-scores, axis=1)[:, :50]
    for ads, expected in zip(found["ad_ids"].to_pylist(), best, strict=True):
        own = {int(ad[1:]) for ad in ads}
        assert {*large.columns["market"][[*own]]} == {"FR"}
        assert len(own & {*expected}) >= 40


def test_a_table_of_queries_is_answered_with_what_matches(
    answered_here, champion, store, done, refused, tmp_path
):
    texts = [*QUERIES, ""]
    pq.write_table(pa.table({"text": texts}), tmp_path / "queries.parquet")
    words = ["--model", "models:/filtered@champion", "--queries", tmp_path / "queries.parquet"]
    words += ["--top-k", "40", "--output", store.output, "--answers"]
    filtered = ["--filter", "market=DE", "--min-score", "0.1"]
    limited = ["--at-most", "market=3", "--with-columns", "state"]
    for name, flags, params in (
        ("filtered", filtered, {"filter": {"market": "DE"}, "min_score": 0.1}),
        ("limited", limited, {"at_most": {"market": 3}, "columns": ["state"]}),
    ):
        done(predict, *words, tmp_path / name, *flags)
        answers = pq.read_table(tmp_path / name)
        expected = champion.answer(texts, 40, **params)
        for column in {*expected.column_names} - {"doubt", "scores"}:
            assert answers[column].to_pylist() == expected[column].to_pylist()
        of_both = (rows["scores"].to_pylist() for rows in (answers, expected))
        for scores, wanted in zip(*of_both, strict=True):
            np.testing.assert_allclose(scores, wanted, atol=1e-6)
    for other in (["--filter", "market=FR"], []):
        assert ": filter (" in refused(predict, *words, tmp_path / "filtered", *other)
    done(predict, *words, tmp_path / "none", "--filter", "market=US")
    *errors, empty = pq.read_table(tmp_path / "none")["error"].to_pylist()
    assert all(error.startswith("no ad has the market 'US'") for error in errors)
    assert empty == "the query is empty"
