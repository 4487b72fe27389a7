"""The page's script: values under the pointer or at the arrow keys."""

POINTER = r"""
// Values under the pointer, or at the arrow keys.
const tip = make("div", "tip");
tip.hidden = true;
tip.setAttribute("role", "status");
document.body.append(tip);
const say = (lines, x, y) => {
  tip.replaceChildren(
    ...lines.map(([left, right, css]) => {
      const line = make("div"),
        name = make("span", css || "", left);
      line.append(name, make("b", "", right ?? ""));
      return line;
    }),
  );
  tip.hidden = false;
  const box = tip.getBoundingClientRect(),
    wide = root.clientWidth;
  tip.style.left = `${Math.max(4, Math.min(x + 14, wide - box.width - 6))}px`;
  const below = y + box.height + 20 <= innerHeight;
  tip.style.top = `${Math.max(4, below ? y + 16 : y - box.height - 12)}px`;
};
const scaled = axis => value => (axis.log ? Math.log10(Math.max(value, 1e-12)) : value);
const colour = s => `c${data.strategies[s].colour}`;
charts.forEach(figure => {
  const chart = data.charts[figure.dataset.chart],
    plot = figure.querySelector(".plot");
  const cursor = make("div", "cursor"),
    to = scaled(chart.x),
    low = to(chart.x.low),
    span = to(chart.x.high) - low || 1;
  const place = value => (to(value) - low) / span;
  const users = chart.series.some(series => series.names.length);
  cursor.hidden = true;
  plot.append(cursor);
  plot.tabIndex = 0;
  let last = 1;
  const column = share => {
    const shown = chart.series.filter(s => !off.has(s.s));
    let at = null;
    shown.forEach(s =>
      s.x.forEach(x => {
        if (
          s.x.length > 1 &&
          (at === null || Math.abs(place(x) - share) < Math.abs(place(at) - share))
        )
          at = x;
      }),
    );
    at ??= shown[0]?.x.at(-1);
    if (at === null || at === undefined) return null;
    const lines = shown
      .map(s => {
        let i = s.x.length - 1;
        while (i > 0 && s.x[i] > at * (1 + 1e-9)) i--;
        return [s, i];
      })
      .filter(([s, i]) => s.x.length === 1 || s.x[i] <= at * (1 + 1e-9))
      .sort((a, b) => b[0].y[b[1]] - a[0].y[a[1]]);
    return [
      at,
      [
        [write(at, chart.x.kind) + (chart.x.kind === "round" ? ". round" : "")],
        ...lines
          .slice(0, 24)
          .map(([s, i]) => [
            data.strategies[s.s].name,
            write(s.y[i], chart.y.kind),
            colour(s.s),
          ]),
      ],
    ];
  };
  const nearest = (share, y) => {
    let best = null,
      least = Infinity;
    chart.series
      .filter(s => !off.has(s.s))
      .forEach(s =>
        s.x.forEach((x, i) => {
          const far =
            ((place(x) - share) * plot.clientWidth) ** 2 + (chart.now.top(s.y[i]) - y) ** 2;
          if (far < least) {
            least = far;
            best = [s, i];
          }
        }),
      );
    if (!best) return null;
    const [s, i] = best,
      lines = [
        [`user ${s.names[i]}`],
        [data.strategies[s.s].name, write(s.y[i], chart.y.kind), colour(s.s)],
      ];
    if (s.low.length)
      lines.push([
        "interval",
        `${write(s.low[i], chart.y.kind)} to ${write(s.high[i], chart.y.kind)}`,
      ]);
    if (chart.x.kind === "count" && !s.low.length)
      lines.push([chart.x.label, write(s.x[i], "count")]);
    return [s.x[i], lines];
  };
  const at = (share, y, x) => {
    const found = users ? nearest(share, y) : column(share),
      box = plot.getBoundingClientRect();
    if (!found) return;
    last = place(found[0]);
    cursor.hidden = false;
    cursor.style.left = `${100 * Math.max(0, last)}%`;
    say(found[1], x ?? box.left + last * box.width, box.top + y);
  };
  const moved = event => {
    const box = plot.getBoundingClientRect();
    at((event.clientX - box.left) / box.width, event.clientY - box.top, event.clientX);
  };
  plot.addEventListener("pointermove", moved);
  plot.addEventListener("pointerdown", moved);
  const left = () => {
    cursor.hidden = tip.hidden = true;
  };
  plot.addEventListener("pointerleave", left);
  plot.addEventListener("blur", left);
  plot.addEventListener("keydown", event => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const places = [...new Set(chart.series.flatMap(s => s.x.map(place)))].sort(
      (a, b) => a - b,
    );
    const next =
      way > 0 ? places.find(p => p > last + 1e-9) : places.findLast(p => p < last - 1e-9);
    at(next ?? last, 20);
  });
});
addEventListener(
  "scroll",
  () => {
    tip.hidden = true;
  },
  { passive: true },
);
"""
