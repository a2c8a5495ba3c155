"""Pure decisions: values in, values out; the clock and the dice are arguments."""
