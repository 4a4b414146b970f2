/* page.js: draws the charts again with dygraphs, so that one can hover, zoom and switch series. */
(function () {
  "use strict";
  var COLOURS = 7;
  var DASHES = [null, [7, 4], [2, 3], [9, 3, 2, 3]];
  var boards = [];

  function element(name, className, text) {
    var made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  function dashesOf(series) {
    return DASHES[Math.floor(series.style / COLOURS) % DASHES.length];
  }

  function isHollow(series) {
    return Math.floor(series.style / COLOURS) % 2 === 1;
  }

  /* 12 000 000 as 12M, 0.000012 as 1.2e-5. */
  function short(value) {
    var units = ["", "k", "M", "G", "T", "P"], unit = 0, size = Math.abs(value);
    while (size >= 9999.5 && unit < units.length - 1) { size /= 1000; unit++; }
    return (value < 0 ? "\u2212" : "") + String(Number(size.toPrecision(unit ? 3 : 5))) + units[unit];
  }

  /* Rows [x, [low, y, high] of each series] over all x that any series has. */
  function rowsOf(chart) {
    var rows = new Map();
    chart.series.forEach(function (series, s) {
      series.x.forEach(function (x, i) {
        if (!rows.has(x)) rows.set(x, [x].concat(chart.series.map(function () { return null; })));
        var y = series.y[i];
        rows.get(x)[s + 1] = [series.low ? series.low[i] : y, y, series.high ? series.high[i] : y];
      });
    });
    return Array.from(rows.values()).sort(function (a, b) { return a[0] - b[0]; });
  }

  function drawMark(series) {
    return function (graph, name, context, x, y, markColour, size) {
      context.beginPath();
      context.arc(x, y, size, 0, 2 * Math.PI);
      context.lineWidth = 2;
      context.setLineDash([]);
      context.strokeStyle = markColour;
      context.fillStyle = isHollow(series) ? colour("paper") : markColour;
      context.fill();
      context.stroke();
    };
  }

  /* A vertical bar from low to high through each point, and the series' name beside it. */
  function pointPlotter(chart) {
    return function (e) {
      var context = e.drawingContext, series = chart.series[Number(e.setName.slice(1))];
      var right = e.plotArea.x + e.plotArea.w;
      e.points.forEach(function (point) {
        if (!isFinite(point.canvasy)) return;
        var top = e.dygraph.toDomYCoord(point.yval_plus), low = e.dygraph.toDomYCoord(point.yval_minus);
        context.save();
        context.strokeStyle = e.color;
        context.lineWidth = 2;
        context.beginPath();
        context.moveTo(point.canvasx, top);
        context.lineTo(point.canvasx, low);
        context.stroke();
        drawMark(series)(e.dygraph, e.setName, context, point.canvasx, point.canvasy, e.color, 5);
        context.fillStyle = colour("ink");
        context.font = "12px system-ui, sans-serif";
        var text = series.name.length > 22 ? series.name.slice(0, 21) + "\u2026" : series.name;
        var toLeft = point.canvasx + 10 + context.measureText(text).width > right;
        context.textAlign = toLeft ? "right" : "left";
        if (placeLabel(e.dygraph, point.canvasx, point.canvasy, context.measureText(text).width, toLeft))
          context.fillText(text, point.canvasx + (toLeft ? -9 : 9), point.canvasy + 4);
        context.restore();
      });
    };
  }

  /* Labels must not lie on each other: those without room show when pointed at. */
  function placeLabel(graph, x, y, width, toLeft) {
    var box = { left: toLeft ? x - 9 - width : x + 9, top: y - 7, right: toLeft ? x - 9 : x + 9 + width, bottom: y + 7 };
    var taken = graph.labelBoxes;
    var free = taken.every(function (other) {
      return box.right < other.left || box.left > other.right || box.bottom < other.top || box.top > other.bottom;
    });
    if (free) taken.push(box);
    return free;
  }

  function seriesOptions(chart) {
    var options = {};
    chart.series.forEach(function (series, s) {
      options["s" + s] = {
        color: colour("c" + series.style % COLOURS),
        strokePattern: dashesOf(series),
        drawPointCallback: drawMark(series),
        drawHighlightPointCallback: drawMark(series)
      };
    });
    return options;
  }

  function readOut(board, x, points, name) {
    board.readout.textContent = "";
    var shown = points.filter(function (point) { return point.name === name; });
    (shown.length ? shown : points.slice(0, 1)).forEach(function (point) {
      var series = board.chart.series[Number(point.name.slice(1))];
      var i = series.x.indexOf(point.xval), y = point.yval;
      board.readout.append(element("b", "", series.name));
      board.readout.append(" " + board.chart.x_title.split(":")[0] + " " + short(point.xval) + ", " +
        board.chart.y_title + " " + y.toFixed(4));
      if (series.low && i >= 0 && series.low[i] < series.high[i])
        board.readout.append(" [" + series.low[i].toFixed(4) + ", " + series.high[i].toFixed(4) + "]");
    });
  }

  function themeOptions() {
    return { gridLineColor: colour("grid"), axisLineColor: colour("soft") };
  }

  function graphOptions(board) {
    var chart = board.chart, theme = themeOptions();
    var options = {
      labels: ["x"].concat(chart.series.map(function (series, s) { return "s" + s; })),
      series: seriesOptions(chart),
      visibility: chart.series.map(function () { return true; }),
      customBars: true,
      connectSeparatedPoints: true,
      fillAlpha: 0.13,
      strokeWidth: 2,
      drawPoints: chart.points || rowsOf(chart).length <= 24,
      pointSize: chart.points ? 5 : 3,
      highlightCircleSize: 5,
      legend: "never",
      underlayCallback: function (context, area, graph) { graph.labelBoxes = []; },
      gridLineColor: theme.gridLineColor,
      axisLineColor: theme.axisLineColor,
      xRangePad: chart.points || rowsOf(chart).length <= 24 ? 24 : 4,
      yRangePad: 14,
      animatedZooms: false,
      axes: {
        x: { axisLabelFormatter: short, logscale: chart.x_log, pixelsPerLabel: 70, axisLabelWidth: 60 },
        y: { axisLabelFormatter: short, axisLabelWidth: 52, pixelsPerLabel: 40 }
      },
      highlightSeriesOpts: chart.points ? { highlightCircleSize: 8 } : { strokeWidth: 4, highlightCircleSize: 5 },
      highlightSeriesBackgroundAlpha: chart.points ? 1 : 0.35,
      highlightSeriesBackgroundColor: colour("paper"),
      highlightCallback: function (event, x, points, row, name) { readOut(board, x, points, name); },
      unhighlightCallback: function () { board.readout.textContent = board.hint; },
      zoomCallback: function () { board.reset.disabled = !board.graph.isZoomed(); }
    };
    if (chart.points) {
      options.plotter = pointPlotter(chart);
      options.strokeWidth = 0.01;
    }
    return options;
  }

  function keyPicture(series, points) {
    var space = "http" + "://www.w3.org/2000/svg"; /* a name, never fetched */
    var picture = document.createElementNS(space, "svg");
    var shape = document.createElementNS(space, points ? "circle" : "path");
    var look = " c" + series.style % COLOURS + " d" + Math.floor(series.style / COLOURS) % DASHES.length;
    picture.setAttribute("viewBox", "0 0 30 14");
    picture.setAttribute("aria-hidden", "true");
    shape.setAttribute("class", (points ? "mark" : "line") + look);
    if (points) { shape.setAttribute("cx", 15); shape.setAttribute("cy", 7); shape.setAttribute("r", 5); }
    else shape.setAttribute("d", "M1 7H29");
    picture.append(shape);
    return picture;
  }

  function makeKey(board, s) {
    var series = board.chart.series[s];
    var label = element("label"), box = element("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", function () {
      board.graph.setVisibility(s, box.checked);
    });
    label.title = series.name;
    label.append(box, keyPicture(series, board.chart.points), element("span", "", series.name));
    label.addEventListener("mouseenter", function () {
      if (box.checked && !board.chart.points) board.graph.setSelection(false, "s" + s);
    });
    label.addEventListener("mouseleave", function () { board.graph.clearSelection(); });
    board.boxes.push(box);
    return label;
  }

  function switchAll(board, on) {
    board.boxes.forEach(function (box) { box.checked = on; });
    board.graph.setVisibility(board.boxes.map(function () { return on; }));
  }

  function button(text, act) {
    var made = element("button", "", text);
    made.type = "button";
    made.addEventListener("click", act);
    return made;
  }

  /* Arrow keys move the view, + and - zoom, 0 shows everything. */
  function onKey(board, event) {
    var range = board.graph.xAxisRange(), span = range[1] - range[0], middle = (range[0] + range[1]) / 2;
    var views = {
      ArrowLeft: [range[0] - span / 5, range[1] - span / 5], ArrowRight: [range[0] + span / 5, range[1] + span / 5],
      "+": [middle - span / 3, middle + span / 3], "-": [middle - span * 0.75, middle + span * 0.75]
    };
    if (event.key === "0") board.graph.resetZoom();
    else if (views[event.key]) board.graph.updateOptions({ dateWindow: views[event.key] });
    else return;
    board.reset.disabled = !board.graph.isZoomed();
    event.preventDefault();
  }

  function makeBoard(chart) {
    var figure = document.getElementById(chart.name), still = figure.querySelector(".still");
    var board = { chart: chart, boxes: [], figure: figure };
    board.hint = "Point at a line to read it. Drag to zoom, double-click to see all.";
    if (chart.points) board.hint = "Point at a mark to read it. Drag to zoom, double-click to see all.";
    var frame = element("div", "board"), tools = element("div", "tools"), keys = element("fieldset", "keys");
    board.plot = element("div", "plot");
    board.plot.tabIndex = 0;
    board.plot.setAttribute("role", "img");
    board.plot.setAttribute("aria-label", still.querySelector("svg").getAttribute("aria-label") +
      " Arrow keys move, plus and minus zoom, zero shows everything.");
    board.plot.addEventListener("keydown", function (event) { onKey(board, event); });
    board.readout = element("div", "readout", board.hint);
    board.reset = button("Reset zoom", function () { board.graph.resetZoom(); board.reset.disabled = true; });
    board.reset.disabled = true;
    tools.append(button("All on", function () { switchAll(board, true); }),
      button("All off", function () { switchAll(board, false); }), board.reset);
    frame.append(element("div", "axis-title", chart.y_title), board.plot, element("div", "axis-title x", chart.x_title),
      board.readout, tools, keys);
    figure.insertBefore(frame, still);
    board.graph = new Dygraph(board.plot, rowsOf(chart), graphOptions(board));
    keys.append(element("legend", "", "Shown"));
    chart.series.forEach(function (series, s) { keys.append(makeKey(board, s)); });
    figure.classList.add("scripted");
    board.graph.resize();
    boards.push(board);
  }

  function repaint() {
    boards.forEach(function (board) {
      var options = themeOptions();
      options.series = seriesOptions(board.chart);
      options.highlightSeriesBackgroundColor = colour("paper");
        board.graph.updateOptions(options);
    });
  }

  JSON.parse(document.getElementById("charts").textContent).forEach(makeBoard);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  window.reportBoards = boards; /* for the self-test */
})();
