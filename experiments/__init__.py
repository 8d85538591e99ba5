"""Methods to compare with, which are not served; each hooks into ramen_ray by its public seams."""
