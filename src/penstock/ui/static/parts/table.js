// A table that sorts, filters, links and pages. Sort, filter and page are in the URL, under the table's id.
// Rows of the server's own paging come with `server`: then the server has sorted and filtered them.
import { html, useMemo } from "../lib/dom.js";
import { change, parameter } from "../lib/router.js";
import { number } from "../lib/format.js";

const PAGE = 100;

// A column: key, label; value(row) to sort and filter by; cell(row) to show; num: right-aligned.
export function Table({ id, columns, rows, rowKey, filter = true, sort = "", empty, mark, server, end, label }) {
  const shownColumns = columns.filter(Boolean);
  const name = (part) => (id ? `${id}.${part}` : part);
  const wanted = parameter(name("filter"));
  const order = parameter(name("sort"), sort);
  const page = Number(parameter(name("page"), "0")) || 0;

  const found = useMemo(() => (server ? rows : arrange(rows, shownColumns, wanted, order)), [rows, wanted, order, server]);
  const pages = server ? 1 : Math.ceil(found.length / PAGE);
  const at = Math.min(page, Math.max(0, pages - 1));
  const shown = server ? found : found.slice(at * PAGE, (at + 1) * PAGE);

  const sortBy = (column) => {
    const first = column.num ? `-${column.key}` : column.key;
    const other = column.num ? column.key : `-${column.key}`;
    change({ [name("sort")]: order === first ? other : first, [name("page")]: null });
  };
  const filters = filter && (wanted || rows.length > 1);
  const header = (filters || end) && html`<div class="row pager table-tools">
    ${filters && html`<input class="grow" type="search" data-filter aria-label="Filter ${label ?? "this table"}" placeholder="Filter…" value=${wanted}
      onInput=${(event) => change({ [name("filter")]: event.target.value, [name("page")]: null })} />`}
    ${wanted && html`<span>${number(found.length)} of ${number(rows.length)}</span>`}${end}</div>`;

  if (rows.length === 0 && empty && !server?.searched) return empty;
  return html`<div>${header}
    <div class="scroll" tabindex=${shown.length ? 0 : -1} role="region" aria-label=${label ?? "Table"}><table>
      <thead><tr>${shownColumns.map((column) => {
        const direction = order === column.key ? "ascending" : order === `-${column.key}` ? "descending" : "none";
        const sortable = server ? server.sorts?.includes(column.key) : column.value || column.key in (rows[0] ?? {});
        return html`<th scope="col" class="${column.num ? "num" : ""} ${column.class === "actions" ? "actions" : ""}" title=${column.title} aria-sort=${sortable ? direction : undefined}>
          ${sortable ? html`<button type="button" onClick=${() => sortBy(column)}>${column.label}${direction !== "none" && html`<span class="arrow" aria-hidden="true">${direction === "ascending" ? "↑" : "↓"}</span>`}</button>`
            : column.label || html`<span class="skip">Actions</span>`}</th>`;
      })}</tr></thead>
      <tbody>${shown.map((row) => html`<tr key=${rowKey(row)} class=${mark?.(row) ?? ""}>
        ${shownColumns.map((column) => html`<td class="${column.num ? "num" : ""} ${column.class ?? ""}">${column.cell ? column.cell(row) : String(row[column.key] ?? "–")}</td>`)}
      </tr>`)}</tbody>
    </table></div>
    ${shown.length === 0 && html`<div class="empty"><strong>Nothing matches</strong>${wanted && html`<button class="small" onClick=${() => change({ [name("filter")]: null })}>Clear the filter</button>`}</div>`}
    ${server ? html`<${ServerPager} server=${server} count=${shown.length} />`
      : pages > 1 && html`<div class="pager"><span>${number(at * PAGE + 1)}–${number(at * PAGE + shown.length)} of ${number(found.length)}</span>
        <span class="end"><button class="small" disabled=${at === 0} onClick=${() => change({ [name("page")]: at - 1 || null })}>Previous</button>
        <button class="small" disabled=${at >= pages - 1} onClick=${() => change({ [name("page")]: at + 1 })}>Next</button></span></div>`}
  </div>`;
}

function ServerPager({ server, count }) {
  if (!server.next && !server.previous && !server.note) return null;
  return html`<div class="pager"><span>${server.note ?? `${number(count)} shown`}</span><span class="end">
    <button class="small" disabled=${!server.previous} onClick=${server.previous}>${server.previousLabel ?? "Previous"}</button>
    <button class="small" disabled=${!server.next} onClick=${server.next}>${server.nextLabel ?? "Next"}</button></span></div>`;
}

function arrange(rows, columns, wanted, order) {
  const value = (column, row) => (column.value ? column.value(row) : row[column.key]);
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  let found = rows;
  if (words.length) {
    found = rows.filter((row) => {
      const text = columns.map((column) => value(column, row) ?? "").join("\u0001").toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }
  const column = columns.find((each) => each.key === order.replace(/^-/, ""));
  if (!column) return found;
  const sign = order.startsWith("-") ? -1 : 1;
  return [...found].sort((a, b) => {
    const [x, y] = [value(column, a), value(column, b)];
    // What is not known comes last, whichever way is sorted.
    if (x === null || x === undefined) return y === null || y === undefined ? 0 : 1;
    if (y === null || y === undefined) return -1;
    return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true }));
  });
}
