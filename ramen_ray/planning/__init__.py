"""What each stage needs for data of given sizes, from unit costs that were measured."""
