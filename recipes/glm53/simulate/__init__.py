"""A recipe under agents' load, on Dynamo's own mocker workers and KV router: which choices pay, and how much."""
