// What this browser keeps, by name.

export function kept(name) {
  try {
    return JSON.parse(localStorage.getItem("tranche-" + name)) ?? {};
  } catch {
    return {};
  }
}

// keep returns the error if it cannot; then the value lasts until the page is left.
export function keep(name, value) {
  try {
    localStorage.setItem("tranche-" + name, JSON.stringify(value));
    return null;
  } catch (err) {
    return err;
  }
}
