"""From logits to a token, per row: penalties, filters, seeded draws, log-probabilities."""
