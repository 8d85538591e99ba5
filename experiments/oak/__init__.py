"""OAK, which enriches queries by their anchors: docs/oak.md."""
