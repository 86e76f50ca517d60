"""The live service: it decides every round, carries out what was decided and learns from it."""
