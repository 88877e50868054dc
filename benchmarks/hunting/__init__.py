"""One attack a file: `hunt(count, seed)` tries to break one promise `count` times and returns what it counted."""
