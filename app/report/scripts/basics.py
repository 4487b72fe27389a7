"""The page's script: reloading, what the other parts use, numbers as words, and the tabs."""

RELOADING = r"""
// What was chosen is kept when the page is loaded again.
const data = JSON.parse(document.getElementById("data").textContent);
const kept = { off: null, words: "", whole: false, sorts: {}, tabs: {}, folds: {} };
const place = `corsage ${location.pathname}`;
const again = () => {
  if (document.hidden || document.querySelector("dialog[open], input:focus, .tip:not([hidden])")) {
    setTimeout(again, 1000);
    return;
  }
  location.reload();
};
if (data.live) {
  try {
    Object.assign(kept, JSON.parse(sessionStorage.getItem(place) || "{}"));
  } catch {} // a browser that keeps nothing of files
  addEventListener("pagehide", () => {
    try {
      sessionStorage.setItem(place, JSON.stringify(kept));
    } catch {}
  });
  if (data.live.seconds) setTimeout(again, 1000 * data.live.seconds);
  const ago = document.getElementById("ago");
  const say = () => {
    const seconds = Date.now() / 1000 - data.live.written;
    const minutes = Math.floor(seconds / 60);
    ago.textContent = minutes ? `, ${minutes} min ago; corsage watch says whether it goes on` : "";
  };
  say();
  setInterval(say, 5000);
  [...document.querySelectorAll("details")].forEach(fold => {
    const name = fold.querySelector("summary")?.textContent;
    if (name in kept.folds) fold.open = kept.folds[name];
    fold.addEventListener("toggle", () => (kept.folds[name] = fold.open));
  });
}
"""


BASICS = r"""
const root = document.documentElement,
  all = (css, from = document) => [...from.querySelectorAll(css)];
const make = (tag, css, text) => {
  const made = document.createElement(tag);
  if (css) made.className = css;
  if (text !== undefined) made.textContent = text;
  return made;
};
root.classList.add("js");

// Numbers as people read them; the same rules as in the tables.
const digits = value => {
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e7)) return value.toExponential(3);
  return value.toFixed(Math.min(8, Math.max(0, 3 - (size ? Math.floor(Math.log10(size)) : 0))));
};
const bytes = value => {
  let unit = 0;
  while (value >= 999.5 && unit < 5) {
    value /= 1000;
    unit++;
  }
  const text = unit ? Number(value.toPrecision(3)) : Math.round(value);
  return `${text} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
};
const seconds = value =>
  value < 1
    ? `${Math.round(value * 1000)} ms`
    : value < 60
      ? `${value.toFixed(1)} s`
      : value < 3600
        ? `${Math.floor(value / 60)}m ${Math.round(value % 60)}s`
        : `${(value / 3600).toFixed(2)} h`;
const write = (value, kind) =>
  value === null || value === undefined
    ? "\u2013"
    : kind === "bytes"
      ? bytes(value)
      : kind === "seconds"
        ? seconds(value)
        : kind === "round" || kind === "count" || kind === "text"
          ? String(value)
          : kind === "percent"
            ? value.toFixed(1)
            : kind === "share"
              ? `${value.toFixed(0)}%`
              : digits(value);

// Tabs: what is measured, and against what.
// Without this script the main charts stand below each other.
all(".views").forEach((views, number) => {
  const figures = all(".view", views),
    names = ["of", "against"];
  const first = figures[0].dataset,
    picked = kept.tabs[number] || { of: first.of, against: first.against };
  if (!figures.some(figure => figure.dataset.of === picked.of)) picked.of = first.of;
  kept.tabs[number] = picked;
  const show = () => {
    const fits = figure => names.every(name => figure.dataset[name] === picked[name]);
    const now = figures.find(fits) || figures.find(figure => figure.dataset.of === picked.of);
    figures.forEach(figure => figure.classList.toggle("now", figure === now));
    picked.against = now.dataset.against;
    const there = new Set(
      figures.filter(f => f.dataset.of === picked.of).map(f => f.dataset.against),
    );
    all("button", tabs).forEach(button => {
      button.setAttribute("aria-pressed", picked[button.dataset.name] === button.dataset.value);
      button.hidden = button.dataset.name === "against" && !there.has(button.dataset.value);
    });
  };
  const tabs = make("div", "tabs");
  names.forEach(name => {
    const values = [...new Set(figures.map(figure => figure.dataset[name]))];
    if (values.length < 2) return;
    const group = make("div");
    values.forEach(value => {
      const button = make("button", "", value);
      button.type = "button";
      Object.assign(button.dataset, { name, value });
      button.addEventListener("click", () => {
        picked[name] = value;
        show();
      });
      group.append(button);
    });
    tabs.append(group);
  });
  views.prepend(tabs);
  show();
});
"""
