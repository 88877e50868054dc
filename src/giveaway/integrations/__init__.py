"""Callbacks for the trainers of other libraries; each needs that library, and nothing else of giveaway needs it."""
