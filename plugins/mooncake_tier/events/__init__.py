"""What a router is told of the store's blocks: that they are there, and that they are gone."""
