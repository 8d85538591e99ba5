"""The memory-mapped arrays that training reads, and the stages that make them from a dataset."""
