"""How good the rows, the order, and the forecasts are."""
