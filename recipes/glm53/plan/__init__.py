"""Plans: what a deployment will cost, computed from the model's config.json before anything is started."""
