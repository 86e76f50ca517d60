.PHONY: demo docs lint test

demo docs lint test:
	python3 run $@
