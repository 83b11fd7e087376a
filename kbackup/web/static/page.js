// Everything works without this file; it adds keys, copying, the theme's switch, and results while one types.
"use strict";

const all = (what, within = document) => [...within.querySelectorAll(what)];
const one = (what, within = document) => within.querySelector(what);

// Theme
const root = document.documentElement;
const isDark = () =>
  root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

function turnTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("kbackup-theme", root.dataset.theme); } catch { /* for this page alone */ }
}

// Copying
let fading = 0;

function say(text) {
  const said = one("#said");
  said.textContent = text;
  said.classList.add("shown");
  clearTimeout(fading);
  fading = setTimeout(() => said.classList.remove("shown"), 1600);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // not on https or localhost: the old way
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(text.length > 200 ? `copied ${text.length.toLocaleString("en")} characters` : `copied ${text}`);
}

async function copyFrom(address) {
  const answer = await fetch(address);
  if (!answer.ok) return say("the server did not send it");
  try {
    await copy(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await answer.arrayBuffer()));
  } catch {
    say("not text: download it");
  }
}

root.classList.add("scripted"); // shows the buttons

document.addEventListener("click", (event) => {
  const button = event.target.closest(".copy");
  if (button) return button.dataset.copyFrom ? copyFrom(button.dataset.copyFrom) : copy(button.dataset.copy);
  const number = event.target.closest(".n");
  if (!number || number.closest("a") || String(getSelection())) return;
  copy(number.value ?? number.dateTime);
});

// Keys
const dialog = one("#keys");
const isTyping = (at) => at.matches("input, textarea, select, [contenteditable]");
const rows = () => all("table.rows tbody th a, table.rows tbody summary, article.record a.row");

function step(by) {
  const found = rows();
  if (!found.length) return;
  const at = found.findIndex((row) => row === document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : found.length - 1) : Math.min(Math.max(at + by, 0), found.length - 1);
  found[next].focus();
  found[next].scrollIntoView({ block: "nearest" });
}

const follow = (what) => one(what)?.click();
const search = () => {
  const field = one("main .search input:not([type=hidden])");
  field?.focus();
  field?.select();
};
const keys = {
  "/": search,
  j: () => step(1), ArrowDown: () => step(1),
  k: () => step(-1), ArrowUp: () => step(-1),
  n: () => follow("a[rel=next]"), ArrowRight: () => follow("a[rel=next]"),
  p: () => follow("a[rel=prev]"), ArrowLeft: () => follow("a[rel=prev]"),
  u: () => follow("[data-up]"),
  l: turnTheme,
  "?": () => dialog.showModal(),
};
for (const link of all("header [data-key]")) keys[link.dataset.key] = () => link.click();

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  const at = event.target;
  if (isTyping(at)) {
    if (event.key === "Escape") at.blur();
    return;
  }
  // what scrolls by itself keeps its arrows
  if (event.key.startsWith("Arrow") && (at.matches("pre, .scroll") || !rows().length && event.key.match(/Up|Down/))) return;
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

for (const [id, act] of [["theme", turnTheme], ["help", () => dialog.showModal()]]) {
  const button = one(`#${id}`);
  button.hidden = false;
  button.addEventListener("click", act);
}

// Back from an error
for (const button of all("[data-back]")) {
  button.hidden = history.length < 2;
  button.addEventListener("click", () => history.back());
}

// A list that a field filters: labels without one of its words are hidden
for (const field of all("[data-filter]")) {
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const item of all(field.dataset.filter, field.parentElement))
      item.hidden = !words.every((word) => item.textContent.toLowerCase().includes(word));
  };
  field.addEventListener("input", filter);
  field.addEventListener("keydown", (event) => event.key === "Enter" && event.preventDefault());
  filter(); // what the browser kept
}

// Rows that open
document.addEventListener("click", (event) => {
  const row = event.target.closest(".matches tbody > tr:not(.whole)");
  if (!row || event.target.closest("a, summary, .n") || String(getSelection())) return;
  const details = one("details", row);
  details.open = !details.open;
});

// A search goes on while the page is in sight, until it has enough
const results = one("#results");
if (results) {
  let asking = null;
  const found = () => all(".matches tbody", results).length;
  const goOn = async () => {
    const link = one("a[rel=next]", results);
    if (!link || asking || document.hidden || found() >= results.dataset.enough) return;
    asking = new AbortController();
    try {
      const answer = await fetch(link.href, { signal: asking.signal });
      if (!answer.ok) throw new Error(answer.status);
      const next = one("#results", new DOMParser().parseFromString(await answer.text(), "text/html"));
      one(".matches", results).append(...all(".matches tbody", next));
      one(".scroll", results).hidden = !found();
      if (one(".notes", next)) one(".remarks", results).replaceWith(one(".remarks", next));
      const ends = one(".pager", next).firstElementChild;
      ends.firstElementChild.nextSibling.data = ends.firstElementChild.nextSibling.data.replace(" on this page", "");
      one(".count", ends).textContent = found() === 1 ? "1 record" : `${found().toLocaleString("en")} records`;
      one(".pager", results).replaceChildren(...one(".pager", next).children);
    } catch (error) {
      if (error.name !== "AbortError") return say("the search has stopped: go on by its link");
    } finally {
      asking = null;
    }
    goOn();
  };
  document.addEventListener("visibilitychange", () => document.hidden ? asking?.abort() : goOn());
  goOn();
}

// Results while one types
const form = one("form[data-live]");
if (form) {
  let waiting = 0;
  let asked = 0;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      const number = ++asked;
      const address = `${location.pathname}?${new URLSearchParams(new FormData(form))}`;
      const answer = await fetch(address);
      if (!answer.ok || number !== asked) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (number !== asked) return;
      one(`#${form.dataset.live}`).replaceWith(one(`#${form.dataset.live}`, page));
      history.replaceState(null, "", address);
    }, 150);
  });
}
