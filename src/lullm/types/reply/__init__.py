"""The form of replies: how models write thoughts and calls, and what a request says of them."""
