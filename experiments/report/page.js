"use strict";
// Draws the charts from the JSON blocks of the page, fills the curve charts with the chosen runs, sorts and filters the
// table. Nothing is fetched: the page works from disk.
(() => {
  const json = (id) => JSON.parse(document.getElementById(id).textContent);
  const options = {
    renderer: "svg",
    actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
    ast: false,
  };
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);

  // Training curves: one view a metric, fed with the runs whose box is ticked.
  let curves = null;
  let groups = null;
  const views = new Map();
  const chosen = () => rows.filter((row) => row.querySelector(".pick input:checked")).map((row) => row.dataset.run);
  const points = (metric) => {
    curves = curves || json("curves");
    groups = groups || json("groups");
    return chosen().flatMap((run) => {
      const [steps, values] = (curves[run] || {})[metric] || [[], []];
      return steps.map((step, i) => ({ run: groups[run].name, group: groups[run].group, step, value: values[i] }));
    });
  };
  const redraw = () => views.forEach((view, metric) => view.data("curves", points(metric)).runAsync());

  const draw = async (place) => {
    const spec = json("spec-" + place.dataset.spec);
    const metric = place.dataset.metric;
    if (metric) spec.datasets = { curves: points(metric) };
    const { view } = await vegaEmbed(place, spec, options);
    if (metric) views.set(metric, view);
    place.dataset.drawn = "true";
  };
  Promise.all(Array.from(document.querySelectorAll(".chart"), draw)).then(() => {
    document.documentElement.dataset.ready = "true";
  });
  body.addEventListener("change", (event) => { if (event.target.matches(".pick input")) redraw(); });

  // Filter: every word must occur in the row.
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const filter = document.getElementById("filter");
  const shown = document.getElementById("shown");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row, i) => {
      const fits = words.every((word) => texts[i].includes(word));
      row.hidden = !fits;
      count += fits;
    });
    shown.textContent = `${count} of ${rows.length}`;
  });

  // Sort: numbers by data-key, words by text, what is missing last.
  const value = (row, column) => {
    const cell = row.cells[column];
    return "key" in cell.dataset ? Number(cell.dataset.key) : cell.textContent.trim();
  };
  const missing = (one) => one === "" || one === "–";
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  table.tHead.addEventListener("click", (event) => {
    const header = event.target.closest("th[aria-sort]");
    if (!header) return;
    const upward = header.getAttribute("aria-sort") !== "ascending";
    table.tHead.querySelectorAll("th[aria-sort]").forEach((one) => one.setAttribute("aria-sort", "none"));
    header.setAttribute("aria-sort", upward ? "ascending" : "descending");
    const column = header.cellIndex;
    const keyed = rows.map((row) => [value(row, column), row]);
    keyed.sort(([a], [b]) => missing(a) - missing(b) || (upward ? compare(a, b) : compare(b, a)));
    body.append(...keyed.map(([, row]) => row));
  });
})();
