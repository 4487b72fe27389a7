"""The page's script: what the other parts use, numbers as words, and the tabs."""

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
