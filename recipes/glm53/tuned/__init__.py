"""A fine-tuned GLM-5.3, from the folder that training wrote to a deployment on reserved capacity."""
