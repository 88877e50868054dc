"""Truth for language models: small GPTs fine-tuned on halves of AG News, in plain torch."""
