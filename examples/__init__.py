"""What shows the method, and stands on the library's leaves."""
