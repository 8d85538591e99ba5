"""OAK, which enriches queries by their anchors: docs/evidence/oak.md."""
