"""The page an audit ends in."""
