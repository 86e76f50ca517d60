"use strict";
// Shows what changes: the service sends parts of the page as HTML, and each replaces its own.
(() => {
  const feed = document.body.dataset.feed, live = document.getElementById("live"), said = document.getElementById("said");
  let source = null, wait = 1000, timer = 0;

  // Makes `now` like `next`, keeping what has not changed: focus, scrolling, and what is opened.
  const like = (now, next) => {
    for (const {name, value} of [...next.attributes]) if (now.getAttribute(name) !== value && !kept(now, name)) now.setAttribute(name, value);
    for (const {name} of [...now.attributes]) if (!next.hasAttribute(name) && !kept(now, name)) now.removeAttribute(name);
    const named = new Map([...now.children].filter(e => e.id).map(e => [e.id, e]));
    let at = now.firstChild;
    for (const wanted of [...next.childNodes]) {
      const same = wanted.id && named.get(wanted.id);
      if (same && same !== at) now.insertBefore(same, at); else if (!same && at && (at.id && at.nodeType === 1 || at.nodeName !== wanted.nodeName)) { now.insertBefore(wanted, at); continue; }
      const here = same || at;
      if (!here) { now.append(wanted); continue; }
      at = here.nextSibling;
      if (here.nodeName !== wanted.nodeName) here.replaceWith(wanted);
      else if (here.nodeType !== 1) { if (here.nodeValue !== wanted.nodeValue) here.nodeValue = wanted.nodeValue; }
      else if (here !== document.activeElement || here.children.length || here.textContent !== wanted.textContent) like(here, wanted);
    }
    while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
  };
  const kept = (element, name) => name === "open" && element.nodeName === "DETAILS";

  // Leaves the parts of these names, in their order; new ones are empty.
  const arrange = names => {
    const main = document.getElementById("main");
    for (const part of main.querySelectorAll(":scope > section")) if (!names.includes(part.id)) part.remove();
    let at = main.firstElementChild;
    for (const name of names) {
      const part = document.getElementById(name) || Object.assign(document.createElement("section"), {id: name});
      if (at.nextElementSibling !== part) at.after(part);
      at = part;
    }
  };

  const show = event => {
    const {parts, news, names} = JSON.parse(event.data);
    if (names) arrange(names);
    for (const [name, html] of Object.entries(parts)) {
      const part = document.getElementById(name);
      if (!part) continue;
      const next = part.cloneNode(false);
      next.innerHTML = html;
      // Rows without contents have not changed.
      for (const row of next.querySelectorAll(":is(tr, li, article)[id]:empty")) {
        const shown = document.getElementById(row.id);
        if (shown) row.append(...shown.cloneNode(true).childNodes);
      }
      like(part, next);
    }
    if (news) said.textContent = news;
    tell("on", "live");
  };
  const tell = (kind, text) => { if (live.textContent !== text) { live.className = "live " + kind; live.textContent = text; } };
  const stop = () => { clearTimeout(timer); if (source) source.close(); source = null; };
  const start = () => {
    stop();
    source = new EventSource("/events?page=" + encodeURIComponent(feed));
    source.addEventListener("parts", event => { wait = 1000; show(event); });
    source.onopen = () => { wait = 1000; tell("on", "live"); };
    source.onerror = () => {
      stop();
      tell("lost", "connection lost");
      timer = setTimeout(start, wait * (.75 + Math.random() / 2));
      wait = Math.min(wait * 2, 30000);
    };
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { stop(); tell("", "paused"); } else start();
  });
  addEventListener("pagehide", stop);
  // After the first paint, which would wait for the service to render the page for the feed.
  requestAnimationFrame(() => setTimeout(() => { if (!document.hidden) start(); }));
})();
