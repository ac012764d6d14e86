"""What the MLA cache's rows cost in accuracy: of rows, of attention, and of a model's next tokens."""
