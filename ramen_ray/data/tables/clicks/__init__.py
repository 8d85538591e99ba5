"""The import of clicks: queries and ads numbered, clicks summed, splits decided, tables written."""
