.PHONY: demo test lint

demo test lint:
	python3 run $@
