"""``glm53 doctor``: what is wrong with a host before anything is launched on it, from metadata and files alone.

Nothing upstream is imported, so it answers in an environment in which vLLM no longer starts.
"""
