// The style sheet's colors for the map as RGB, and when they change.

export function readTheme(element) {
  const style = getComputedStyle(element);
  const reader = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  // Via a pixel, which works for any CSS notation.
  const read = (name, fallback) => {
    reader.clearRect(0, 0, 1, 1);
    reader.fillStyle = fallback;
    reader.fillStyle = style.getPropertyValue(name).trim() || fallback;
    reader.fillRect(0, 0, 1, 1);
    return [...reader.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const ground = read("--map-ground", "#ffffff");
  return {
    dark: luminance(ground) < 0.4,
    states: Array.from({ length: 9 }, (_, i) => read(`--state-${i}`, "#888888")),
    none: read("--map-none", "#dddddd"),
    unloaded: read("--map-unloaded", "#eeeeee"),
    ground,
    text: read("--text", "#111111"),
    accent: read("--accent", "#3355dd"),
    panel: read("--panel", "#ffffff"),
  };
}

function luminance([r, g, b]) {
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}

/** onTheme calls back when light and dark change. Returns an unsubscribe function. */
export function onTheme(callback) {
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", callback);
  const observer = new MutationObserver(callback);
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
  return () => {
    media.removeEventListener("change", callback);
    observer.disconnect();
  };
}
