"""Workers in other processes: messages to them, their answers, and what serves them there. No transport of its own."""
