"""Lists of names of brands, places and the like, and the texts that contain them."""
