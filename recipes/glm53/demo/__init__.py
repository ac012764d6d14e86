"""An agent workload driven through the OpenAI API, and the report of what the deployment did with it."""
