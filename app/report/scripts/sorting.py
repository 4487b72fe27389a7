"""The page's script: tables sorted and filtered, users' among them, and cells that open."""

SORTS = r"""
// Tables by their columns, up and down; lines by a name; cells that open what they come from.
const valueOf = cell =>
  parseFloat(cell.dataset.value || cell.textContent.replace("\u2212", "-").replace(/,/g, ""));
const sortBy = (table, place, up) => {
  const body = table.tBodies[0],
    sign = up ? 1 : -1;
  [...table.tHead.rows[0].cells].forEach(head => head.removeAttribute("aria-sort"));
  table.tHead.rows[0].cells[place].setAttribute("aria-sort", up ? "ascending" : "descending");
  const order = (a, b) => {
    const [one, other] = [a.cells[place], b.cells[place]],
      x = valueOf(one),
      y = valueOf(other);
    if (isNaN(x) && isNaN(y)) return sign * one.textContent.localeCompare(other.textContent);
    return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y);
  };
  body.append(...[...body.rows].sort(order));
  kept.sorts[tables.indexOf(table)] = [place, up];
};
const tables = all("table.sorts");
tables.forEach((table, number) => {
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const button = make("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const was = head.getAttribute("aria-sort");
      const words = [...table.tBodies[0].rows].every(row => isNaN(valueOf(row.cells[place])));
      sortBy(table, place, was ? was === "descending" : words);
    });
  });
  const was = kept.sorts[number];
  if (was && was[0] < table.tHead.rows[0].cells.length) sortBy(table, ...was);
});
const named = all(".filters");
if (named.some(one => one.querySelector("tbody").rows.length > 10)) {
  const tools = make("div", "find"),
    label = make("label", "", "rows "),
    field = make("input"),
    every = make("button", "every");
  Object.assign(field, { type: "search", placeholder: "fedrep, fedavg", value: kept.words });
  every.type = "button";
  label.append(field);
  tools.append(label, every);
  every.addEventListener("click", flip);
  field.addEventListener("input", () => {
    kept.words = field.value;
    toggled();
  });
  named[0].before(tools);
}
const box = make("dialog");
document.addEventListener("click", event => {
  const name = event.target.dataset?.cell;
  if (!name) return;
  const close = make("button", "", "close");
  close.addEventListener("click", () => box.close());
  box.replaceChildren(
    make("h2", "", name),
    make("pre", "", JSON.stringify(data.cells[name], null, 1)),
    close,
  );
  document.body.append(box);
  box.showModal();
  box.scrollTop = 0;
});
toggled();
"""

TABLE = r"""
// The users' table: sorted, searched and filtered; of many users so many at a time.
const table = document.getElementById("people");
if (table) {
  const columns = data.users.columns.map(c => ({ ...c, s: c.measure ? placed(c.title) : -1 })),
    body = table.tBodies[0],
    count = columns[0].values.length;
  const words = new Intl.Collator(undefined, { numeric: true }),
    step = 200;
  const low = columns.map(column => new Set(column.low || []));
  const find = document.getElementById("find"),
    said = document.getElementById("said");
  const measure = document.getElementById("measure"),
    more = document.getElementById("more");
  let order = [...Array(count).keys()],
    key = 0,
    sign = 1,
    shown = step;
  const fits = column =>
    (!column.measure || !measure || column.measure === measure.value) && !folded(column.s);
  const line = i => {
    const row = document.createElement("tr");
    columns.forEach((column, c) => {
      if (!fits(column)) return;
      const cell = make("td", low[c].has(i) ? "low" : "", write(column.values[i], column.kind));
      row.append(cell);
    });
    return row;
  };
  const compare = (a, b) => {
    const { values, kind } = columns[key],
      one = values[a],
      other = values[b];
    if (one === null || other === null) return (one === null) - (other === null);
    return sign * (kind === "text" ? words.compare(one, other) : one - other) || a - b;
  };
  const fill = () => {
    const wanted = find.value.trim().toLowerCase(),
      worst = document.getElementById("worst").checked;
    const match = /^(.*?)\s*(<=|>=|<|>)\s*(-?[\d.]+)$/.exec(wanted);
    const texts = columns
      .map((column, c) => (column.kind === "text" ? c : -1))
      .filter(c => c >= 0);
    const kept = order.filter(i => {
      if (worst && !low.some((set, c) => fits(columns[c]) && set.has(i))) return false;
      if (!wanted) return true;
      if (match) {
        const [, name, sort, limit] = match;
        return columns.some(column => {
          const value = column.values[i];
          if (
            column.kind === "text" ||
            !fits(column) ||
            value === null ||
            column.title.toLowerCase() !== name
          )
            return false;
          return {
            "<": value < limit,
            ">": value > limit,
            "<=": value <= limit,
            ">=": value >= limit,
          }[sort];
        });
      }
      return texts.some(c =>
        String(columns[c].values[i] ?? "")
          .toLowerCase()
          .includes(wanted),
      );
    });
    kept.sort(compare);
    body.replaceChildren(...kept.slice(0, shown).map(line));
    more.hidden = kept.length <= shown;
    const [first, every] = [Math.min(kept.length, shown), kept.length];
    said.textContent = `${first.toLocaleString("en")} of ${every.toLocaleString("en")} shown`;
  };
  const head = () => {
    const row = document.createElement("tr");
    columns.forEach((column, c) => {
      if (!fits(column)) return;
      const cell = make("th"),
        button = make("button", "", column.title);
      cell.scope = "col";
      if (c === key) cell.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      button.type = "button";
      button.addEventListener("click", () => {
        sign = c === key ? -sign : 1;
        key = c;
        head();
        fill();
      });
      cell.append(button);
      row.append(cell);
    });
    table.tHead.replaceChildren(row);
  };
  find.addEventListener("input", () => {
    shown = step;
    fill();
  });
  document.getElementById("worst").addEventListener("change", fill);
  measure?.addEventListener("change", () => refill());
  more.addEventListener("click", () => {
    shown += 5 * step;
    fill();
  });
  refill = () => {
    if (!fits(columns[key])) key = 0;
    head();
    fill();
  };
  refill();
}
"""
