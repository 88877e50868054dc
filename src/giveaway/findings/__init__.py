"""What follows from an audit: who else, which groups, what changed, what was measured, whether rules are met."""
