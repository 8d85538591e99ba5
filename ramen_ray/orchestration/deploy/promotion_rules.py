"""What a user may set of a promotion, as flags of its command too."""

from typing import Annotated, Literal

from pydantic import Field

from ramen_ray.config import Section


class PromotionRules(Section):
    """What decides, and what is allowed."""

    metric: str | None = None
    """Test metric that decides, such as R@10; default: the run's selection metric."""
    test: str | None = None
    """Dataset directory whose test queries decide; default: the one that the run was trained on."""
    not_worse_by: Annotated[float, Field(ge=0)] = 0.0
    """Points of the metric that it may be worse by, such as 0.5: for fresh models with new ads."""
    veto: Literal["bad@1", "bad@5", "bad@10"] | None = None
    """Share of bad answers, by judgements, that must not be higher by more than noise; too few
    judgements to tell veto it too."""
    force: bool = False
    """Promote it even if it does not beat the champion, or cannot be compared with it."""
    allow_lost_filters: bool = False
    """Promote it even if clients can filter the champion's answers by more columns than its own."""
    allow_unknown_training: bool = False
    """Let test queries decide that one of the two may have been trained on, as data are gone."""
