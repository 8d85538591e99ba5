"""Losses, and the weights of the regularisers among them."""
