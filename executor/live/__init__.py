"""The live service: it decides every round, carries out its decisions and learns from them."""
