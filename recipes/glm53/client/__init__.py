"""Commands that use a deployment over its OpenAI API: list models, chat, and run batches."""
