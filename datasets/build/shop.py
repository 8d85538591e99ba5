"""Make the files of a shop that does not exist: its catalogue, clicks and sessions of two weeks.

    python datasets/build/shop.py

A visitor wants something: a kind of product, with some features. They search for it in words of
their own, once or a few times, and click on products that have these features. So words of one
want occur in one session, products of one want are clicked together, and few words of a query are
those of a title. In the second week there are new products, and some are gone.

Spare parts have a number, as in catalogues, and no word of the product that they fit; visitors name
them by that product, or open them from its page. So only sessions say which part fits what, and
many a part has no click on a result at all.
"""

import argparse
import csv
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np

Words = tuple[str, ...]
"""The words for one thing: the first is the catalogue's, all are visitors'."""

KINDS: dict[str, list[Words]] = {
    "shoes": [
        ("hiking boots", "walking boots", "trekking shoes", "mountain boots"),
        ("running shoes", "joggers", "trainers for running", "jogging shoes"),
        ("sandals", "summer shoes", "open shoes", "flip flops"),
        ("slippers", "house shoes", "indoor shoes"),
    ],
    "jackets": [
        ("rain jacket", "raincoat", "waterproofs", "anorak"),
        ("down jacket", "puffer", "winter jacket", "quilted coat"),
        ("fleece", "fleece jumper", "polar fleece"),
        ("softshell", "windbreaker", "wind jacket"),
    ],
    "camping": [
        ("tent", "dome tent", "shelter for camping", "igloo tent"),
        ("sleeping bag", "mummy bag", "bag to sleep outside"),
        ("camping stove", "gas cooker", "burner for camping", "hob"),
        ("headlamp", "head torch", "forehead light"),
        ("sleeping mat", "air bed", "camping mattress"),
    ],
    "bags": [
        ("backpack", "rucksack", "daypack", "hiking bag"),
        ("suitcase", "trolley", "luggage", "cabin case"),
        ("bum bag", "waist pack", "hip bag"),
    ],
    "cycling": [
        ("bike helmet", "cycle helmet", "bicycle hat"),
        ("bike lock", "chain lock", "d-lock", "lock for bicycle"),
        ("bike light", "cycle lamp", "bicycle light set"),
        ("panniers", "bike bags", "cycle bags"),
    ],
    "kitchen": [
        ("kettle", "water boiler", "tea kettle"),
        ("frying pan", "skillet", "pan for eggs"),
        ("coffee grinder", "coffee mill", "burr grinder"),
        ("lunch box", "bento", "food container"),
        ("water bottle", "flask", "canteen", "drinking bottle"),
    ],
}
FEATURES: list[Words] = [
    ("waterproof", "rainproof", "for rain", "dry"),
    ("ultralight", "lightweight", "very light", "light"),
    ("women", "ladies", "for her"),
    ("men", "mens", "for him"),
    ("kids", "children", "junior"),
    ("recycled", "sustainable", "eco"),
    ("insulated", "warm", "thermal"),
    ("foldable", "collapsible", "packable"),
    ("titanium", "ti"),
    ("leather", "nubuck"),
    ("XL", "extra large", "big"),
    ("rechargeable", "usb", "with battery"),
    ("red", "crimson"),
    ("black", "dark"),
    ("green", "olive"),
    ("blue", "navy"),
]
PARTS: list[Words] = [
    ("strap", "belt", "sling"),
    ("buckle", "clasp", "clip"),
    ("handle", "grip", "knob"),
    ("seal", "gasket", "rubber ring"),
    ("cover", "lid", "cap"),
    ("clamp", "bracket", "holder"),
]
BRANDS = [
    "Norvik",
    "Aldana",
    "Petrel",
    "Kestrel",
    "Bramble",
    "Tundra",
    "Solano",
    "Varga",
    "Ostro",
    "Lumen",
    "Ferro",
    "Calder",
]
MODELS = [
    "Trail",
    "Peak",
    "Drift",
    "Ridge",
    "Nova",
    "Pico",
    "Alto",
    "Terra",
    "Luna",
    "Vento",
    "Sierra",
    "Rio",
    "Atlas",
    "Mira",
    "Polar",
]
FIRST_DAY = date(2026, 6, 1)
DAYS_A_WEEK, SECONDS_A_DAY = 7, 86_400
PRODUCTS, NEW_PRODUCTS, ENDED = 1_500, 150, 120
SPARE_PARTS, FIRST_PART = 400, 5_000
WANTS, VISITS_A_WEEK, PART_VISITS_A_WEEK = 900, 4_000, 2_400
SESSIONS_A_WEEK = VISITS_A_WEEK + PART_VISITS_A_WEEK


