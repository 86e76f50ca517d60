"""From mathematics to a proven answer: backends, and the round that uses them."""
