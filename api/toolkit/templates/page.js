"use strict";
for (const table of document.querySelectorAll(".sortable")) {
  const body = table.tBodies[0];
  const key = (row, column) => {
    const text = row.cells[column].firstChild?.textContent.trim() ?? "";
    const number = Number.parseFloat(text.replaceAll(",", "").replace("∞", "Infinity"));
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === typeof b) return a.localeCompare(b, undefined, {numeric: true});
    return typeof a === "number" ? -1 : 1;
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.ariaSort === "ascending" ? -1 : 1;
      for (const other of head.parentElement.cells) other.ariaSort = null;
      head.ariaSort = sign > 0 ? "ascending" : "descending";
      body.append(...[...body.rows].sort((a, b) => sign * compare(key(a, column), key(b, column))));
    });
  });
}
