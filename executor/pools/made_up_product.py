"""Multiply made-up whole numbers in two ways and print whether both agree.

A standalone program that stands in for the comparison of matrix products on a GPU. It runs at a
share of processor time, and its result says nothing about any GPU.
"""

import json

SIZE = 60


def main() -> None:
    """Print the number of different elements as a line of JSON."""
    numbers = [[(7 * row + 3 * column) % 11 for column in range(SIZE)] for row in range(SIZE)]
    turned = list(zip(*numbers, strict=True))
    rows = [[sum(map(int.__mul__, row, column)) for column in turned] for row in numbers]
    columns = [
        [sum(x * y for x, y in zip(row, other, strict=True)) for row in numbers] for other in turned
    ]
    wrong = sum(rows[i][k] != columns[k][i] for i in range(SIZE) for k in range(SIZE))
    print(json.dumps({"made_up": True, "wrong": wrong}))


if __name__ == "__main__":
    main()
