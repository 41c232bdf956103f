"""Products with weights in which a row's result does not depend on how many rows there are."""
