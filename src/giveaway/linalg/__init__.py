"""Linear algebra that heads and networks share; it knows nothing of losses or records."""
