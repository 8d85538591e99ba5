"""Lists of names of brands, places and so on, and the texts that contain them."""
