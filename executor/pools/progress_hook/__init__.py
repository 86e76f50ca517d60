"""The folder on the module path of every job; its modules run without Dovetail."""
