"""The commands: each parses its flags, calls one function and sets the exit code."""
