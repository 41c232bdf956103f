"""From a request to token ids: template, limits, images. Runs on the tokenizer thread."""