@dataclass(frozen=True)
class Product:
    """An ad: a kind of product with features, from a brand, or a spare part of one."""

    ad_id: str
    category: str
    kind: Words
    features: frozenset[int]
    brand: str
    model: str
    title: str
    appeal: float
    fits: "Product | None" = None  # what it is a spare part of


@dataclass(frozen=True)
class Event:
    """A search, and the ad that was opened after it, if any."""

    session: int
    time: int
    query: str
    ad_id: str
    is_result: bool = True  # opened among the search's results


class Shop:
    """Draws products and visits."""

    def __init__(self, seed: int) -> None:
        """Draw what visitors want, some of it often."""
        self._draw = np.random.default_rng(seed)
        self._draw_parts = np.random.default_rng([seed, 1])
        self._kinds = [(category, kind) for category, kinds in KINDS.items() for kind in kinds]
        self._wants = [self._want() for _ in range(WANTS)]
        popularity = 1 / np.arange(2, WANTS + 2)
        self._how_often = popularity / popularity.sum()

    def _want(self) -> tuple[int, frozenset[int]]:
        kind = int(self._draw.integers(len(self._kinds)))
        return kind, self._features(int(self._draw.integers(0, 4)))

    def _features(self, count: int) -> frozenset[int]:
        return frozenset(self._draw.choice(len(FEATURES), count, replace=False).tolist())

    def products(self, first: int, count: int) -> list[Product]:
        """Draw products, numbered from ``first``."""
        return [self._product(number) for number in range(first, first + count)]

    def _product(self, number: int) -> Product:
        category, kind = self._kinds[int(self._draw.integers(len(self._kinds)))]
        features = self._features(int(self._draw.integers(1, 5)))
        brand, model = (str(self._draw.choice(names)) for names in (BRANDS, MODELS))
        shown = " ".join(FEATURES[one][0] for one in sorted(features))
        title = f"{brand} {model} {number % 90 + 10} {kind[0]} {shown}"
        return Product(
            f"P{number:05d}",
            category,
            kind,
            features,
            brand,
            model,
            title,
            float(self._draw.pareto(1.2)),
        )

    def spare_parts(self, products: list[Product]) -> list[Product]:
        """Draw spare parts of some products."""
        codes = self._draw_parts.choice(10_000, SPARE_PARTS, replace=False).tolist()
        return [
            self._spare_part(products, f"P{number:05d}", code)
            for number, code in enumerate(codes, FIRST_PART)
        ]

    def _spare_part(self, products: list[Product], ad_id: str, code: int) -> Product:
        fits = products[int(self._draw_parts.integers(len(products)))]
        kind = PARTS[int(self._draw_parts.integers(len(PARTS)))]
        return replace(
            fits,
            ad_id=ad_id,
            category="spare parts",
            kind=kind,
            title=f"{kind[0]} {code:04d}",
            fits=fits,
        )

    def week(self, products: list[Product], monday: date, first_session: int) -> list[Event]:
        """Draw the visits of a week, in the order of time."""
        midnight = int(datetime(monday.year, monday.month, monday.day, tzinfo=UTC).timestamp())
        seconds = DAYS_A_WEEK * SECONDS_A_DAY
        starts = np.sort(self._draw.integers(0, seconds, VISITS_A_WEEK))
        visits = [self._visit(products, midnight + start) for start in starts.tolist()]
        parts = [product for product in products if product.fits]
        starts = self._draw_parts.integers(0, seconds, PART_VISITS_A_WEEK)
        visits += [self._part_visit(parts, midnight + start) for start in starts.tolist()]
        visits.sort(key=lambda events: events[0].time)
        return [
            replace(event, session=first_session + number)
            for number, events in enumerate(visits)
            for event in events
        ]

    def _part_visit(self, parts: list[Product], time: int) -> list[Event]:
        """Search for a product, and open its spare part, from its page or by a search."""
        draw = self._draw_parts
        part = parts[int(draw.integers(len(parts)))]
        assert part.fits is not None
        named = f"{part.brand} {part.model} {draw.choice(part.fits.kind)}".lower()
        search = Event(0, time, named, part.fits.ad_id)
        if draw.random() < 0.7:
            opened = Event(0, time + 30, named, part.ad_id, is_result=False)
        else:
            opened = Event(0, time + 60, f"{draw.choice(part.kind)} for {named}", part.ad_id)
        return [search, opened]

    def _visit(self, products: list[Product], time: int) -> list[Event]:
        number, features = self._wants[int(self._draw.choice(WANTS, p=self._how_often))]
        kind = self._kinds[number][1]
        offered = [one for one in products if one.kind == kind]
        fits = np.array([4.0 ** len(one.features & features) * one.appeal for one in offered])
        events = []
        for _ in range(int(self._draw.integers(1, 6))):
            query = self._query(kind, features)
            clicked = offered[int(self._draw.choice(len(offered), p=fits / fits.sum()))]
            is_click = self._draw.random() < 0.7
            events.append(Event(0, time, query, clicked.ad_id if is_click else ""))
            time += int(self._draw.integers(15, 180))
        return events

    def _query(self, kind: Words, features: frozenset[int]) -> str:
        said = [str(self._draw.choice(FEATURES[one])) for one in sorted(features)]
        kept = [word for word in said if self._draw.random() < 0.7]
        noun = str(self._draw.choice(kind))
        words = [noun, *kept] if self._draw.random() < 0.4 else [*kept, noun]
        return " ".join(words).lower()


