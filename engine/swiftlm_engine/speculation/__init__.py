"""Speculation that keeps the text: several tokens in one pass, checked by the model itself.

Drafts are guesses; every token is still drawn from the model's own logits with the row's own noise
(see sampling/row.py), and a draft is kept only as far as it equals those draws. So greedy text and
seeded samples are the same with and without, by construction and not by statistics.

(Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative Decoding", with
the acceptance test replaced by an exact coupling through shared Gumbel noise.)
"""
