// Curves of /history: the charts, and small ones beside the large numbers.

import { $, $$, bytes, element, number, rate, redraw, seconds, time } from "./page.js";

const milliseconds = (value) => seconds(value === null || value === undefined ? value : value / 1000);
// Of each chart: what of /history is drawn, as what, and how a value is said.
const CHARTS = {
  throughput: { names: { read: "read", stored: "stored" }, said: rate },
  lag: { names: { lag_seconds: "" }, said: seconds },
  "lag-bytes": { names: { lag_bytes: "" }, said: bytes },
  latency: { names: { latency_p50_ms: "p50", latency_p99_ms: "p99" }, said: milliseconds },
  "history-left": { names: { window_left_seconds: "" }, said: seconds },
  "log-left": { names: { window_left_bytes: "" }, said: bytes },
};
const COLORS = ["#0b57d0", "#b3261e", "#146c2e", "#8a5a00", "#6750a4", "#00696d"];
const DARK = ["#8ab4f8", "#ff8a80", "#81c995", "#fdd663", "#d0bcff", "#80d5d9"];
const MARKED = { start: "start", pause: "paused", resume: "goes on", restart: "anew", gap: "gap", snapshot: "snapshot", health: "" };
// Steps of an axis that are round as they are said.
const BYTES = Array.from({ length: 50 }, (_, power) => 2 ** power);
const SECONDS = [0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];
const SMOOTH = 5; // seconds over which a rate is shown
const isDark = matchMedia("(prefers-color-scheme: dark)");
const plots = new Map();

isDark.addEventListener("change", () => {
  plots.forEach(({ plot }) => plot.destroy());
  plots.clear();
});

const known = (values) => values.filter((value) => value !== null);

function smoothed(values) {
  return values.map((value, at) => {
    const near = known(values.slice(Math.max(0, at - SMOOTH + 1), at + 1));
    return value === null || !near.length ? value : near.reduce((total, each) => total + each, 0) / near.length;
  });
}

// One spike would hide all else.
function isSpiky(series) {
  const values = series.flatMap(([, found]) => known(found)).filter((value) => value > 0).sort((one, other) => one - other);
  return values.length > 20 && values.at(-1) > 50 * values[Math.floor(values.length * 0.9)];
}

