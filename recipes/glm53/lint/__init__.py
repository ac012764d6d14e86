"""Checks of rendered text: what is read back from the files must agree, whoever wrote them."""
