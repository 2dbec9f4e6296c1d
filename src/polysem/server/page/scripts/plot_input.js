// The pointer, fingers and keys on a plot.

export function listen(plot) {
  const { canvas } = plot,
    pointers = new Map();
  let moved = 0,
    spread = 0;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    moved = spread = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      plot.point(plot.nearest(event.offsetX, event.offsetY));
      return;
    }
    pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    const [a, b] = [...pointers.values()];
    if (b) {
      const now = Math.hypot(a[0] - b[0], a[1] - b[1]);
      if (spread) plot.zoom(now / spread, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
      spread = now;
      moved = 9;
    } else {
      moved += Math.abs(event.offsetX - before[0]) + Math.abs(event.offsetY - before[1]);
      if (moved > 4) {
        plot.point(-1);
        plot.pan(event.offsetX - before[0], event.offsetY - before[1]);
      }
    }
  });
  const release = (event) => {
    if (!pointers.delete(event.pointerId) || event.type !== "pointerup" || moved > 4) return;
    const found = plot.nearest(event.offsetX, event.offsetY);
    // A finger cannot hover: its first touch shows the item, its second searches.
    if (event.pointerType === "touch" && found !== plot.over) plot.point(found);
    else if (found >= 0) plot.clicked(found);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") plot.point(-1);
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      plot.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.offsetX, event.offsetY);
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => {
    const acts = {
      ArrowLeft: () => plot.walk(-1, 0),
      ArrowRight: () => plot.walk(1, 0),
      ArrowUp: () => plot.walk(0, -1),
      ArrowDown: () => plot.walk(0, 1),
      "+": () => plot.zoom(1.35),
      "=": () => plot.zoom(1.35),
      "-": () => plot.zoom(1 / 1.35),
      0: () => plot.showAll(),
      Enter: () => {
        if (plot.over >= 0) plot.clicked(plot.over);
      },
      Escape: () => plot.point(-1),
    };
    if (!(event.key in acts) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    acts[event.key]();
  });
}
