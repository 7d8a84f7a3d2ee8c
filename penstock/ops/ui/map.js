// The map of tables: what there is, and what becomes of it. Everything goes through ../api.

import { $, element, fill, most, say, seconds, send } from "./page.js";

const POLL = 3000; // milliseconds; longer where the answer takes long
const dialog = $("#map-options");
const form = $("#options");
const KINDS = ["type", "target", "partitions_regex", "columns", "filter", "set", "existing", "schema_changes", "create"];
let tables = [];
let sources = [];
let open = null; // the table of the dialog
let next = 0; // when they are asked for again

const api = (method, path, body) => send(method, `api${path}`, body);

async function doing(text, work) {
  try {
    await work();
    say(text);
    await load();
  } catch (error) {
    say(error.message, true);
  }
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

function does(row) {
  const [label, action] = row.replicated ? ["Reload", "reload"] : ["Clone", "clone"];
  const pressed = (text, what) => element("button", { type: "button", "data-map": what, "data-id": row.id, "aria-label": `${text} ${row.name}` }, text);
  return { key: [row.id, action], make: () => [pressed(label, action), pressed("Options", "options")] };
}

export function drawMap() {
  fill("#map-sources", sources.map((row) => [
    row.db_name, row.sid, row.url, row.up ? { text: "up", state: "up" } : { text: row.error ? "down" : "not asked yet", state: row.error ? "down" : "new" },
    row.status, seconds(row.lag_seconds), row.error,
  ]));
  const wanted = $("[name=map]").value.toLowerCase();
  const shown = tables.filter((row) => `${row.db_name} ${row.schema}.${row.name} ${row.state ?? "not mapped"}`.toLowerCase().includes(wanted));
  fill("#mapped", shown.map((row) => {
    const held = most(row.sources, (each) => each.held);
    return [
      row.db_name, `${row.schema}.${row.name}`, row.replicated ? row.type : "", row.replicated ? row.target : "",
      { text: row.state ?? "not mapped", state: row.state ?? "new" }, seconds(most(row.sources, (each) => each.lag_seconds)),
      held ? String(held) : "", detail(row), does(row),
    ];
  }));
}

async function load() {
  [sources, tables] = await Promise.all([api("GET", "/url"), api("GET", "/map")]);
  drawMap();
}

// Called again and again while the screen is shown.
export async function map() {
  drawMap();
  if (Date.now() < next) return;
  next = Infinity;
  const began = Date.now();
  try {
    await load();
  } finally {
    next = Date.now() + Math.max(POLL, 10 * (Date.now() - began));
  }
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
  $("[data-map=remove]").hidden = !table.replicated;
  $("[role=alert]", form).textContent = "";
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
    $("[role=alert]", form).textContent = error.message;
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
  const action = event.target.dataset.map;
  const table = tables.find((each) => String(each.id) === event.target.dataset.id);
  if (action === "refresh") doing("the sources were asked", () => api("POST", "/map/refresh"));
  if (action === "clone" && table.partitions.length) edit(table); // it needs a pattern
  else if (action === "clone") doing(`${table.name} is mapped`, () => api("POST", `/map/${table.id}/clone`));
  if (action === "reload") doing(`${table.name} is loaded anew`, () => api("POST", `/map/${table.id}/reload`));
  if (action === "options") edit(table);
  if (action === "close") dialog.close();
  if (action === "remove") save(() => api("DELETE", `/tbl/${open.tbl_id}`), `${open.name} has left the map; its target stays`);
});
