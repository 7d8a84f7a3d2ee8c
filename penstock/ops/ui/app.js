// The dashboard: what the ops server says of a pipeline, and what an operator may do. Values are only
// ever set as text. Addresses are relative, so a proxy may serve the page below a prefix.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector) => [...document.querySelectorAll(selector)];
const token = $("[name=token]");
const dialog = $("dialog");
const SILENT = 5000; // milliseconds without an event, and the connection is lost
const POLL = 3000; // where the events have no room for us
const MESSAGES = 200; // that are shown
const CHARTS = {
  throughput: { read: "read", stored: "stored" },
  lag: { lag_seconds: "lag" },
  latency: { latency_p50_ms: "p50", latency_p99_ms: "p99" },
  "history-left": { window_left_seconds: "left" },
};
const COLORS = ["#0b57d0", "#b3261e", "#146c2e", "#8a5a00", "#6750a4", "#00696d"];
const DARK = ["#8ab4f8", "#ff8a80", "#81c995", "#fdd663", "#d0bcff", "#80d5d9"];
// What becomes of the data.
const DANGEROUS = {
  pause: "What is in flight is stored, and nothing more is taken. The source keeps its changes meanwhile.",
  shutdown: "What is in flight is stored and acknowledged; the source keeps what comes after that. Nothing here starts it again.",
  "suspend-table": "Its changes are counted, and are missing in a stream until a snapshot is taken. A sink of tables holds them.",
  "cancel-snapshot": "The chunks of the snapshot go.",
  mend: "The partition counts as whole again. Its tables should have been loaded anew.",
};
let status = null;
let before = null; // the status before, for rates
let actions = { actions: [], recent: [] };
let range = "15m";
let heard = 0; // when, in milliseconds
let asking = new AbortController();
let watching = new AbortController(); // of messages
let watched = ""; // how they were asked for
let leftOut = 0;
const plots = new Map();
const lines = [];
const messages = [];
let keys = null; // of the configuration
let paths = []; // that the service answers

token.value = sessionStorage.getItem("token") ?? "";
token.addEventListener("change", () => {
  sessionStorage.setItem("token", token.value);
  asking.abort();
  watched = "";
  refresh();
});

function headers() {
  return token.value ? { Authorization: `Bearer ${token.value}` } : {};
}

async function ask(path, more = {}) {
  const answer = await fetch(`../${path}`, { ...more, headers: { ...headers(), ...more.headers } });
  if (answer.ok) return answer;
  const { error, info } = await answer.json();
  if (answer.status === 401) token.focus();
  throw Object.assign(new Error([error, info].filter(Boolean).join(": ")), { status: answer.status });
}

async function get(path) {
  return (await ask(path)).json();
}

// Server-sent events, until there are no more.
async function follow(path, signal, taken) {
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

function say(text, isError = false) {
  $("#message").textContent = text;
  $("#message").classList.toggle("error", isError);
}

function element(kind, text, more = {}) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  Object.entries(more).forEach(([name, value]) => { if (value !== undefined) made.setAttribute(name, value); });
  return made;
}

// Rows are changed in place, so that the focus stays where it is. A cell is a text, or a text with a
// state, or a list of buttons: [label, action, arguments].
function fill(selector, rows) {
  const body = $(`${selector} tbody`);
  rows.forEach((cells, number) => {
    const line = body.rows[number] ?? body.insertRow();
    cells.forEach((cell, at) => {
      const place = line.cells[at] ?? line.insertCell();
      if (Array.isArray(cell)) return buttons(place, cell);
      const { text, ...states } = typeof cell === "object" && cell !== null ? cell : { text: cell };
      const shown = String(text ?? "");
      if (place.textContent !== shown) place.textContent = shown;
      Object.entries(states).forEach(([name, value]) => { place.dataset[name] = value; });
    });
  });
  while (body.rows.length > rows.length) body.deleteRow(-1);
}

