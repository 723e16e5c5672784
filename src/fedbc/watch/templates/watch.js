// Asks for the data again and again, and puts them into the table and the charts that are there.
// When the page itself must change (a run more, a chart that now has rows), it is loaded anew.
"use strict";
(() => {
  const SECONDS = 1;
  const first = JSON.parse(document.getElementById("watch-first").textContent);
  const hasCharts = document.getElementById("page-data") !== null;
  let have = "";
  let drawn = "";
  let rows = null;

  const line = document.createElement("div");
  line.id = "watch-state";
  line.setAttribute("role", "status");
  const bar = document.createElement("progress");
  bar.setAttribute("aria-label", "rounds done");
  const word = document.createElement("span");
  word.id = "watch-word";
  line.append(word, bar);
  document.querySelector("header h1").after(line);
  const title = document.title;

  function fill(cells, shares) {
    const body = document.querySelector("#table-runs tbody");
    [...body.rows].forEach((row, i) => {
      [...row.cells].forEach((cell, j) => {
        if (cell.firstChild === null || cell.firstChild.nodeType !== Node.TEXT_NODE) cell.prepend("");
        if (cell.firstChild.data !== cells[i][j]) cell.firstChild.data = cells[i][j];
      });
      if (shares[i] === null) return;
      const place = row.cells[2];
      const small = place.querySelector("progress") || place.appendChild(document.createElement("progress"));
      small.setAttribute("aria-label", `rounds done of ${cells[i][0]}`);
      small.value = shares[i];
    });
  }

  function say(state, share) {
    line.dataset.state = state;
    if (word.textContent !== state) word.textContent = state;
    bar.value = share;
    document.title = state === "running" ? `${Math.round(100 * share)} % · ${title}` : `${state} · ${title}`;
  }

  async function redraw() {
    if (!hasCharts || rows === null) return;
    await fedbcPage.ready;
    for (const view of Object.values(fedbcPage.views)) {
      for (const [name, values] of Object.entries(rows)) {
        // A view has only the data of its own chart; Vega throws for others.
        try { view.data(name); } catch { continue; }
        view.data(name, values.map((row) => ({ ...row })));
      }
      await view.runAsync();
    }
    document.documentElement.dataset.followed = drawn;
  }

  async function look() {
    const answer = await fetch(`data.json?have=${have}`, { cache: "no-store" });
    if (answer.status === 204) return;
    if (!answer.ok) throw new Error(`${answer.status}`);
    const data = await answer.json();
    if (data.layout !== first.layout) return location.reload();
    have = data.version;
    fill(data.cells, data.shares);
    say(data.state, data.share);
    if (data.drawn !== drawn) {
      [drawn, rows] = [data.drawn, data.rows];
      await redraw();
    }
  }

  async function follow() {
    try {
      await look();
      delete line.dataset.gone;
    } catch (error) {
      // The viewer was ended, or the machine sleeps: what was seen stays, and the page goes on when it is back.
      line.dataset.gone = "yes";
      word.textContent = "fedbc watch has ended; this is what it last showed";
      have = "";
    }
    setTimeout(follow, 1000 * SECONDS);
  }

  // The charts are drawn anew from the page's own rows when light turns dark.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  fill(first.cells, first.shares);
  say(first.state, first.share);
  follow();
})();
