// The map of tables: what there is, and what becomes of it. Everything goes through ../api; values
// are only ever set as text. Addresses are relative, so a proxy may serve the page below a prefix.

const POLL = 3000; // milliseconds; longer where the answer takes long
const $ = (selector) => document.querySelector(selector);
const token = $("[name=token]");
const dialog = $("dialog");
const form = $("#options");
const KINDS = ["type", "target", "partitions_regex", "columns", "filter", "set", "existing", "schema_changes", "create"];
let tables = [];
let open = null; // the table of the dialog

token.value = sessionStorage.getItem("token") ?? "";
token.addEventListener("input", () => sessionStorage.setItem("token", token.value));

async function api(method, path, body) {
  const headers = {};
  if (method !== "GET" && token.value) headers.Authorization = `Bearer ${token.value}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(`../api${path}`, { method, headers, body: body && JSON.stringify(body) });
  const found = await answer.json();
  if (answer.ok) return found;
  if (answer.status === 401) token.focus();
  const error = new Error([found.error, found.info].filter(Boolean).join(": "));
  error.isAnswer = true;
  throw error;
}

function say(text, isError = false) {
  $("#message").textContent = text;
  $("#message").classList.toggle("error", isError);
}

async function doing(text, work) {
  try {
    await work();
    say(text);
    await load();
  } catch (error) {
    say(error.message, true);
  }
}

// Rows are changed in place, so that the focus stays where it is.
function fill(body, rows, cells) {
  const known = new Map([...body.rows].map((row) => [row.dataset.id, row]));
  rows.forEach((row, number) => {
    const line = known.get(String(row.id)) ?? document.createElement("tr");
    known.delete(String(row.id));
    line.dataset.id = row.id;
    if (body.rows[number] !== line) body.insertBefore(line, body.rows[number] ?? null);
    cells(row).forEach(([text, state, kind], at) => {
      const cell = line.cells[at] ?? line.insertCell();
      if (cell.textContent !== text) cell.textContent = text;
      if (state !== undefined) cell.dataset.state = state;
      if (kind) cell.className = kind;
    });
    return line;
  });
  known.forEach((line) => line.remove());
}

function seconds(value) {
  return value === null || value === undefined ? "" : `${Math.max(0, value).toFixed(1)} s`;
}

function most(sources, name) {
  const known = sources.map((each) => each[name]).filter((value) => value !== undefined && value !== null);
  return known.length ? Math.max(...known) : null;
}

function detail(table) {
  if (table.error) return table.error;
  if (table.replicated && !Object.keys(table.source_columns).length) return "no source that answers has it";
  return table.sources
    .filter((each) => each.error || each.rows_to_come || each.state !== table.state)
    .map((each) => [each.sid, each.state, each.rows_to_come ? `${each.rows_loaded} rows, ${each.rows_to_come} to come` : "", each.error]
      .filter(Boolean).join(": "))
    .join("; ");
}

function button(text, name, action) {
  const made = document.createElement("button");
  made.textContent = text;
  made.setAttribute("aria-label", `${text} ${name}`);
  made.dataset.action = action;
  return made;
}

function show(sources) {
  fill($("#sources tbody"), sources, (row) => {
    const up = row.up ? "up" : "down";
    return [[row.db_name], [row.sid], [row.url, undefined, "detail"], [up, up], [row.status], [seconds(row.lag_seconds)], [row.error, undefined, "detail"]];
  });
  const wanted = $("[name=search]").value.toLowerCase();
  const shown = tables.filter((row) => `${row.db_name} ${row.schema}.${row.name}`.toLowerCase().includes(wanted));
  fill($("#tables tbody"), shown, (row) => {
    const held = most(row.sources, "held");
    return [
      [row.db_name], [`${row.schema}.${row.name}`], [row.replicated ? row.type : ""],
      [row.replicated ? row.target : ""], [row.state ?? "not mapped", row.state ?? ""],
      [seconds(most(row.sources, "lag_seconds"))], [held ? String(held) : ""], [detail(row), undefined, "detail"],
    ];
  });
  for (const line of $("#tables tbody").rows) {
    const row = tables.find((each) => String(each.id) === line.dataset.id);
    const action = row.replicated ? "reload" : "clone";
    if (line.dataset.action === action) continue;
    line.dataset.action = action;
    const cell = line.cells[8] ?? line.insertCell();
    cell.replaceChildren(button(row.replicated ? "Reload" : "Clone", row.name, action), " ", button("Options", row.name, "options"));
  }
}

let sources = [];
async function load() {
  try {
    [sources, tables] = await Promise.all([api("GET", "/url"), api("GET", "/map")]);
    if (document.body.dataset.connection === "lost") say("");
    document.body.dataset.connection = "live";
  } catch (error) {
    document.body.dataset.connection = "lost";
    say(error.isAnswer ? error.message : "penstock does not answer", true);
  }
  show(sources);
}

function edit(table) {
  open = table;
  $("#options-title").textContent = `${table.db_name}: ${table.schema}.${table.name}`;
  for (const name of KINDS) {
    const field = form.elements[name];
    const value = table[name];
    field.closest("label").hidden = !(name in table);
    if (name === "create") field.checked = Boolean(value);
    else if (name === "set") field.value = Object.entries(value).map((each) => each.join(" = ")).join("\n");
    else field.value = Array.isArray(value) ? value.join(", ") : value ?? "";
  }
  $("[data-action=remove]").hidden = !table.replicated;
  form.querySelector("[role=alert]").textContent = "";
  dialog.showModal();
}

function options() {
  const found = {};
  for (const name of KINDS.filter((each) => each in open)) {
    const { value, checked } = form.elements[name];
    if (name === "create") found[name] = checked;
    else if (name === "columns") found[name] = value.trim() ? value.split(",").map((each) => each.trim()) : null;
    else if (name === "schema_changes") found[name] = value || null;
    else if (name === "set") {
      found[name] = Object.fromEntries(value.split("\n").filter((line) => line.trim()).map((line) => {
        const [column, ...expression] = line.split("=");
        return [column.trim(), expression.join("=").trim()];
      }));
    } else found[name] = value;
  }
  return found;
}

async function save(work, text) {
  try {
    await work();
    dialog.close();
    say(text);
    await load();
  } catch (error) {
    form.querySelector("[role=alert]").textContent = error.message;
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const { db_id, schema, name, id, tbl_id, replicated } = open;
  save(
    () => replicated
      ? api("PUT", `/tbl/${tbl_id}`, { db_id, schema, name, ...options() })
      : api("POST", `/map/${id}/clone`, options()),
    `${schema}.${name} is saved`,
  );
});

$("#source").addEventListener("submit", (event) => {
  event.preventDefault();
  const { db, sid, url } = Object.fromEntries(new FormData(event.target));
  doing(`source ${sid} is added`, async () => {
    const known = (await api("GET", "/db")).find((each) => each.name === db) ?? await api("POST", "/db", { name: db });
    await api("POST", "/url", { db_id: known.id, sid, url });
    event.target.reset();
  });
});

document.addEventListener("click", (event) => {
  const action = event.target.dataset.action;
  const line = event.target.closest("tr");
  const table = line && tables.find((each) => String(each.id) === line.dataset.id);
  if (action === "refresh") doing("the sources were asked", () => api("POST", "/map/refresh"));
  if (action === "clone" && table.partitions.length) edit(table); // it needs a pattern
  else if (action === "clone") doing(`${table.name} is mapped`, () => api("POST", `/map/${table.id}/clone`));
  if (action === "reload") doing(`${table.name} is loaded anew`, () => api("POST", `/map/${table.id}/reload`));
  if (action === "options") edit(table);
  if (action === "close") dialog.close();
  if (action === "remove") save(() => api("DELETE", `/tbl/${open.tbl_id}`), `${open.name} has left the map; its target stays`);
});

$("[name=search]").addEventListener("input", () => show(sources));
async function poll() {
  const began = performance.now();
  if (!document.hidden) await load();
  setTimeout(poll, Math.max(POLL, 10 * (performance.now() - began)));
}
poll();