def write_week(folder: Path, products: list[Product], events: list[Event]) -> None:
    """Write a week's catalogue, clicks by day, and sessions."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(
        folder / "catalogue.csv",
        ["ad_id", "title", "category", "brand"],
        [[one.ad_id, one.title, one.category, one.brand] for one in products],
    )
    days = [datetime.fromtimestamp(one.time, UTC).date().isoformat() for one in events]
    clicks = Counter(
        (day, one.query, one.ad_id)
        for day, one in zip(days, events, strict=True)
        if one.ad_id and one.is_result
    )
    _write(
        folder / "clicks.csv",
        ["date", "query", "ad_id", "clicks"],
        [[*key, count] for key, count in sorted(clicks.items())],
    )
    _write(
        folder / "sessions.csv",
        ["session_id", "time", "query", "ad_id"],
        [[one.session, one.time, one.query, one.ad_id] for one in events],
    )


def _write(file: Path, header: list[str], rows: list[list[object]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened, lineterminator="\n")
        table.writerow(header)
        table.writerows(rows)


def main() -> None:
    """Write both weeks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "shop")
    output: Path = parser.parse_args().output
    shop = Shop(seed=0)
    products = shop.products(0, PRODUCTS)
    parts = shop.spare_parts(products)
    first = [*products, *parts]
    write_week(output / "week_1", first, shop.week(first, FIRST_DAY, 0))
    left = [one for one in products if int(one.ad_id[1:]) % (PRODUCTS // ENDED)]
    fitting = [part for part in parts if part.fits in left]
    later = [*left, *shop.products(PRODUCTS, NEW_PRODUCTS), *fitting]
    monday = FIRST_DAY + timedelta(days=DAYS_A_WEEK)
    write_week(output / "week_2", later, shop.week(later, monday, SESSIONS_A_WEEK))


if __name__ == "__main__":
    main()
