"""Workers: who calls the recipe, where, and what happens when one of them dies."""
