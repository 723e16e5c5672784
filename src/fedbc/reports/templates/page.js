// Draws the page's charts in its colours, and sets the charts' parameters from the controls.
// Other scripts find the views in `fedbcPage.views`, by name, once `fedbcPage.ready` is fulfilled.
"use strict";
const fedbcPage = (() => {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const views = {};
  const drawn = {};
  const values = {};

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  function config(narrow) {
    const [text, line] = [colour("text"), colour("line")];
    const words = { labelColor: text, titleColor: text, titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 12 };
    const palette = [];
    for (let i = 0; colour(`colour-${i}`); i++) palette.push(colour(`colour-${i}`));
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      range: { category: palette, heatmap: [colour("card"), colour("link")] },
      view: { stroke: null },
      axis: { ...words, gridColor: line, domainColor: line, tickColor: line, labelOverlap: "greedy",
        labelSeparation: 6 },
      legend: { ...words, orient: "top", title: null, columns: narrow ? 2 : 6, labelLimit: narrow ? 130 : 220 },
      title: { color: text, anchor: "start", fontSize: 14 },
      rule: { color: text },
      text: { color: text },
    };
  }

  function complete(spec, rows) {
    const used = {};
    const text = JSON.stringify(spec);
    for (const name of Object.keys(rows)) if (text.includes(`"${name}"`)) used[name] = rows[name];
    return { ...spec, datasets: used };
  }

  function parameters(spec) {
    return (spec.params || []).map((p) => p.name);
  }

  async function draw(name) {
    const place = document.querySelector(`[data-chart="${CSS.escape(name)}"]`);
    const spec = page.charts[name];
    const { view, finalize } = await vegaEmbed(place, complete(spec, page.rows), {
      mode: "vega-lite",
      renderer: "svg",
      config: config(place.clientWidth < 480),
      tooltip: { theme: dark.matches ? "dark" : "light" },
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: name,
    });
    views[name] = view;
    drawn[name] = finalize;
    for (const [parameter, value] of Object.entries(values)) {
      if (parameters(spec).includes(parameter)) view.signal(parameter, value);
    }
    await view.runAsync();
    view.addEventListener("click", (event, item) => pickFrom(item));
  }

  async function set(parameter, value) {
    values[parameter] = value;
    await Promise.all(
      Object.keys(views)
        .filter((name) => parameters(page.charts[name]).includes(parameter))
        .map((name) => views[name].signal(parameter, value).runAsync()),
    );
  }

  // A click on a mark of a device, say, picks that device in all charts; a second one lets go of it.
  function pickFrom(item) {
    // The cells around the points of a chart that looks for the nearest one hold the point as their datum.
    const datum = item && item.datum && (item.datum.datum || item.datum);
    if (!datum) return;
    for (const list of document.querySelectorAll("select[data-pick]")) {
      const value = JSON.stringify(datum[list.dataset.pick]);
      if (value === undefined || ![...list.options].some((o) => o.value === value)) continue;
      list.value = list.value === value ? "null" : value;
      list.dispatchEvent(new Event("change"));
    }
  }

  for (const box of document.querySelectorAll("[data-toggles]")) {
    const hidden = () => [...box.querySelectorAll("input")].filter((i) => !i.checked).map((i) => i.value);
    box.addEventListener("change", () => set(box.dataset.toggles, hidden()));
    for (const button of box.querySelectorAll("[data-check]")) {
      button.addEventListener("click", () => {
        for (const input of box.querySelectorAll("input")) input.checked = button.dataset.check === "all";
        set(box.dataset.toggles, hidden());
      });
    }
  }
  for (const list of document.querySelectorAll("select[data-pick]")) {
    list.addEventListener("change", () => set(list.dataset.pick, JSON.parse(list.value)));
  }

  async function drawAll() {
    for (const name of Object.keys(page.charts)) {
      if (drawn[name]) drawn[name]();
      await draw(name);
    }
    document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
  }

  const result = { views, set, draw: drawAll, ready: drawAll() };
  dark.addEventListener("change", () => {
    result.ready = result.ready.then(drawAll);
  });
  return result;
})();
