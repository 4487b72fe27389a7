"""The page's script: the users' table, sorted, searched and filtered."""

TABLE = r"""
// The users' table: sorted, searched and filtered; of many users so many at a time.
const table = document.getElementById("people");
if (table) {
  const columns = data.users.columns,
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
  const fits = column => !column.measure || !measure || column.measure === measure.value;
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
  measure?.addEventListener("change", () => {
    if (!fits(columns[key])) key = 0;
    head();
    fill();
  });
  more.addEventListener("click", () => {
    shown += 5 * step;
    fill();
  });
  head();
  fill();
}
"""
