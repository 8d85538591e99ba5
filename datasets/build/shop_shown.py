"""Make the log of a shop whose search shows ten products, some of which only attract.

    python datasets/build/shop_shown.py --output FOLDER

The products are those of shop.py; an eighth are bait, whose titles end in words that draw clicks
whatever was asked. Search ranks the products of a category by how well they answer, by how they
sell, and by chance. A product is seen the less, the lower it stands, and one that is seen is
clicked if it answers or is bait. What answers what is known of every pair: :func:`grade_of`.
"""

import argparse
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shop import FEATURES, PRODUCTS, Product, Shop, _write

BAIT = "bestseller sale"
BAIT_SHARE, SHOWN, SEARCHES = 0.12, 10, 24_000
SEED = 0


@dataclass(frozen=True)
class Need:
    """What a query asks for."""

    kind: tuple[str, ...]
    features: frozenset[int]


def grade_of(need: Need, product: Product) -> float:
    """Return which share of the features asked for a product of the kind has; 0 for other kinds."""
    if product.kind != need.kind:
        return 0.0
    return len(need.features & product.features) / len(need.features) if need.features else 1.0


class ShownShop(Shop):
    """Draws products, searches, and what is shown and clicked.

    Attributes:
        catalogue: all products.
        needs: by query, what it asks for.
        log: views and clicks by query, number of the product, and position from 1.
    """

    def __init__(self, seed: int = SEED, searches: int = SEARCHES) -> None:
        """Draw them all."""
        super().__init__(seed)
        self._chance = np.random.default_rng([seed, 2])
        self.catalogue = [self._baited(product) for product in self.products(0, PRODUCTS)]
        self.needs: dict[str, Need] = {}
        self.log: Counter[tuple[str, int, int]] = Counter()
        self.clicks: Counter[tuple[str, int, int]] = Counter()
        for _ in range(searches):
            self._search()

    def _baited(self, product: Product) -> Product:
        if self._chance.random() > BAIT_SHARE:
            return product
        return replace(product, title=f"{product.title} {BAIT}")

    def _search(self) -> None:
        wanted = self._wants[int(self._draw.choice(len(self._wants), p=self._how_often))]
        category, kind = self._kinds[wanted[0]]
        kept = [one for one in sorted(wanted[1]) if self._draw.random() < 0.7]
        words = [str(self._draw.choice(FEATURES[one])) for one in kept]
        query = " ".join([*words, str(self._draw.choice(kind))]).lower()
        need = self.needs.setdefault(query, Need(kind, frozenset(kept)))
        offered = [n for n, one in enumerate(self.catalogue) if one.category == category]
        products = [self.catalogue[number] for number in offered]
        grades = np.array([grade_of(need, one) for one in products])
        is_bait = np.array([one.title.endswith(BAIT) for one in products])
        sales = np.log1p([one.appeal for one in products])
        noise = self._chance.normal(0, 0.6, len(products))
        ranked = np.argsort(-(2 * grades + 0.25 * sales + 1.2 * is_bait + noise))[:SHOWN]
        attracts = np.where(is_bait, 0.4 + 0.1 * grades, 0.04 + 0.45 * grades**2)
        for position, place in enumerate(ranked.tolist(), 1):
            key = query, offered[place], position
            self.log[key] += 1
            is_seen = self._chance.random() < position**-0.8
            self.clicks[key] += int(is_seen and self._chance.random() < attracts[place])

    def write(self, folder: Path) -> None:
        """Write the catalogue and the log as CSV."""
        folder.mkdir(parents=True, exist_ok=True)
        rows: list[list[object]] = [[product.ad_id, product.title] for product in self.catalogue]
        _write(folder / "catalogue.csv", ["ad_id", "title"], rows)
        log: list[list[object]] = [
            [query, self.catalogue[number].ad_id, position, views, self.clicks[key]]
            for key, views in sorted(self.log.items())
            for query, number, position in [key]
        ]
        _write(folder / "log.csv", ["query", "ad_id", "position", "views", "clicks"], log)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    ShownShop().write(parser.parse_args().output)


if __name__ == "__main__":
    main()
