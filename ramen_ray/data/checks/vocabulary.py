"""Warnings about texts that an encoder does not know or cannot tell apart."""

from collections.abc import Mapping

from ramen_ray.data.findings import Finding
from ramen_ray.data.prepared.tokens import TextFigures

WORTH_A_WARNING = 0.01


def text_findings(figures: Mapping[str, TextFigures]) -> list[Finding]:
    """Warn of the tables with many unknown tokens, or many texts of the same tokens."""
    found = []
    for table, of_table in figures.items():
        if of_table.share_unknown >= WORTH_A_WARNING:
            message = (
                f"{of_table.share_unknown:.1%} of the tokens are unknown to the encoder's "
                f"vocabulary"
            )
            found.append(Finding("warning", table, message, "take an encoder for these texts"))
        if of_table.share_repeated >= WORTH_A_WARNING:
            message = (
                f"{of_table.share_repeated:.1%} of the texts have the tokens of an earlier one, so "
                f"the encoder cannot tell them apart"
            )
            advice = "raise encoder.max_length if their ends differ, or drop repeated texts"
            found.append(Finding("warning", table, message, advice))
    return found
