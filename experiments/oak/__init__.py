"""OAK, which enriches queries by their anchors: experiments/README.md."""
