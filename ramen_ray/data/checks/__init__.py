"""What is wrong with a dataset directory: rules, and the findings of those that are broken."""
