"use strict";
(async () => {
  const root = document.documentElement;
  const status = document.getElementById("status");
  const setStatus = (text) => { if (status) status.textContent = text; };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 600px)");

  const bytesOf = (base64) => Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));

  const inflate = async (base64) => {
    const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };

  // Figures take the page's colours, so that they follow its dark mode.
  const theme = () => {
    const style = getComputedStyle(root);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    const axis = {
      gridcolor: color("grid"), linecolor: color("line"), zerolinecolor: color("line"), tickcolor: color("line"),
      showline: true, automargin: true, title: { font: { color: color("muted"), size: 12 }, standoff: 8 },
    };
    return { layout: {
      paper_bgcolor: color("card"), plot_bgcolor: color("plot"),
      font: { color: color("ink"), family: color("sans"), size: narrow.matches ? 11 : 12.5 },
      xaxis: axis, yaxis: axis,
      hoverlabel: {
        bgcolor: color("card"), bordercolor: color("line"), font: { color: color("ink"), family: color("sans"), size: 12.5 },
      },
      sliderdefaults: {
        bgcolor: color("muted"), activebgcolor: color("link"), bordercolor: color("line"), tickcolor: color("line"),
        font: { color: color("muted"), size: 11 }, currentvalue: { font: { color: color("ink"), size: 13 } },
      },
    } };
  };

  // Hover texts of a heat map's cells, which would be too large to store in the page.
  const fill = (trace) => {
    if (trace.type !== "heatmap") return;
    const { steps, rows } = trace.meta;
    const shares = new Float32Array(bytesOf(trace.z.bdata).buffer);
    const share = (index) => `${Number((100 * 10 ** shares[index]).toPrecision(3))} %`;
    trace.text = rows.map((row, j) => steps.map((step, i) => `${step}<br>${row}<br>share ${share(j * steps.length + i)}`));
  };

  const settings = {
    responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  };

  // Lines on a heat map's darker cells: white in dark mode.
  const ink = (data) => data.flatMap((trace, index) => (trace.meta?.ink ? [index] : []));
  const inked = async (place) => {
    const lines = ink(place.data);
    if (lines.length) await Plotly.restyle(place, { "line.color": dark.matches ? "#ffffff" : "#000000" }, lines);
  };

  // Buttons above a figure that displays one group of its traces at a time.
  const choose = (place) => {
    const groups = [...new Set(place.data.flatMap((trace) => trace.meta?.choice ?? []))];
    if (groups.length < 2) return;
    const bar = document.createElement("div");
    bar.className = "choices";
    const shown = place.data.find((trace) => trace.meta?.choice && trace.visible !== false).meta.choice;
    for (const group of groups) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = group;
      button.ariaPressed = group === shown;
      button.addEventListener("click", () => {
        for (const other of bar.children) other.ariaPressed = other === button;
        Plotly.restyle(place, { visible: place.data.map((trace) => !trace.meta?.choice || trace.meta.choice === group) });
      });
      bar.append(button);
    }
    place.before(bar);
  };

  const draw = async (panel) => {
    const place = document.getElementById(`plot-${panel.key}`);
    panel.figure.data.forEach(fill);
    const layout = { ...panel.figure.layout, template: theme() };
    if (narrow.matches) {
      layout.margin = { ...layout.margin, l: 44, r: 8 };
      layout.dragmode = false; // a finger scrolls the page
    }
    const image = { filename: panel.key, scale: 2 };
    await Plotly.newPlot(place, panel.figure.data, layout, { ...settings, toImageButtonOptions: image });
    if (dark.matches) await inked(place);
    choose(place);
    return place;
  };

  try {
    const panels = JSON.parse(document.getElementById("panels").textContent);
    if (panels.length) {
      if (typeof DecompressionStream === "undefined") {
        setStatus("This browser is too old to draw the figures: it lacks DecompressionStream (Chrome 80, Firefox 113, Safari 16.4).");
        return;
      }
      const library = document.getElementById("library");
      const script = document.createElement("script");
      script.textContent = await inflate(library.textContent);
      document.head.append(script);
      library.remove();
      const places = [];
      for (const panel of panels) places.push(await draw(panel));
      const restyle = () => places.forEach((place) => Plotly.relayout(place, { template: theme() }).then(() => inked(place)));
      dark.addEventListener("change", restyle);
    }
    root.dataset.ready = "";
  } catch (error) {
    setStatus(`The figures could not be drawn: ${error.message}`);
    throw error;
  }
})();
