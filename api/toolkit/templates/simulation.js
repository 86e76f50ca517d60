"use strict";
(() => {
  const WHOLE = 100000, LEAST = 50;
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const STEPS = [0.01, 0.1, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].map(days => days * 86400)];
  const every = [...document.querySelectorAll(".lanes")];
  if (!every.length) return;
  const end = Number(every[0].dataset.end);
  const names = JSON.parse(document.getElementById("names").textContent);
  const from = document.getElementById("from"), width = document.getElementById("width"), who = document.getElementById("who");
  let [begin, , length] = every[0].getAttribute("viewBox").split(" ").map(Number);

  const time = s => {
    const [unit, name] = UNITS.find(([each]) => s >= 2 * each) || [1, "s"];
    return `${Number((s / unit).toPrecision(4))} ${name}`;
  };
  const ticks = () => {
    const low = begin / WHOLE * end, span = length / WHOLE * end;
    const step = STEPS.find(each => span / each <= 7) || 864e6;
    const [unit, name] = UNITS.find(([each]) => step >= each) || [1, "s"];
    const made = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= low + span * (1 + 1e-9); k++) {
      const text = document.createElementNS(every[0].namespaceURI, "text");
      text.setAttribute("x", `${100 * (k * step - low) / span}%`);
      text.setAttribute("y", "15");
      text.setAttribute("text-anchor", "middle");
      text.textContent = k ? `${Number((k * step / unit).toPrecision(6))} ${name}` : "0";
      made.push(text);
    }
    return made;
  };
  const show = () => {
    for (const lanes of every) {
      const rows = lanes.viewBox.baseVal.height;
      lanes.setAttribute("viewBox", `${begin} 0 ${length} ${rows}`);
      lanes.parentElement.querySelector(".times").replaceChildren(...ticks());
    }
  };
  const moved = () => {
    length = LEAST * (WHOLE / LEAST) ** (width.value / 1000);
    begin = (WHOLE - length) * from.value / 1000;
    show();
  };
  const parsed = new Map();
  const barsOf = lanes => {
    if (!parsed.has(lanes)) {
      parsed.set(lanes, [...lanes.querySelectorAll("[data-jobs]")].flatMap(path => {
        const jobs = path.dataset.jobs.split(","), half = parseFloat(path.style.strokeWidth) / 2;
        return [...path.getAttribute("d").matchAll(/M(\d+) ([\d.]+)h(\d+)/g)].map(([, x, y, w], k) =>
          [Number(x), Number(x) + Number(w), Number(y) - half, Number(y) + half, Number(jobs[k])]);
      }));
    }
    return parsed.get(lanes);
  };
  const tell = event => {
    const lanes = event.currentTarget, box = lanes.getBoundingClientRect(), rows = lanes.viewBox.baseVal.height;
    const x = begin + (event.clientX - box.left) / box.width * length, y = (event.clientY - box.top) / box.height * rows;
    const hit = barsOf(lanes).find(([a, b, top, low]) => a <= x && x <= b && top <= y && y <= low);
    who.textContent = hit
      ? `${names[hit[4]] ?? "job " + hit[4]} on GPU ${Math.floor(y)}, ${time(hit[0] / WHOLE * end)} to ${time(hit[1] / WHOLE * end)}`
      : `GPU ${Math.floor(y)}, ${time(x / WHOLE * end)}: nobody`;
  };
  for (const lanes of every) {
    lanes.addEventListener("pointermove", tell);
    lanes.addEventListener("pointerdown", tell);
  }
  width.value = 1000 * Math.log(length / LEAST) / Math.log(WHOLE / LEAST);
  from.value = length < WHOLE ? 1000 * begin / (WHOLE - length) : 0;
  from.addEventListener("input", moved);
  width.addEventListener("input", moved);
  document.querySelector(".window").hidden = false;
})();
