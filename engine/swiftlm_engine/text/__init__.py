"""Text: chat templates on the way in; detokeniser, stop strings, reasoning and tool calls on the
way out."""
