"""Membership-inference attacks, each a pure function of Signals, and the training of the models that give them."""
