"""Files and marked folders on disk: written atomically, readable by their owner alone."""
