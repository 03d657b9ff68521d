import { useEffect, useRef, useState } from "../html.js";
import { api } from "../api.js";

// useLoad fetches a path of the API (or what fn({signal}) returns), again when deps change, every given seconds
// (while visible), and on reload(). Old data stays until the new arrives. An empty path loads nothing. Returns {data,
// error, loading, reload, at}.
export function useLoad(source, deps = [], { every = 0 } = {}) {
  const [state, setState] = useState({ data: undefined, error: null, loading: true, at: 0 });
  const reloadRef = useRef(() => {});
  const all = typeof source === "string" || !source ? [source, every, ...deps] : [every, ...deps];

  useEffect(() => {
    let ended = false, timer = 0, control = null;
    if (!source) {
      setState({ data: undefined, error: null, loading: false, at: 0 });
      return undefined;
    }
    const load = async () => {
      clearTimeout(timer);
      control?.abort();
      const mine = control = new AbortController();
      setState((s) => ({ ...s, loading: true }));
      try {
        const data = await (typeof source === "string" ? api.get(source, mine) : source(mine));
        if (!ended && control === mine) setState({ data, error: null, loading: false, at: Date.now() });
      } catch (error) {
        if (ended || control !== mine || error.name === "AbortError") return;
        setState((s) => ({ ...s, error, loading: false }));
      }
      if (!ended && control === mine && every > 0) timer = setTimeout(tick, every * 1000);
    };
    // Hidden tabs do not poll; they refresh when shown.
    const tick = () => { if (!document.hidden) load(); };
    const seen = () => { if (every > 0 && !document.hidden) load(); };
    document.addEventListener("visibilitychange", seen);
    reloadRef.current = load;
    load();
    return () => {
      ended = true;
      clearTimeout(timer);
      control?.abort();
      document.removeEventListener("visibilitychange", seen);
    };
  }, all);
  return { ...state, reload: () => reloadRef.current() };
}
