"""Images in prompts: from a client's bytes to rows of embeddings that the language model reads."""