function buttons(place, wanted) {
  const key = JSON.stringify(wanted);
  if (place.dataset.buttons === key) return;
  place.dataset.buttons = key;
  place.replaceChildren(...wanted.map(([label, action, given]) => {
    const button = element("button", label, { type: "button", [action ? "data-action" : "data-letter"]: action ?? "" });
    button.dataset.given = JSON.stringify(given);
    return button;
  }));
}

function number(value, digits = 0) {
  return value === null || value === undefined ? "–" : value.toLocaleString(undefined, { maximumFractionDigits: digits });
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 120) return `${value.toFixed(1)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

function sum(items, pick) {
  return items.reduce((total, item) => total + (pick(item) ?? 0), 0);
}

function most(items, pick) {
  const known = items.map(pick).filter((value) => value !== null && value !== undefined);
  return known.length ? Math.max(...known) : null;
}

function put(name, text) {
  $$(`[data-value=${name}]`).forEach((place) => { if (place.textContent !== text) place.textContent = text; });
}

// Since the status before: changes a second.
function rate(pick) {
  if (!before || status.uptime_seconds <= before.uptime_seconds) return null;
  return Math.max(0, pick(status) - pick(before)) / (status.uptime_seconds - before.uptime_seconds);
}

const readOf = (found) => sum(found.backends, (each) => each.events);
const storedOf = (found) => sum(found.sinks, (each) => each.acknowledged);

function overview() {
  const { backends, sinks, tables } = status;
  put("name", status.name);
  put("health", status.health);
  $("[data-value=health]").dataset.health = status.health;
  put("ready", status.ready ? "yes" : `no: ${status.unready.join("; ")}`);
  put("delivery", [...new Set(sinks.map((each) => each.delivery).filter(Boolean))].join(", ") || "–");
  put("read", number(readOf(status)));
  put("stored", number(storedOf(status)));
  put("lag", seconds(most(backends, (each) => each.lag_seconds)));
  put("p50", `${number(most(sinks, (each) => each.latency_p50_ms), 1)} ms`);
  put("p99", `${number(most(sinks, (each) => each.latency_p99_ms), 1)} ms`);
  put("letters", number(sum(sinks, (each) => sum(Object.values(each.dead_letters), (count) => count))));
  put("stale", number(sum(backends, (each) => Object.values(each.gaps).filter((gap) => gap.stale).length)));
  put("suspended", number(tables.filter((each) => each.state === "suspended").length));
  const reasons = JSON.stringify([status.reasons, status.remedies]);
  if (reasons !== $("#reasons").dataset.shown) {
    $("#reasons").dataset.shown = reasons;
    $("#reasons").replaceChildren(...status.reasons.map((text, at) => {
      const { do: remedy, see } = status.remedies[at];
      const item = element("li", `${text} — ${remedy} `);
      item.append(element("a", "More", { href: see, target: "_blank", rel: "noreferrer", "aria-label": `More about: ${text}` }));
      return item;
    }));
  }
  const way = [
    ...backends.map((each) => `${each.name}: ${each.paused ? "paused" : each.connected ? "connected" : "disconnected"}`),
    `${sinks.length ? "Spark: " : ""}${number(rate(readOf))} read a second`,
    ...sinks.flatMap((each) => [
      `${each.name}: ${number(rate(storedOf))} stored a second`, ...(each.details.stream ? [`stream ${each.details.stream}`] : []),
    ]),
  ];
  $("#way").replaceChildren(...way.map((text) => element("li", text)));
}

function stateOf(backend) {
  if (backend.blocked) return { text: `stands still: ${backend.blocked}`, health: "unhealthy" };
  if (backend.paused) {
    const { since, by, until } = backend.paused;
    return { text: `paused since ${since} by ${by}${until ? `, until ${until}` : ""}`, health: "degraded" };
  }
  if (!backend.begun) return { text: "has not begun", health: "degraded" };
  return backend.connected ? { text: "connected", health: "ok" } : { text: "disconnected", health: "unhealthy" };
}

async function sources() {
  fill("#backends", status.backends.map((each) => [
    each.name, stateOf(each), each.confirmed, each.current,
    `${seconds(each.lag_seconds)}${each.lag_bytes ? `, ${number(each.lag_bytes)} bytes` : ""}`,
    each.window_seconds === null ? "" : `${seconds(each.window_left_seconds)} of ${seconds(each.window_seconds)} left`,
    Object.entries(each.details).filter(([, value]) => value !== null && value !== "").map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", "),
    number(each.reconnects), each.last_error,
    [each.paused ? ["Resume", "resume", { backend: each.name }] : ["Pause", "pause", { backend: each.name }],
      ["Retry", "retry", { backend: each.name }]],
  ]));
  const hosts = status.backends.flatMap((each) => [
    ...Object.entries(each.hosts).sort().map(([host, leases]) => [each.name, host + (host === each.host ? " (this one)" : ""), number(leases)]),
    ...(each.unowned ? [[each.name, "none", number(each.unowned)]] : []),
  ]);
  $("#hosts").hidden = !hosts.length;
  fill("#hosts", hosts);
  const wanted = $("[name=partitions]").value.toLowerCase();
  const cut = status.backends.some((each) => each.partition_count > each.partitions.length);
  const all = cut && wanted ? (await get("status?partitions=all")).backends : status.backends;
  const rows = all.flatMap((backend) => backend.partitions.map((row) => [backend, row]))
    .filter(([backend, row]) => [backend.name, row.partition, backend.host, row.state, row.health].join(" ").toLowerCase().includes(wanted))
    .sort(([, one], [, other]) => (other.lag_seconds ?? 0) - (one.lag_seconds ?? 0));
  fill("#partitions", rows.slice(0, 500).map(([backend, row]) => [
    backend.name, row.partition, { text: `${row.state}, ${row.health}`, health: row.health === "healthy" ? "ok" : "degraded" },
    backend.host, seconds(row.lag_seconds), row.place, row.last_error,
    backend.gaps[row.partition]?.stale ? [["Mend", "mend", { backend: backend.name, partition: row.partition }]] : [],
  ]));
  const count = sum(status.backends, (each) => each.partition_count);
  $("#partitions-left").textContent = `${Math.min(rows.length, 500)} of ${count} partitions`;
}

function tables() {
  const wanted = $("[name=tables]").value.toLowerCase();
  const found = status.tables.filter((each) => [each.backend, each.table, each.sid, each.state].join(" ").toLowerCase().includes(wanted));
  const taken = Object.fromEntries(status.backends.map((each) => [each.name, each.snapshots.last ?? {}]));
  fill("#tables", found.slice(0, 500).map((each) => {
    const last = taken[each.backend]?.[each.table];
    const whose = { table: each.table, backend: each.backend };
    const stands = each.state === "suspended" || each.state === "waiting";
    return [
      [each.backend, each.sid].filter(Boolean).join(" / "), each.table, { text: each.state, state: each.state },
      Object.entries(each.applied ?? {}).map(([what, count]) => `${number(count)} ${what}`).join(", "),
      number(each.rate, 1), seconds(each.last_change_seconds),
      last ? `${last.state} ${last.at}, ${number(last.rows)} rows` : "",
      [each.error || each.reason, each.held ? `${number(each.held)} held` : "", each.skipped ? `${number(each.skipped)} skipped` : ""]
        .filter(Boolean).join("; "),
      stands ? [["Resume", "resume-table", whose], ["Resume with its rows", "resume-table", { ...whose, snapshot: true }]]
        : [["Snapshot", "snapshot", whose], ["Suspend", "suspend-table", whose]],
    ];
  }));
}

function snapshots() {
  fill("#snapshots", status.backends.flatMap((backend) => [
    [backend.name, "ended", Object.entries(backend.snapshots.runs).map(([state, count]) => `${number(count)} ${state}`).join(", ")],
    [backend.name, "rows", number(backend.snapshots.rows)],
    ...backend.snapshots.current.map((run) => [
      backend.name, `${[run.table].flat().join(".")} ${run.snapshot_id}`,
      [run.state, `${number(run.done)} of ${number(run.ranges)} ranges`, `${number(run.rows)} rows`,
        run.bytes_per_second ? `${number(run.bytes_per_second)} bytes a second` : "", run.seconds_left ? `${seconds(run.seconds_left)} left` : "", run.waiting ? `waits for ${JSON.stringify(run.waiting)}` : ""]
        .filter(Boolean).join(", "),
    ]),
  ]));
}

function letters() {
  fill("#counts", [
    ...status.sinks.flatMap((sink) => Object.entries(sink.dead_letters).map(([why, count]) => [sink.name, why, "", number(count)])),
    ...status.tables.filter((each) => each.letters).map((each) => [each.backend, each.reason, each.table, number(each.letters)]),
  ]);
}

// They are followed while their screen is shown. What is refused is asked for again when the filter or
// the token changes: wrong tokens are counted.
function followed() {
  fill("#messages", messages.map((each) => [
    each.sequence, each.stored_at, each.table, each.operation, each.key,
    each.change + (each.size > each.change.length ? " …" : ""),
  ]));
  const wanted = `messages?${new URLSearchParams(new FormData($("#filter")))}`;
  if (wanted === watched) return;
  unfollow();
  watched = wanted;
  if (!token.value) return say("Messages show row data: enter the token (ops.token).");
  say("");
  follow(wanted, watching.signal, (_, found) => {
    if (found.error) return say([found.error, found.hint].filter(Boolean).join(": "), true);
    messages.unshift(...found.messages.reverse());
    messages.splice(MESSAGES);
    leftOut += found.left_out;
    $("#left-out").textContent = `${number(leftOut)} left out`;
    return draw();
  }).then(() => { watched = ""; }, (error) => {
    if (error instanceof TypeError) watched = "";
    else if (error.name !== "AbortError") say(error.message, true);
  });
}

function unfollow() {
  watching.abort();
  watching = new AbortController();
  watched = "";
  leftOut = 0;
  messages.length = 0;
}

// It is asked for once each time that its screen is opened; `draw` comes each second.
async function configuration() {
  keys ??= await get("configuration");
  const wanted = $("[name=keys]").value.toLowerCase();
  const text = (value) => (value === null ? "" : typeof value === "string" ? value : JSON.stringify(value));
  $("#versions").textContent = Object.entries(keys.versions).map((each) => each.join(": ")).join(", ");
  fill("#keys", keys.keys.map(({ key, value, default: usual, meaning }) => [
    key, { text: text(value), state: text(value) === text(usual) ? "default" : "set" }, text(usual), meaning,
  ]).filter(([key, value, , meaning]) => [key, value.text, meaning].join(" ").toLowerCase().includes(wanted)));
}

function events() {
  const changes = lines.filter((each) => each.event === "health has changed").slice(-100).reverse();
  fill("#health", changes.map((each) => [each.timestamp, { text: each.health, health: each.health }, each.reasons.join("; ")]));
  fill("#gaps", status.backends.flatMap((backend) => Object.entries(backend.gaps).flatMap(([partition, { gaps }]) =>
    gaps.map((gap) => [gap.at, backend.name, partition, gap.cause, gap.detail]))).sort().reverse());
  fill("#actions", actions.recent.map((each) => [
    each.at, each.action, JSON.stringify(each.arguments), each.by, { text: each.state, state: each.state },
    each.error ? `${each.error} ${each.hint}` : JSON.stringify(each.result),
  ]));
  const log = $("#log");
  const text = lines.map((each) => {
    const { timestamp, level, event, ...rest } = each;
    return [timestamp, level, event, ...Object.entries(rest).map(([name, value]) => `${name}=${JSON.stringify(value)}`)].join(" ");
  }).join("\n");
  if (log.textContent !== text) log.textContent = text;
}

const SCREENS = { overview, sources, tables, snapshots, letters, messages: followed, configuration, events };

function screen() {
  const name = location.hash.replace("#/", "");
  return name in SCREENS && !$(`nav a[href="#/${name}"]`).hidden ? name : "overview";
}

async function draw() {
  const now = screen();
  $$("[data-screen]").forEach((each) => { each.hidden = each.dataset.screen !== now; });
  $$("nav a[href^='#']").forEach((each) => {
    if (each.hash === `#/${now}`) each.setAttribute("aria-current", "page"); else each.removeAttribute("aria-current");
  });
  if (now !== "messages" && watched) unfollow();
  if (now !== "configuration") keys = null;
  if (!status) return;
  overview();
  if (now === "overview") return;
  try {
    await SCREENS[now]();
  } catch (error) {
    say(error.message, true);
  }
}

