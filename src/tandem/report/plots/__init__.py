"""Charts as plain numbers, and one module for each library that draws them."""
