"""Workers in other processes: messages to them, their answers, and the service that runs them. Has no transport."""