function marked(plot, marks) {
  const { ctx, bbox } = plot;
  const style = getComputedStyle(document.body);
  ctx.save();
  ctx.textAlign = "left";
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  let free = -Infinity; // where there is room for a word
  marks.filter((each) => MARKED[each.kind]).forEach(({ at, kind, level }) => {
    const x = Math.round(plot.valToPos(at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    ctx.strokeStyle = ctx.fillStyle = style.getPropertyValue(level === "unhealthy" ? "--bad" : level === "degraded" ? "--warn" : "--quiet");
    ctx.setLineDash([4, 4]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (x < free) return;
    ctx.fillText(MARKED[kind], x + 4, bbox.top + 12 * devicePixelRatio);
    free = x + ctx.measureText(MARKED[kind]).width + 12;
  });
  ctx.restore();
}

function drawn(figure, { times, marks, step }, series, said) {
  const name = figure.dataset.chart;
  const isLog = isSpiky(series);
  const width = Math.floor(figure.clientWidth - 2 * parseFloat(getComputedStyle(figure).paddingLeft));
  const isShort = times.at(-1) - times[0] < 300;
  const key = JSON.stringify([series.map(([label]) => label), width, step, isLog, isShort]);
  // A logarithm has no zero.
  const data = [times, ...series.map(([, values]) => (isLog ? values.map((value) => value || null) : values))];
  const latest = (plot) => { if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: plot.data[0].length - 1 }, false); };
  const before = plots.get(name);
  if (before?.key === key) {
    before.marks = marks;
    before.plot.setData(data);
    latest(before.plot);
  } else {
    before?.plot.destroy();
    const stroke = getComputedStyle(document.body).color;
    const axis = { stroke, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
    const clock = step < 3600 ? { hour: "2-digit", minute: "2-digit", ...(isShort ? { second: "2-digit" } : {}) } : { weekday: "short", hour: "2-digit" };
    const colors = isDark.matches ? DARK : COLORS;
    const made = { key, marks };
    made.plot = new uPlot({
      width, height: 170, padding: [10, 28, 0, 0],
      cursor: { sync: { key: "penstock" }, drag: { x: false, y: false } },
      axes: [
        { ...axis, space: 100, values: (_, at) => at.map((each) => new Date(each * 1000).toLocaleString(undefined, clock)) },
        { ...axis, size: 80, incrs: said === bytes ? BYTES : said === seconds ? SECONDS : undefined, values: (_, at) => at.map((each) => (each === null ? "" : said(each))) },
      ],
      scales: { y: isLog ? { distr: 3 } : { range: { min: { soft: 0, mode: 1 }, max: { pad: 0.1, soft: 0.001, mode: 1 } } } },
      series: [
        { value: (_, at) => (at === null ? "" : time(at)) },
        ...series.map(([label], at) => ({ label, stroke: colors[at % colors.length], width: 2, spanGaps: isLog, value: (_, each) => said(each) })),
      ],
      hooks: { draw: [(plot) => marked(plot, made.marks)], setCursor: [latest] },
    }, data, figure);
    plots.set(name, made);
    latest(made.plot);
  }
  $("figcaption small", figure).textContent = isLog ? "logarithmic" : "";
  table(figure, times, series, said);
}

// For who cannot see the curve: the latest values.
function table(figure, times, series, said) {
  let details = $("details", figure);
  if (!details) {
    details = element("details", {}, element("summary", {}, "As a table"), element("table"));
    figure.append(details);
  }
  if (!details.open) return;
  const head = element("tr", {}, element("th", {}, "Time"), ...series.map(([label]) => element("th", {}, label)));
  const rows = times.slice(-20).reverse().map((at, back) => element("tr", {}, element("td", {}, time(at)),
    ...series.map(([, values]) => element("td", {}, said(values[values.length - 1 - back])))));
  $("table", details).replaceChildren(head, ...rows);
}

export function charts(found) {
  const alone = new Set(Object.keys(found.series).map((name) => name.split("/")[1])).size <= 2;
  $$("figure[data-chart]").forEach((figure) => {
    const { names, said } = CHARTS[figure.dataset.chart];
    const series = Object.entries(found.series).flatMap(([name, values]) => {
      const [chart, owner] = [name.slice(0, name.indexOf("/")), name.slice(name.indexOf("/") + 1)];
      if (!(chart in names) || !known(values).length) return [];
      const label = [names[chart], alone && names[chart] ? "" : owner].filter(Boolean).join(" ");
      return [[label, said === rate && found.step === 1 ? smoothed(values) : values]];
    });
    figure.hidden = !series.length;
    if (series.length) drawn(figure, found, series, said);
  });
}

// A curve without axes: the last values of a name, over all owners the highest or the sum.
export function curve(place, { series }, name, isSum) {
  const all = Object.entries(series).filter(([each]) => each.startsWith(`${name}/`)).map(([, values]) => values);
  const length = Math.min(180, all[0]?.length ?? 0);
  const values = Array.from({ length }, (_, at) => {
    const here = known(all.map((each) => each[each.length - length + at]));
    if (!here.length) return null;
    return isSum ? here.reduce((total, each) => total + each, 0) : Math.max(...here);
  });
  const shown = isSum ? smoothed(values) : values;
  const top = Math.max(1e-9, ...known(shown));
  const points = shown.flatMap((value, at) => (value === null ? [] : [`${number((at * 100) / Math.max(1, length - 1), 1)},${number(29 - (28 * value) / top, 1)}`]));
  redraw(place, points, () => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 100 30");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    line.setAttribute("points", points.join(" "));
    svg.append(line);
    return [svg];
  });
}
