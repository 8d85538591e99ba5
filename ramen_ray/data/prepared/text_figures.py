"""Of a table's texts: how many tokens a vocabulary does not know, how many an encoder confuses."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramen_ray.data.prepared.tokens import TokenTable

TOKENS_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class TextFigures:
    """Counts of a table's texts and tokens.

    Attributes:
        texts: rows of the table.
        distinct: different texts among them, as the encoder gets them: after truncation.
        tokens: of all texts, without special ones such as [CLS].
        unknown: tokens that stand for what the vocabulary does not have, such as [UNK].
    """

    texts: int
    distinct: int
    tokens: int
    unknown: int

    @property
    def share_unknown(self) -> float:
        """Share of the tokens that are unknown."""
        return self.unknown / self.tokens if self.tokens else 0.0

    @property
    def share_repeated(self) -> float:
        """Share of the texts that the encoder cannot tell from an earlier one."""
        return 1 - self.distinct / self.texts if self.texts else 0.0


def measure_texts(
    folder: Path, tables: list[str], unknown: int | None, num_special: int
) -> dict[str, TextFigures]:
    """Count the texts and tokens of the prepared ``tables`` in ``folder``.

    Args:
        folder: of a :class:`~ramen_ray.data.prepared.folder.Prepared`.
        tables: its tables of texts.
        unknown: the token for what the vocabulary does not have, if there is one.
        num_special: how many special tokens each text has.
    """
    opened = {table: TokenTable.open(folder / "tokens" / table) for table in tables}
    return {table: _measure(tokens, unknown, num_special) for table, tokens in opened.items()}


def _measure(table: TokenTable, unknown: int | None, num_special: int) -> TextFigures:
    num_tokens = len(table.token_ids)
    starts = [] if unknown is None else range(0, num_tokens, TOKENS_AT_ONCE)
    num_unknown = sum(
        int(np.count_nonzero(table.token_ids[start : start + TOKENS_AT_ONCE] == unknown))
        for start in starts
    )
    distinct = len(np.unique(table.hashes))
    return TextFigures(len(table), distinct, num_tokens - num_special * len(table), num_unknown)