// Charts.

function drawn(figure, times, series) {
  const name = figure.dataset.chart;
  const key = series.map(([label]) => label).join();
  const data = [times, ...series.map(([, values]) => values)];
  const known = plots.get(name);
  const width = figure.clientWidth - 2 * parseFloat(getComputedStyle(figure).paddingLeft);
  if (known?.key === key && known.width === width) {
    known.plot.setData(data);
  } else {
    known?.plot.destroy();
    const style = getComputedStyle(document.body).color;
    const colors = matchMedia("(prefers-color-scheme: dark)").matches ? DARK : COLORS;
    const axis = { stroke: style, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
    const plot = new uPlot({
      width, height: 180, axes: [axis, { ...axis, size: 70 }], scales: { y: { range: { min: { soft: 0, mode: 1 }, max: { pad: 0.1, soft: 1, mode: 1 } } } },
      series: [{}, ...series.map(([label], at) => ({ label, stroke: colors[at % colors.length], width: 2, spanGaps: false }))],
    }, data, figure);
    plots.set(name, { key, plot, width });
  }
  table(figure, times, series);
}

// For who cannot see the curve: the latest values.
function table(figure, times, series) {
  let details = $("details", figure);
  if (!details) {
    details = element("details");
    details.append(element("summary", "As a table"), element("table"));
    figure.append(details);
  }
  if (!details.open) return;
  const head = element("tr");
  head.append(element("th", "Time"), ...series.map(([label]) => element("th", label)));
  const rows = times.slice(-20).reverse().map((time, back) => {
    const row = element("tr");
    row.append(element("td", new Date(time * 1000).toLocaleTimeString()),
      ...series.map(([, values]) => element("td", number(values[values.length - 1 - back], 1))));
    return row;
  });
  $("table", details).replaceChildren(head, ...rows);
}

async function charts() {
  if (screen() !== "overview" || document.hidden || document.body.dataset.connection !== "live") return;
  const { times, series } = await get(`history?range=${range}`);
  for (const figure of $$("figure[data-chart]")) {
    const wanted = CHARTS[figure.dataset.chart];
    const found = Object.entries(series).flatMap(([name, values]) => {
      const [chart, owner] = name.split("/");
      return chart in wanted ? [[`${wanted[chart]} ${owner}`, values]] : [];
    });
    figure.hidden = !found.length;
    if (found.length) drawn(figure, times, found);
  }
}

// Events.

function take(kind, found) {
  if (kind === "status") show(found);
  if (kind === "log") {
    lines.push(found);
    lines.splice(0, lines.length - 500);
  }
}

function show(found) {
  heard = Date.now();
  if (document.body.dataset.connection !== "live") {
    document.body.dataset.connection = "live";
    say("");
    discover();
  }
  [before, status] = [status, found];
  if (status.health !== before?.health) document.title = `${status.name}: ${status.health}`;
  draw();
}

async function listen() {
  asking = new AbortController();
  lines.length = 0;
  try {
    await follow("events", asking.signal, take);
  } catch (error) {
    if (error.status !== 503) throw error;
    show(await get("status"));
    await new Promise((done) => setTimeout(done, POLL));
  }
}

async function listenForEver() {
  for (;;) {
    let why = "";
    try {
      await listen();
    } catch (error) {
      why = error.name === "AbortError" || error instanceof TypeError ? "" : error.message;
    }
    if (Date.now() - heard > SILENT) lost(why);
    await new Promise((done) => setTimeout(done, 1000));
  }
}

function lost(why) {
  document.body.dataset.connection = "lost";
  const since = heard ? `since ${new Date(heard).toLocaleTimeString()}` : "";
  say(why || `The service does not answer ${since}; trying again.`, true);
}

setInterval(() => {
  if (heard && Date.now() - heard > SILENT) {
    lost("");
    asking.abort();
  }
}, 1000);

// What this service has: a processor has no actions, and not every sink a map or a stream.
async function discover() {
  try {
    paths = (await get("")).endpoints.map((each) => each.path);
    $$("[data-needs]").forEach((link) => { link.hidden = !paths.includes(link.dataset.needs); });
    if (!paths.includes("/actions")) document.body.dataset.kind = "processor";
    draw();
    await refresh();
  } catch (error) {
    say(error.message, true);
  }
}

async function refresh() {
  try {
    if (paths.includes("/actions")) actions = await get("actions");
    const allowed = Object.fromEntries(actions.actions.map((each) => [each.action, each]));
    $$("[data-action]").forEach((button) => {
      const known = allowed[button.dataset.action];
      button.disabled = !known?.allowed;
      button.title = known ? known.why || known.what : "";
    });
    if (screen() === "events") events();
    await charts();
  } catch (error) {
    if (!(error instanceof TypeError)) say(error.message, true); // else the connection's state says it
  }
}

setInterval(() => { if (!document.hidden) refresh(); }, POLL);

// Actions.

function confirmed(action) {
  if (!(action in DANGEROUS)) return Promise.resolve(true);
  $("#question").textContent = `${action}?`;
  $("#consequence").textContent = DANGEROUS[action];
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "confirm"), { once: true }));
}

