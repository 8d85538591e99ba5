"""What each step draws: the order of queries, their ads, anchors and hard negatives."""
