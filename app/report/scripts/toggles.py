"""The page's script: strategies off and on, and limits that follow those that are left."""

TOGGLES = r"""
// Strategies off and on, on the whole page; limits follow those that are left.
// Of many rows the best are seen at first, and the references.
const hidden = data.hidden || [],
  placed = name => data.strategies.findIndex(one => one.name === name);
const off = new Set(kept.off ? kept.off.map(placed).filter(s => s >= 0) : hidden);
const folded = s => hidden.includes(s) && !kept.whole; // lines of tables: a legend moves none
let refill = () => {};
const quantile = (sorted, share) => {
  const at = share * (sorted.length - 1),
    low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
};
const limits = (chart, whole) => {
  const found = chart.series
    .filter(s => !off.has(s.s))
    .map(s => [...s.y, ...s.low, ...s.high].filter(v => v !== null))
    .filter(v => v.length);
  if (!found.length) return [chart.y.low, chart.y.high];
  const flat = found.flat();
  let low = flat.reduce((a, b) => Math.min(a, b)),
    high = flat.reduce((a, b) => Math.max(a, b));
  if (!whole && chart.bounds.includes(null)) {
    const parts = found
      .map(v => v.sort((a, b) => a - b))
      .map(v => [0.1, 0.5, 0.9].map(q => quantile(v, q)))
      .sort((a, b) => Math.abs(a[1]) - Math.abs(b[1]));
    const half = Math.floor((parts.length - 1) / 2),
      middle = parts[half][1];
    const widths = parts.map(q => q[2] - q[0]).sort((a, b) => a - b);
    const reach = 4 * Math.max(widths[half], 0.5 * Math.abs(middle)) || Infinity;
    low = Math.max(low, middle - reach);
    high = Math.min(high, middle + reach);
  }
  const room = 0.06 * (high - low) || 0.06 * Math.abs(high) || 1;
  return [
    Math.max(low - room, chart.bounds[0] ?? -Infinity),
    Math.min(high + room, chart.bounds[1] ?? Infinity),
  ];
};
const ticks = (low, high) => {
  const raw = (high - low) / 5,
    power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(s => s * power).find(s => s >= raw * 0.999),
    found = [];
  for (let n = Math.ceil(low / step - 1e-9); n <= high / step + 1e-9; n++)
    found.push(n * step || 0);
  const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const text = v =>
    Math.max(Math.abs(v), step) >= 1e6 || step < 1e-4
      ? String(Number(v.toPrecision(3)))
      : v.toLocaleString("en", {
          minimumFractionDigits: places,
          maximumFractionDigits: places,
        });
  return found.map(v => [v, text(v)]);
};
const spaced = (heights, gap, most) => {
  const order = heights.map((_, i) => i).sort((a, b) => heights[a] - heights[b]),
    placed = [...heights];
  order.forEach((i, n) => {
    if (n) placed[i] = Math.max(placed[i], placed[order[n - 1]] + gap);
  });
  order.reverse().forEach(i => {
    placed[i] = Math.min(placed[i], most);
    most = placed[i] - gap;
  });
  return placed;
};
const number = element => Number([...element.classList].find(c => /^s-\d+$/.test(c))?.slice(2));

const fit = (figure, whole = false) => {
  const chart = data.charts[figure.dataset.chart],
    plot = figure.querySelector(".plot");
  const height = parseFloat(plot.style.height),
    [low, high] = limits(chart, whole);
  const span = high - low || 1,
    first = chart.y.high - chart.y.low || 1;
  const top = value => height * (1 - (value - low) / span),
    scale = first / span;
  const shift = height * (1 - scale) - (height * (chart.y.low - low)) / span;
  chart.now = { low, high, top };
  figure.querySelector(".fit").setAttribute("transform", `matrix(1 0 0 ${scale} 0 ${shift})`);
  const marks = ticks(low, high);
  figure
    .querySelector(".grid")
    .setAttribute("d", marks.map(([v]) => `M0 ${top(v)}H1000`).join(""));
  figure.querySelector(".left").replaceChildren(
    ...marks.map(([v, text]) => {
      const label = make("span", "", text);
      label.style.top = `${top(v)}px`;
      return label;
    }),
  );
  all(".mark[data-v], .basis", plot).forEach(mark => {
    const at = top(Number(mark.dataset.v));
    mark.style.top = `${at}px`;
    mark.style.visibility = at < -1 || at > height + 1 ? "hidden" : "";
  });
  const names = all(".names span", plot).filter(label => !off.has(number(label)));
  const ends = names.map(label => Math.min(Math.max(top(Number(label.dataset.v)), 0), height));
  const leads = new Map(all(".leads path", plot).map(lead => [number(lead), lead]));
  plot.classList.toggle("crowded", names.length * 16 > height);
  spaced(ends, 16, height).forEach((at, i) => {
    names[i].style.top = `${at}px`;
    leads.get(number(names[i])).setAttribute("d", `M0 ${ends[i]}L18 ${at}`);
  });
  if (signs(figure, chart, low, high) || whole) range(figure, whole);
  else figure.querySelector(".range")?.remove();
};
// Whoever is beyond the limits has a sign there.
const signs = (figure, chart, low, high) => {
  const plot = figure.querySelector(".plot"),
    found = { up: [], down: [] };
  all(".flag", plot).forEach(flag => flag.remove());
  chart.series
    .filter(s => !off.has(s.s))
    .forEach(series => {
      const band = !chart.points,
        tops = [...series.y, ...(band ? series.high : [])],
        ends = [...series.y, ...(band ? series.low : [])];
      const most = Math.max(...tops.filter(v => v !== null)),
        least = Math.min(...ends.filter(v => v !== null));
      if (most > high) found.up.push([series.s, most]);
      if (least < low) found.down.push([series.s, least]);
    });
  Object.entries(found).forEach(([edge, flags]) =>
    flags.slice(0, 6).forEach(([s, value], n) => {
      const name = data.strategies[s].name,
        arrow = edge === "up" ? "\u25b2" : "\u25bc",
        more = n === 5 && flags.length > 6 ? ` and ${flags.length - 6} more` : "";
      const flag = make("span", `flag ${edge} flip c${data.strategies[s].colour} s-${s}`);
      flag.textContent = `${arrow} ${name} ${write(value, chart.y.kind)}${more}`;
      flag.style[edge === "up" ? "top" : "bottom"] = `${2 + 15 * n}px`;
      flag.style.left = "100%";
      plot.append(flag);
    }),
  );
  return found.up.length + found.down.length > 0;
};
const range = (figure, whole) => {
  let button = figure.querySelector(".range");
  if (!button) {
    button = make("button", "range");
    button.type = "button";
    button.addEventListener("click", () => fit(figure, button.dataset.whole !== "yes"));
    figure.querySelector(".plot").before(button);
  }
  button.dataset.whole = whole ? "yes" : "";
  button.textContent = whole ? "show where most are" : "show the whole range";
};
const charts = all("[data-chart]");
const toggled = () => {
  all("[class*='s-']:not(tr)").forEach(element => {
    if ([...element.classList].some(c => /^s-\d+$/.test(c)))
      element.classList.toggle("off", off.has(number(element)));
  });
  all(".toggle").forEach(button =>
    button.setAttribute("aria-pressed", !off.has(Number(button.dataset.s))),
  );
  all(".every").forEach(button => {
    button.textContent = off.size ? `all ${data.strategies.length} rows` : few;
  });
  const words = kept.words.toLowerCase().split(/[\s,]+/).filter(Boolean);
  all(".filters tbody tr").forEach(row => {
    const name = row.cells[0].textContent.toLowerCase(),
      found = words.some(word => name.includes(word));
    row.classList.toggle("off", words.length ? !found : folded(number(row)));
  });
  kept.off = [...off].map(s => data.strategies[s].name);
  charts.forEach(figure => fit(figure));
  refill();
};
const few = hidden.length ? "the best only" : "none";
const flip = () => {
  kept.whole = off.size > 0;
  if (off.size) off.clear();
  else (hidden.length ? hidden : data.strategies.keys()).forEach(s => off.add(s));
  toggled();
};
const light = s => {
  all(".lit").forEach(element => element.classList.remove("lit"));
  root.classList.toggle("dim", s !== null);
  if (s !== null) all(`.s-${s}`).forEach(element => element.classList.add("lit"));
};
all(".toggle").forEach(button => {
  const s = Number(button.dataset.s);
  button.title = "click: off or on; double click: only this one";
  button.addEventListener("click", () => {
    off.has(s) ? off.delete(s) : off.add(s);
    toggled();
  });
  button.addEventListener("dblclick", () => {
    off.clear();
    data.strategies.forEach((_, i) => {
      if (i !== s) off.add(i);
    });
    toggled();
  });
  button.addEventListener("pointerenter", event => {
    if (event.pointerType === "mouse") light(s);
  });
  button.addEventListener("pointerleave", () => light(null));
});
all(".every").forEach(button => button.addEventListener("click", flip));
if (hidden.length)
  all(".legend").forEach(legend => {
    const more = make("button", "", `${hidden.length} more`);
    more.type = "button";
    legend.classList.add("folded");
    all(".toggle", legend).forEach(button =>
      button.classList.toggle("later", hidden.includes(Number(button.dataset.s))),
    );
    more.addEventListener("click", () => {
      legend.classList.remove("folded");
      more.remove();
    });
    legend.append(more);
  });
"""