async function act(action, given) {
  if (!(await confirmed(action))) return;
  const answer = await ask(`actions/${action}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(given),
  });
  const begun = await answer.json();
  say(`${action} has begun`);
  for (let tries = 0; tries < 120; tries += 1) {
    await new Promise((done) => setTimeout(done, 500));
    actions = await get("actions");
    const found = actions.recent.find((each) => each.id === begun.id);
    if (!found || found.state === "running") continue;
    const failed = found.state === "failed";
    say(failed ? `${action} failed: ${found.error} ${found.hint}` : `${action} is done: ${JSON.stringify(found.result)}`, failed);
    break;
  }
  refresh();
}

document.addEventListener("click", (event) => {
  const letter = event.target.closest("[data-letter]");
  if (letter) one(JSON.parse(letter.dataset.given).id);
  const button = event.target.closest("[data-action]");
  if (!button) return;
  const form = button.closest("form");
  if (form && !form.reportValidity()) return;
  event.preventDefault();
  const given = form ? Object.fromEntries(new FormData(form)) : JSON.parse(button.dataset.given ?? "{}");
  act(button.dataset.action, given).catch((error) => say(`${button.dataset.action}: ${error.message}`, true));
});

$$("[data-range]").forEach((button) => button.addEventListener("click", () => {
  range = button.dataset.range;
  $$("[data-range]").forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
  charts().catch((error) => say(error.message, true));
}));

$("#show-letters").addEventListener("click", async () => {
  try {
    const found = await get("letters");
    fill("#letters", found.map((each) => [
      each.id, each.stored_at, each.backend, each.table, each.position, each.reason, each.error,
      [["Replay", "replay", { id: String(each.id) }], ["Show row data", null, { id: String(each.id) }]],
    ]));
    say(`${found.length} dead letters`);
  } catch (error) {
    say(error.message, true);
  }
});

async function one(id) {
  try {
    $("#letter").textContent = JSON.stringify(await get(`letters/${encodeURIComponent(id)}`), null, 2);
    $("#letter").hidden = false;
  } catch (error) {
    say(error.message, true);
  }
}

$$("input[type=search]").forEach((input) => input.addEventListener("input", draw));
$("#filter").addEventListener("change", draw);
addEventListener("hashchange", () => { draw(); refresh(); });
draw();
listenForEver();
