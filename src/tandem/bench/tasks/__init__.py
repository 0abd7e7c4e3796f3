"""Tasks with known answers: recall, arithmetic with steps, tool calls, fluency."""
