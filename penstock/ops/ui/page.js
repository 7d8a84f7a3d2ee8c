// What all screens share: asking the service, texts as a person says them, and tables. Values are only
// ever set as text. Addresses are relative, so a proxy may serve the page below a prefix.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const token = $("[name=token]");
token.value = sessionStorage.getItem("token") ?? "";

export function hasToken() {
  return Boolean(token.value);
}

export function onToken(changed) {
  token.addEventListener("change", () => {
    sessionStorage.setItem("token", token.value);
    say("");
    changed();
  });
}

export async function ask(path, more = {}) {
  const headers = token.value ? { Authorization: `Bearer ${token.value}` } : {};
  const answer = await fetch(`../${path}`, { ...more, headers: { ...headers, ...more.headers } });
  if (answer.ok) return answer;
  const { error, info } = await answer.json();
  if (answer.status === 401) token.focus();
  throw Object.assign(new Error([error, info].filter(Boolean).join(": ")), { status: answer.status });
}

export async function get(path) {
  return (await ask(path)).json();
}

export async function send(method, path, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  return (await ask(path, { method, headers, body: body && JSON.stringify(body) })).json();
}

// Server-sent events, until there are no more.
export async function follow(path, signal, taken) {
  const answer = await ask(path, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    parts.forEach((text) => {
      const fields = Object.fromEntries(text.split("\n").map((line) => line.split(/: (.*)/s).slice(0, 2)));
      taken(fields.event, JSON.parse(fields.data));
    });
  }
}

export function say(text, isError = false) {
  $("#message").textContent = text;
  $("#message").classList.toggle("error", isError);
}

// Texts.

const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export function number(value, digits = 0) {
  return isKnown(value) ? value.toLocaleString(undefined, { maximumFractionDigits: digits }) : "–";
}

export function rate(value) {
  return isKnown(value) ? `${number(value, value < 10 ? 1 : 0)}/s` : "–";
}

export function seconds(value) {
  if (!isKnown(value)) return "–";
  if (value < 0.0995) return value ? `${number(value * 1000, 1)} ms` : "0 s";
  if (value < 120) return `${number(value, 1)} s`;
  if (value < 7200) return `${number(value / 60)} min`;
  return value < 172800 ? `${number(value / 3600, 1)} h` : `${number(value / 86400, 1)} days`;
}

export function bytes(value) {
  if (!isKnown(value)) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const power = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${number(value / 1024 ** power, power ? 1 : 0)} ${units[power]}`;
}

// A local time of a Unix time in seconds, or of a text; with its date where it is another day's.
export function time(at) {
  const date = new Date(typeof at === "number" ? at * 1000 : at);
  if (!at || Number.isNaN(date.getTime())) return at ?? "";
  const clock = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return date.toDateString() === new Date().toDateString() ? clock : `${date.toLocaleDateString()} ${clock}`;
}

// Times within a sentence of the service.
export function local(text) {
  return text.replace(/\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)/g, time);
}

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

export function sum(items, pick) {
  return items.reduce((total, item) => total + (pick(item) ?? 0), 0);
}

export function most(items, pick) {
  const known = items.map(pick).filter(isKnown);
  return known.length ? Math.max(...known) : null;
}

export function least(items, pick) {
  const known = items.map(pick).filter(isKnown);
  return known.length ? Math.min(...known) : null;
}

export function put(name, text) {
  $$(`[data-value=${name}]`).forEach((place) => { if (place.textContent !== text) place.textContent = text; });
}

// Elements.

export function element(kind, more = {}, ...inner) {
  const made = document.createElement(kind);
  Object.entries(more).forEach(([name, value]) => { if (isKnown(value) && value !== false) made.setAttribute(name, value); });
  made.append(...inner.filter(isKnown));
  return made;
}

export function button(label, action, given, more = {}) {
  return element("button", { type: "button", "data-action": action, "data-given": JSON.stringify(given), ...more }, label);
}

export function link(address, label) {
  return element("a", { href: address, target: "_blank", rel: "noreferrer", "aria-label": `More about: ${label}` }, "More");
}

// What is drawn anew only when what it is made of is another.
export function redraw(place, key, made) {
  const text = JSON.stringify(key);
  if (place.dataset.key === text) return;
  place.dataset.key = text;
  place.replaceChildren(...made());
}

// A bar of a share; `text` says the same.
export function bar(share, text, state) {
  const level = element("progress", { max: 1, "aria-label": text, "data-state": state });
  level.value = Math.max(0, Math.min(1, share));
  return element("span", { class: "bar" }, level, text);
}

const orders = new Map(); // of tables that were sorted: the column, and 1 or -1

// Rows are changed in place, so that the focus stays where it is. A cell is a text; or a text with
// states, and what it is sorted by; or what makes elements, with the key of when to make them anew.
export function fill(selector, rows, most = 500) {
  const table = $(selector);
  const body = table.tBodies[0];
  sortable(table);
  const order = orders.get(selector);
  const worth = (row) => {
    const cell = row[order.column];
    return cell?.sort ?? (typeof cell === "object" && cell !== null ? cell.text ?? "" : cell ?? "");
  };
  const compare = (one, other) => (typeof one === "number" && typeof other === "number" ? one - other
    : String(one).localeCompare(String(other), undefined, { numeric: true }));
  const found = order ? [...rows].sort((one, other) => order.way * compare(worth(one), worth(other))) : rows;
  const labels = $$("thead th", table).map((head) => head.textContent);
  found.slice(0, most).forEach((cells, at) => {
    const line = body.rows[at] ?? body.insertRow();
    cells.forEach((cell, column) => {
      const place = line.cells[column] ?? line.insertCell();
      place.dataset.label = labels[column];
      if (typeof cell === "object" && cell !== null && cell.make) return redraw(place, cell.key, cell.make);
      const { text, sort, ...states } = typeof cell === "object" && cell !== null ? cell : { text: cell };
      const shown = String(text ?? "");
      if (place.dataset.key) { delete place.dataset.key; place.replaceChildren(); }
      if (place.textContent !== shown) place.textContent = shown;
      Object.entries(states).forEach(([name, value]) => { place.dataset[name] = value; });
    });
    while (line.cells.length > cells.length) line.deleteCell(-1);
  });
  while (body.rows.length > Math.min(found.length, most)) body.deleteRow(-1);
  table.hidden = !rows.length && table.hasAttribute("data-may-hide");
}

function sortable(table) {
  if (table.dataset.sortable) return;
  table.dataset.sortable = "yes";
  $$("thead th", table).filter((head) => head.textContent && !head.dataset.fixed).forEach((head) => {
    const name = head.textContent;
    const press = element("button", { type: "button", class: "sort" }, name);
    head.replaceChildren(press);
    press.addEventListener("click", () => {
      const known = orders.get(`#${table.id}`);
      const way = known?.column === head.cellIndex ? -known.way : 1;
      orders.set(`#${table.id}`, { column: head.cellIndex, way });
      $$("thead th", table).forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
      document.dispatchEvent(new Event("sorted"));
    });
  });
}

export const buttons = (...wanted) => ({ key: wanted, make: () => wanted.map((each) => button(...each)) });
